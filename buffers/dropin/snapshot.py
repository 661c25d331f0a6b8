"""All stored rows as plain arrays: what a program keeps in a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.replay import SequenceReplayBuffer

__all__ = ["chunks_of", "snapshot"]

_PLACE = ("episode", "stream", "first_row", "rows", "end")


def snapshot(replay: SequenceReplayBuffer) -> dict[str, Any]:
    """Copies of all stored rows, chunk by chunk.

    Returns:
        Under ``"pieces"`` [chunks, 5] int64: episode, stream, first row, rows and end of each;
        under ``"rows"`` arrays [rows, ...] by field.
    """
    records = replay.storage.table.records
    records = records[records["rows"] > 0]
    starts = np.cumsum(records["rows"]) - records["rows"]
    total = int(records["rows"].sum())
    rows = {f.name: np.empty((total, *f.shape), f.numpy_dtype) for f in replay.spec.fields}
    places: dict[int, list[int]] = {}
    for place, number in enumerate(records["episode"].tolist()):
        places.setdefault(number, []).append(place)
    for episode in replay.iter_episodes():
        for place in places[episode.id]:
            first = int(records["first_row"][place]) - episode.first_row
            count, target = int(records["rows"][place]), int(starts[place])
            for name, values in episode.fields.items():
                rows[name][target : target + count] = values[first : first + count]
    chunks = np.stack([records[name] for name in _PLACE], axis=1)
    return {"pieces": chunks, "rows": rows}


def chunks_of(state: Mapping[str, Any]) -> list[Chunk]:
    """The chunks of a snapshot, to be stored again in an empty replay of the same fields.

    Args:
        state: What `snapshot` gave.

    Raises:
        ValueError: The arrays do not belong together.
    """
    table, rows = np.asarray(state["pieces"]), state["rows"]
    total = int(table[:, _PLACE.index("rows")].sum())
    wrong = [name for name, values in rows.items() if len(values) != total]
    if wrong:
        raise ValueError(
            f"state: expected {total} rows of field {wrong[0]!r}, got {len(rows[wrong[0]])}; load "
            f"what state_dict gave, unchanged"
        )
    chunks: list[Chunk] = []
    ids: dict[int, int] = {}
    cursor = 0
    for episode, stream, first_row, count, end in table.tolist():
        is_known = episode in ids
        number = ids.setdefault(episode, len(ids))
        fields = {name: values[cursor : cursor + count] for name, values in rows.items()}
        final = End(end) & (End.TERMINATED | End.TRUNCATED)
        starts_late = first_row > 0 and not is_known
        chunks.append(Chunk(number, stream, first_row, final, fields, starts_late=starts_late))
        cursor += count
    return chunks
