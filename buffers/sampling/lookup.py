"""Finds the items that begin with rows of which the caller has the ids."""

from __future__ import annotations

import numpy as np

from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.windows import chunk_of
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import first_start

__all__ = ["checked_ids", "items_at", "rows_at"]

_BEHIND_ALL = 1 << 60


def checked_ids(ids: np.ndarray) -> np.ndarray:
    """Ids of rows as they must be.

    Raises:
        ValueError: They are not integers ``[B]``, or there are none.
    """
    rows = np.asarray(ids)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows):
        raise ValueError(
            f"ids: expected the ids of rows, integers [B] with B >= 1, got {rows.dtype} "
            f"{rows.shape}; batch.ids gives them"
        )
    return rows.astype(np.int64)


def rows_at(table: ChunkIndex, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chunks that hold given rows, and which of a chunk's rows each one is.

    Args:
        table: The index of what is stored.
        ids: [B] ids of rows.

    Returns:
        Indices of the chunks [B], and places in them [B].

    Raises:
        NotEnoughData: A row is not stored any more.
    """
    records = table.records
    first = records["row_id"]
    index = np.searchsorted(first, ids, side="right") - 1
    is_there = np.zeros(len(ids), np.bool_)
    place = index
    if len(records):
        place = ids - first[index]  # where the index is -1, that of the last chunk: far below 0
        is_there = (place >= 0) & (place < records["rows"][index])
    _check(is_there, ids, "is not stored: it was evicted, or there never was one")
    return index, place


def items_at(table: ChunkIndex, kinds: ItemKinds, ids: np.ndarray, *, are_whole: bool) -> Drawn:
    """The items that begin with given rows.

    Args:
        table: The index of what is stored.
        kinds: The families of the items.
        ids: [B] ids of their first rows.
        are_whole: An item reaches to the end of its episode.

    Raises:
        NotEnoughData: A row is not stored any more, or no such item begins with it.
    """
    family = kinds.every
    index, place = rows_at(table, ids)
    at = table.at(index)
    start = at["stream_row" if family.is_across else "first_row"] + place
    last = start + (_BEHIND_ALL if are_whole else family.length - 1)
    chunk, place, at = chunk_of(table, index, last, family.is_across)
    stop = at["stream_row" if family.is_across else "first_row"] + place
    is_item = stop >= start + family.length - 1
    is_item &= start >= first_start(at, family)
    _check(is_item, ids, f"begins no item of {family.length} rows: too few are stored around it")
    return Drawn(chunk, start)


def _check(is_right: np.ndarray, ids: np.ndarray, wrong: str) -> None:
    if not is_right.all():
        first = int(ids[~is_right][0])
        raise NotEnoughData(
            f"the row with the id {first} {wrong}; expected ids of rows that are, got "
            f"{int((~is_right).sum())} of {len(ids)} that are not"
        )
