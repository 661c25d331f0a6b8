"""The index of a storage: one record for each stored chunk, and the windows that can be drawn.

Only the newest chunks change, so everything here is kept up to date at a cost that follows the new
chunks, whatever the number of stored rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.storage.episode_filter import EpisodeFilter
from stepwell.buffers.storage.item_counts import ItemCounts, ItemKind, Shares

__all__ = ["CHUNK", "ChunkIndex", "ChunkInfo", "Counters"]

_MAX_COUNTS = 16  # kinds of item whose counts are kept up to date
_CountKey: TypeAlias = "tuple[ItemKind, EpisodeFilter | None]"


class ChunkInfo(NamedTuple):
    """The record of one stored chunk."""

    episode: int
    """Id of the episode."""
    stream: int
    """Index of the env that it comes from."""
    first_row: int
    """Index of the chunk's first row in the episode."""
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
    """Number of the slab or file."""
    offset: int
    """Offset in it."""
    nbytes: int
    """Length in bytes."""
    stream_previous: int
    """Position of the chunk before in the stream, or -1 if there is a gap between them."""
    stream_next: int
    """Position of the chunk after in the stream, or -1."""
    stream_row: int
    """Index of the first row among the rows of the stream without a gap."""
    stream_head: int
    """Index of the first of those that is still stored."""
    stream_starts_late: int
    """1 if that one is not the row of a reset."""


CHUNK = np.dtype([(name, np.int64) for name in ChunkInfo._fields])


class Counters(NamedTuple):
    """Numbers that only grow, also when chunks are evicted.

    Args:
        next_row_id: Id that the next stored row gets.
        next_episode: Lowest id above all episode ids that were used.
        total_steps: Env steps ever stored.
    """

    next_row_id: int = 0
    next_episode: int = 0
    total_steps: int = 0


class ChunkIndex:
    """Records of stored chunks, oldest first, addressed by *position*.

    A position counts all chunks ever stored, so that it stays valid when older chunks are evicted.
    """

    def __init__(self) -> None:
        self._records: np.ndarray = np.empty(64, CHUNK)
        self._length = 0
        self._base = 0
        self._open: dict[int, _OpenEpisode] = {}
        self._newest: dict[int, int] = {}
        self._counts: dict[_CountKey, ItemCounts] = {}
        self.shares: Shares | None = None
        self.losses = 0  # calls of `lose`
        self._oldest_new_episode = 0
        self.next_row_id = 0
        self.next_episode = 0
        self.steps = 0
        self.episodes = 0
        self.total_steps = 0

    @classmethod
    def restore(cls, stored: np.ndarray, counters: Counters, base: int) -> ChunkIndex:
        """Build the index of chunks that an earlier process stored.

        Unfinished episodes are not continued by later chunks.

        Args:
            stored: Records [chunks], dtype `CHUNK`; of every chunk its episode, stream, first row,
                end, row id, stored rows, segment, offset and length. The rest is computed.
            counters: The counters after the last chunk.
            base: Position of the first chunk.
        """
        index = cls()
        records = stored.copy()
        _link(records, base)
        index._records = _with_room(records, 64)
        index._length, index._base = len(records), base
        index._find_newest()
        index._count()
        index.next_row_id, index.next_episode, index.total_steps = counters
        index._oldest_new_episode = counters.next_episode
        return index

    @property
    def counters(self) -> Counters:
        """The numbers that only grow."""
        return Counters(self.next_row_id, self.next_episode, self.total_steps)

    @property
    def records(self) -> np.ndarray:
        """The live records [chunks], dtype `CHUNK`; a view that must not be changed."""
        return self._records[: self._length]

    def at(self, index: np.ndarray) -> np.ndarray:
        """The records [n], dtype `CHUNK`, at some indices [n]; a copy."""
        return _records_at(self._records, index)

    @property
    def base(self) -> int:
        """Position of the oldest live record."""
        return self._base

    @property
    def rows(self) -> int:
        """Rows that are stored and count."""
        return int(self.records["rows"].sum())

    def __len__(self) -> int:
        return self._length

    def record(self, position: int) -> ChunkInfo:
        """The record at a position."""
        return ChunkInfo._make(self._records[position - self._base].tolist())

    def check(self, chunks: Sequence[Chunk]) -> list[int]:
        """Refuse chunks that could not be appended, one after the other.

        Returns:
            The env steps that each chunk adds to `total_steps`.

        Raises:
            ValueError: A chunk has no rows, does not continue its episode, or uses an old id again.
        """
        newest = dict(self._open)
        fresh: set[int] = set()
        steps: list[int] = []
        for chunk in chunks:
            before = newest.pop(chunk.stream, None)
            if before is None or before.episode != chunk.episode:
                self._check_first(chunk, fresh)
                fresh.add(chunk.episode)
                before = None
            elif chunk.first_row != before.next_row:
                raise ValueError(_misplaced(chunk, before.next_row))
            rows = chunk.rows
            if rows < 1:
                raise ValueError(f"chunk of episode {chunk.episode} has no rows, expected some")
            if not chunk.end.is_final:
                newest[chunk.stream] = _open_after(chunk, rows, 0)
            steps.append(_new_steps(chunk, rows, before))
        return steps

    def append(self, chunk: Chunk, segment: int, offset: int, nbytes: int) -> int:
        """Add a stored chunk, which `check` has accepted, and return its position."""
        position, rows = self._base + self._length, chunk.rows
        newest = self._open.pop(chunk.stream, None)
        before = newest if newest and newest.episode == chunk.episode else None
        head, previous = chunk.first_row, -1
        if before and before.position >= self._base and not self._is_lost(before.position):
            previous = before.position
            head = self._continue(previous)
        else:
            self.episodes += 1
        if self._length == len(self._records):
            self._records = _with_room(self._records, self._length)
        self._records[self._length] = (
            *(chunk.episode, chunk.stream, chunk.first_row, rows, int(chunk.end)),
            *(1, previous, head, self.next_row_id, rows, segment, offset, nbytes),
            *self._join_stream(chunk, previous, position),
        )
        self._length += 1
        if not chunk.end.is_final:
            self._open[chunk.stream] = _open_after(chunk, rows, position)
        self.steps += rows - (chunk.first_row == 0)
        self.total_steps += _new_steps(chunk, rows, before)
        self.next_row_id += rows
        self.next_episode = max(self.next_episode, chunk.episode + 1)
        return position

    @property
    def oldest_segment_stop(self) -> int:
        """Id of the row after the oldest segment, or of the next row to be stored."""
        records = self.records
        if not len(records):
            return self.next_row_id
        count = int(np.searchsorted(records["segment"], records["segment"][0], side="right"))
        return int(records["row_id"][count]) if count < len(records) else self.next_row_id

    def drop_segment(self) -> int:
        """Remove the chunks of the oldest segment and return its number."""
        records = self.records
        segment = int(records["segment"][0])
        count = int(np.searchsorted(records["segment"], segment, side="right"))
        dropped, kept = records[:count], records[count:].copy()
        self.steps -= int(_steps_of(dropped).sum())
        self.episodes -= int(dropped["is_tail"].sum())
        continued = dropped[(dropped["is_tail"] == 0) & (dropped["end"] & End.LOST == 0)]
        for episode, head in set(continued[["episode", "head"]].tolist()):
            rest = np.flatnonzero((kept["episode"] == episode) & (kept["head"] == head))
            if len(rest):  # none if the episode's later chunks were dropped with these
                kept["head"][rest] = kept["first_row"][rest[0]]
                kept["previous"][rest[0]] = -1
        self._base += count
        _mark_late_starts(kept, self._base)
        self._records = _with_room(kept, max(64, len(kept)))
        self._length = len(kept)
        self._counts.clear()
        return segment

    def lose(self, positions: Iterable[int]) -> None:
        """Mark chunks whose bytes are damaged: their rows no longer count.

        The rows before a lost chunk are an episode ended by a cut. The rows after it are an episode
        without its first rows.
        """
        records = self._records[: self._length]
        for position in positions:
            records["end"][position - self._base] |= End.LOST
        _link(records, self._base)
        self._find_newest()
        self._count()
        self._counts.clear()
        self.losses += 1

    def items(self, kind: ItemKind, chosen: EpisodeFilter | None = None) -> ItemCounts:
        """The up-to-date counts of the items of one kind.

        Args:
            kind: Kind of item; hashable.
            chosen: Episodes that the items may belong to, updated; None for all.
        """
        key = (kind, chosen)
        if key not in self._counts:
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.pop(next(iter(self._counts)))
            self._counts[key] = ItemCounts(kind, chosen)
        counts = self._counts[key]
        if counts.known < self._length:
            counts.update(self.records, self._base)
        return counts

    def _check_first(self, chunk: Chunk, fresh: set[int]) -> None:
        """Refuse a first chunk that does not begin a new episode."""
        if chunk.first_row != 0 and not chunk.starts_late:
            raise ValueError(_misplaced(chunk, 0))
        number = chunk.episode
        is_old = number < self._oldest_new_episode or number in fresh
        if is_old or (number < self.next_episode and (self.records["episode"] == number).any()):
            raise ValueError(
                f"episode {number} is stored already, expected an id that was never used: "
                f"ids from {self.next_episode} on are free"
            )

    def _is_lost(self, position: int) -> bool:
        return bool(self._records["end"][position - self._base] & End.LOST)

    def _continue(self, position: int) -> int:
        """Make room for the next chunk of an episode and return the episode's first stored row."""
        record = self._records[position - self._base]
        record["is_tail"] = 0
        if int(record["end"]) & End.PENDING:
            # The pending last row no longer counts: the next chunk contains it again.
            record["rows"] -= 1
            # The reset's row is no step, so a chunk of that row alone has none.
            self.steps -= bool(record["rows"] or record["first_row"])
        for counts in self._counts.values():  # the counts depend on is_tail
            counts.forget_from(position - self._base)
        return int(record["head"])

    def _join_stream(
        self, chunk: Chunk, previous: int, position: int
    ) -> tuple[int, int, int, int, int]:
        """Link a chunk to the one before in its stream, unless rows between them are missing."""
        before = self._newest.get(chunk.stream, -1)
        self._newest[chunk.stream] = position
        is_joined = before >= self._base and not self._is_lost(before)
        if not is_joined or (before != previous and chunk.first_row != 0):
            return -1, -1, 0, 0, int(chunk.first_row > 0)
        record = self._records[before - self._base]
        record["stream_next"] = position
        row = int(record["stream_row"] + record["rows"])
        return before, -1, row, int(record["stream_head"]), int(record["stream_starts_late"])

    def _find_newest(self) -> None:
        """Find the newest chunk of each stream."""
        streams = self.records["stream"].tolist()
        self._newest = {stream: self._base + place for place, stream in enumerate(streams)}

    def _count(self) -> None:
        """Count steps and episodes from the records."""
        self.steps = int(_steps_of(self.records).sum())
        self.episodes = int(self.records["is_tail"].sum())


def _with_room(records: np.ndarray, more: int) -> np.ndarray:
    """The records, and room for more: `np.concatenate` takes 0.1 ms to compare the dtypes."""
    roomy = np.empty(len(records) + more, CHUNK)
    roomy[: len(records)] = records
    return roomy


class _OpenEpisode(NamedTuple):
    """The newest episode of a stream, while its environment has not ended it."""

    episode: int
    position: int
    next_row: int
    is_pending: bool


def _open_after(chunk: Chunk, rows: int, position: int) -> _OpenEpisode:
    is_pending = bool(chunk.end & End.PENDING)
    return _OpenEpisode(chunk.episode, position, chunk.first_row + rows - is_pending, is_pending)


def _new_steps(chunk: Chunk, rows: int, before: _OpenEpisode | None) -> int:
    """Env steps of a chunk: neither the reset's row nor a superseding row is a new one."""
    return rows - (chunk.first_row == 0 or (before is not None and before.is_pending))


def _steps_of(records: np.ndarray) -> np.ndarray:
    """Env steps [chunks] that count; the reset's row is no step."""
    steps: np.ndarray = np.maximum(0, records["rows"] - (records["first_row"] == 0))
    return steps


def _misplaced(chunk: Chunk, expected: int) -> str:
    return (
        f"chunk of episode {chunk.episode} begins with row {chunk.first_row}, "
        f"expected row {expected}: chunks must be added in order"
    )


def _records_at(records: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The records [n] at some indices [n]; a copy.

    Args:
        records: Contiguous records, dtype `CHUNK`.
        index: Their indices.
    """
    # Several times as fast as indexing with an array, which copies field by field.
    numbers = np.ndarray((len(records), len(ChunkInfo._fields)), np.int64, records)
    return np.ndarray(len(index), CHUNK, numbers.take(index, 0))


def _link(records: np.ndarray, base: int) -> None:
    """Compute the links between chunks from their order, as `ChunkIndex.append` does."""
    order = np.argsort(records["stream"], kind="stable")
    of_stream = _records_at(records, order)
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
    """Compute the links between the chunks of each stream.

    Args:
        records: All records.
        order: Their indices, stream by stream.
        continues: [chunks] in that order: the chunk continues the episode of the one before.
        base: Position of the first record.
    """
    of_stream = _records_at(records, order)
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
    records["stream_starts_late"][order] = of_stream["first_row"][begin] > 0


def _mark_late_starts(kept: np.ndarray, base: int) -> None:
    """Make each stream begin with its first kept chunk."""
    is_first = (kept["stream_previous"] < base) & (kept["stream_previous"] >= 0)
    for first in np.flatnonzero(is_first).tolist():
        stream = kept["stream"][first]
        rest = first + np.flatnonzero(kept["stream"][first:] == stream)
        gaps = np.flatnonzero(kept["stream_previous"][rest[1:]] < 0)
        rest = rest[: gaps[0] + 1] if len(gaps) else rest
        kept["stream_head"][rest] = kept["stream_row"][first]
        kept["stream_starts_late"][rest] = kept["first_row"][first] > 0
        kept["stream_previous"][first] = -1
