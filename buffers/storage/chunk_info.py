"""What is known of one stored chunk, and how the chunks of episodes and streams are linked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.episode import End

__all__ = ["CHUNK", "ChunkInfo", "link", "mark_late_starts", "records_at"]


class ChunkInfo(NamedTuple):
    """What is known of one stored chunk."""

    episode: int
    """Id of the episode."""
    stream: int
    """Index of the env that played it."""
    first_row: int
    """Place of the chunk's first row in the episode."""
    rows: int
    """Rows that count: one less than stored once a pending last row is superseded."""
    end: int
    """End of the last row."""
    is_tail: int
    """1 when no later chunk of this episode is stored."""
    previous: int
    """Position of the episode's chunk before, or -1."""
    head: int
    """First row of the episode that is still stored."""
    row_id: int
    """Id of the first row, never reused."""
    stored_rows: int
    """Rows in the bytes."""
    segment: int
    """Which slab or file."""
    offset: int
    """Where in it."""
    nbytes: int
    """How long."""
    stream_previous: int
    """Position of the chunk before in the stream, or -1: nothing is missing in between."""
    stream_next: int
    """Position of the chunk after in the stream, or -1."""
    stream_row: int
    """Place of the first row among the rows of the stream that follow one another."""
    stream_head: int
    """Place of the first of those that is still stored."""
    is_stream_beheaded: int
    """1 when that one is not the row of a reset."""


CHUNK = np.dtype([(name, np.int64) for name in ChunkInfo._fields])


def records_at(records: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The records [n] at some indices [n]; a copy.

    Args:
        records: Contiguous records, dtype `CHUNK`.
        index: Which of them.
    """
    # Several times as fast as indexing with an array, which copies field by field.
    numbers = np.ndarray((len(records), len(ChunkInfo._fields)), np.int64, records)
    return np.ndarray(len(index), CHUNK, numbers.take(index, 0))


def link(records: np.ndarray, base: int) -> None:
    """Fill in what follows from the order of the chunks, as appending them would have done."""
    order = np.argsort(records["stream"], kind="stable")
    of_stream = records_at(records, order)
    is_pending = of_stream["end"] & End.PENDING != 0
    is_final = of_stream["end"] & (End.TERMINATED | End.TRUNCATED) != 0
    is_lost = of_stream["end"] & End.LOST != 0
    next_row = of_stream["first_row"] + of_stream["stored_rows"] - is_pending
    continues = np.zeros(len(order), np.bool_)
    continues[1:] = (
        (of_stream["episode"][1:] == of_stream["episode"][:-1])
        & (of_stream["first_row"][1:] == next_row[:-1])
        & ~(is_final | is_lost)[:-1]
        & ~is_lost[1:]
    )
    is_continued = np.append(continues[1:], False)[: len(order)]
    begin = np.maximum.accumulate(np.where(continues, 0, np.arange(len(order))))
    rows = of_stream["stored_rows"] - (is_pending & is_continued)
    records["rows"][order] = np.where(is_lost, 0, rows)
    records["is_tail"][order] = ~is_continued & ~is_lost
    records["previous"][order] = np.where(continues, base + np.roll(order, 1), -1)
    records["head"][order] = of_stream["first_row"][begin]
    _link_streams(records, order, continues, base)


def _link_streams(records: np.ndarray, order: np.ndarray, continues: np.ndarray, base: int) -> None:
    """Fill in how the chunks of each stream follow one another.

    Args:
        records: All records.
        order: Their indices, stream by stream.
        continues: [chunks] in that order: the chunk continues the episode of the one before.
        base: Position of the first record.
    """
    of_stream = records_at(records, order)
    is_lost = of_stream["end"] & End.LOST != 0
    joins = np.zeros(len(order), np.bool_)
    joins[1:] = (
        (of_stream["stream"][1:] == of_stream["stream"][:-1])
        & (continues[1:] | (of_stream["first_row"][1:] == 0))
        & ~(is_lost[1:] | is_lost[:-1])
    )
    begin = np.maximum.accumulate(np.where(joins, 0, np.arange(len(order))))
    rows_before = np.cumsum(of_stream["rows"]) - of_stream["rows"]
    is_joined = np.append(joins[1:], False)[: len(order)]
    records["stream_previous"][order] = np.where(joins, base + np.roll(order, 1), -1)
    records["stream_next"][order] = np.where(is_joined, base + np.roll(order, -1), -1)
    records["stream_row"][order] = rows_before - rows_before[begin]
    records["stream_head"] = 0
    records["is_stream_beheaded"][order] = of_stream["first_row"][begin] > 0


def mark_late_starts(kept: np.ndarray, base: int) -> None:
    """Let the streams begin with the first chunks that are kept."""
    is_first = (kept["stream_previous"] < base) & (kept["stream_previous"] >= 0)
    for first in np.flatnonzero(is_first).tolist():
        stream = kept["stream"][first]
        rest = first + np.flatnonzero(kept["stream"][first:] == stream)
        gaps = np.flatnonzero(kept["stream_previous"][rest[1:]] < 0)
        rest = rest[: gaps[0] + 1] if len(gaps) else rest
        kept["stream_head"][rest] = kept["stream_row"][first]
        kept["is_stream_beheaded"][rest] = kept["first_row"][first] > 0
        kept["stream_previous"][first] = -1
