"""The index of a storage: one record for each stored chunk, and the windows that can be drawn.

Only the newest chunks change, so everything here is kept up to date at a cost that follows the new
chunks, whatever the number of stored rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from ..base.number_checks import check_whole
from ..base.untrusted_json import MOST
from ..rows.episode import End
from .episode_filter import EpisodeFilter
from .item_counts import ItemCounts, ItemKind, Shares

_MAX_COUNTS = 16  # kinds of item whose counts are kept up to date
_MAX_HEADS = 20  # named in a message
_MOST_SKIPPED = 4_096  # ids of episodes
_MOST = MOST // 2 - 1  # that a store can be opened with, and number what follows
_CountKey: TypeAlias = "tuple[ItemKind, EpisodeFilter | None]"


class ChunkInfo(NamedTuple):
    """The record of one stored chunk."""

    episode: int  # id of the episode
    stream: int  # index of the env that it comes from
    first_row: int  # index of the chunk's first row in the episode
    rows: int  # that count: one less than stored once a pending last row is superseded
    end: int  # of the last row
    is_tail: int  # 1 when no later chunk of this episode is stored
    previous: int  # position of the episode's chunk before, or -1
    head: int  # first row of the episode that is still stored
    row_id: int  # id of the first row, never reused
    stored_rows: int  # rows in the bytes
    segment: int  # number of the slab or file
    offset: int  # in it
    nbytes: int  # length in bytes
    stream_previous: int  # position of the chunk before in the stream, or -1 if there is a gap
    stream_next: int  # position of the chunk after in the stream, or -1
    stream_row: int  # index of the first row among the rows of the stream without a gap
    stream_head: int  # index of the first of those that is still stored
    stream_starts_late: int  # 1 if that one is not the row of a reset


CHUNK = np.dtype([(name, np.int64) for name in ChunkInfo._fields])

# One record is read and written as plain numbers: numpy takes microseconds for each of its fields.
_RECORD = struct.Struct(f"{len(ChunkInfo._fields)}q")
_WIDTH = len(ChunkInfo._fields)
_FIRST_ROW, _ROWS, _END, _IS_TAIL, _HEAD = map(
    ChunkInfo._fields.index, ("first_row", "rows", "end", "is_tail", "head")
)
_STREAM_NEXT, _STREAM_ROW, _STREAM_HEAD, _STARTS_LATE = map(
    ChunkInfo._fields.index, ("stream_next", "stream_row", "stream_head", "stream_starts_late")
)
_LOST, _PENDING = int(End.LOST), int(End.PENDING)
_FINAL = int(End.TERMINATED | End.TRUNCATED)
_NO_STREAM = np.iinfo(np.int64).min


class _StoredRows(Protocol):
    """The part of a `Chunk`, encoded or not, that its record is made of."""

    @property
    def episode(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def end(self) -> End: ...
    @property
    def starts_late(self) -> bool: ...  # the rows before are lost


class Counters(NamedTuple):
    """Numbers that only grow, also when chunks are evicted."""

    next_row_id: int = 0  # id that the next stored row gets
    next_episode: int = 0  # lowest id above all episode ids that were used
    total_steps: int = 0  # env steps ever stored


class ChunkIndex:
    """Records of stored chunks, oldest first, addressed by *position*."""

    # A position counts all chunks ever stored, so that it stays valid when older ones are evicted.

    def __init__(self) -> None:
        self._use(np.empty(64, CHUNK))
        self._length = 0
        self.base = 0  # position of the oldest live record
        self._open: dict[int, _OpenEpisode] = {}
        self._newest: dict[int, int] = {}
        self._counts: dict[_CountKey, ItemCounts] = {}
        self.shares: Shares | None = None
        self.losses = 0  # calls of `lose`
        self._oldest_new_episode = 0
        # Episodes of envs that are stepped together are not stored in the order of their ids. The
        # newest ids that were passed over are kept here, as a search takes as long as the index is.
        self._skipped: dict[int, None] = {}
        self.next_row_id = 0
        self.next_episode = 0
        self.steps = 0
        self.episodes = 0
        self.total_steps = 0

    @classmethod
    def restore(cls, stored: Sequence[np.ndarray], counters: Counters, base: int) -> ChunkIndex:
        """Build the index of chunks that an earlier process stored."""
        # Unfinished episodes are not continued by later chunks, unless `continue_episodes` is
        # called.
        # stored: records [chunks], dtype `CHUNK`, in parts; of every chunk its episode, stream,
        # first row, end, row id, stored rows, segment, offset and length. The rest is computed. The
        # counters are those after the last chunk, the base is the position of the first one.
        index = cls()
        index._use(_with_room(64, *stored))
        index._length, index.base = sum(map(len, stored)), base
        index._link()
        index._set_counters(counters)
        return index

    def continue_episodes(self) -> None:
        """Let later chunks continue the newest episode of each stream, unless it has ended."""
        for stream, position in self._newest.items():
            newest = self.record(position) if position >= self.base else None
            if newest is not None and not newest.end & (_FINAL | _LOST):
                is_pending = newest.end & _PENDING != 0
                next_row = newest.first_row + newest.stored_rows - is_pending
                self._open[stream] = _OpenEpisode(newest.episode, position, next_row, is_pending)

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
        # Several times as fast as indexing with an array, which copies field by field.
        numbers = np.ndarray((len(self._records), _WIDTH), np.int64, self._records)
        return np.ndarray(len(index), CHUNK, numbers.take(index, 0))

    @property
    def rows(self) -> int:
        """Rows that are stored and count."""
        return int(self.records["rows"].sum())

    def __len__(self) -> int:
        return self._length

    def record(self, position: int) -> ChunkInfo:
        """The record at a position; ValueError if no chunk has it, or it was evicted."""
        place = position - self.base
        if not 0 <= place < self._length:
            raise ValueError(
                f"position: expected {self.base} to {self.base + self._length - 1}, that of a "
                f"stored chunk, got {position}; see index.records"
            )
        return ChunkInfo._make(_RECORD.unpack_from(self.numbers, place * _RECORD.size))

    def check(self, chunks: Sequence[_StoredRows]) -> list[int]:
        """Refuse chunks that cannot be appended in order; returns the steps that each adds."""
        newest = dict(self._open)
        fresh: set[int] = set()
        steps: list[int] = []
        for chunk in chunks:
            number, stream, row = chunk.episode, chunk.stream, chunk.first_row
            are_plain = type(number) is type(stream) is type(row) is int  # as nearly always
            if not are_plain or number < 0 or row < 0 or max(number, row, abs(stream)) > _MOST:
                check_whole("episode of a chunk", number, 0, _MOST)
                check_whole("stream of a chunk", stream, -_MOST, _MOST)
                check_whole("first_row of a chunk", row, 0, _MOST)
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

    def append(self, chunk: _StoredRows, segment: int, offset: int, nbytes: int) -> int:
        """Add a stored chunk, which `check` has accepted, and return its position."""
        position, rows = self.base + self._length, chunk.rows
        newest = self._open.pop(chunk.stream, None)
        before = newest if newest and newest.episode == chunk.episode else None
        previous = -1 if before is None or before.position < self.base else before.position
        if previous >= 0 and self.numbers[(previous - self.base) * _WIDTH + _END] & _LOST:
            previous = -1
        self._enter(
            *(chunk.episode, chunk.stream, chunk.first_row, rows, int(chunk.end)),
            *(self.next_row_id, segment, offset, nbytes, previous),
        )
        if not chunk.end.is_final:
            self._open[chunk.stream] = _open_after(chunk, rows, position)
        self.total_steps += _new_steps(chunk, rows, before)
        self.next_row_id += rows
        self._use_id(chunk.episode)
        return position

    def followed_by(self, stored: np.ndarray, counters: Counters) -> ChunkIndex:
        """Build the index of the same chunks and some more; this one is not changed."""
        # `restore` of all of them gives the same, but links each one again. The records are as
        # there, none of them is lost, and the counters are those after the last one.
        index = ChunkIndex()
        index._use(_with_room(len(stored) + 64, self.records))
        index._length, index.base = self._length, self.base
        index._newest = self._newest.copy()
        index.steps, index.episodes = self.steps, self.episodes
        index._counts = {
            (kind, chosen): counts.copied()
            for (kind, chosen), counts in self._counts.items()
            if chosen is None  # the episodes that others choose are looked at again
        }
        for each in map(ChunkInfo._make, stored.tolist()):
            position = index._newest.get(each.stream, -1)
            before = index.record(position) if position >= index.base else None
            is_continued = before is not None and _continues(each, before)
            index._enter(
                *(each.episode, each.stream, each.first_row, each.stored_rows, each.end),
                *(each.row_id, each.segment, each.offset, each.nbytes),
                position if is_continued else -1,
            )
        index._set_counters(counters)
        return index

    @property
    def oldest_segment_stop(self) -> int:
        """Id of the row after the oldest segment, or of the next row to be stored."""
        records = self.records
        if not len(records):
            return self.next_row_id
        count = int(np.searchsorted(records["segment"], records["segment"][0], side="right"))
        return int(records["row_id"][count]) if count < len(records) else self.next_row_id

    def drop_segment(self, last: int | None = None) -> int:
        """Remove the chunks of the oldest segment, or of all up to `last`; returns its number."""
        records = self.records
        segment = int(records["segment"][0]) if last is None else last
        count = int(np.searchsorted(records["segment"], segment, side="right"))
        dropped, kept = records[:count], self._length - count
        self.steps -= int(_steps_of(dropped).sum())
        self.episodes -= int(dropped["is_tail"].sum())
        # In new memory, as others may still read the records in the present one.
        self._use(_with_room(max(64, kept), records[count:]))
        self._length = kept
        self.base += count
        _begin_episodes(self.records, self.base)
        _begin_streams(self.records, self.base)
        self._counts.clear()
        return segment

    def lose(self, positions: Iterable[int]) -> None:
        """Mark chunks whose bytes are damaged: their rows no longer count."""
        # The rows before a lost chunk are an episode ended by a cut. The rows after it are an
        # episode without its first rows.
        records = self._records[: self._length]
        for position in positions:
            records["end"][position - self.base] |= End.LOST
        self._link()
        self._counts.clear()
        self.losses += 1

    def tails_of(self, episode: int) -> list[int]:
        """Positions of an episode's last chunks, by rows: several where middle chunks are lost."""
        records = self.records
        found = np.flatnonzero((records["episode"] == episode) & (records["is_tail"] == 1))
        positions: list[int] = (found + self.base).tolist()
        return positions

    def tail_of(self, episode: int, first_row: int | None = None) -> int:
        """Position of the last chunk of a stored episode."""
        # first_row: where its stored rows begin; needed if they are in several parts.
        parts = {self.record(position).head: position for position in self.tails_of(episode)}
        if not parts:
            raise ValueError(
                f"episode: expected the id of a stored episode, as in replay.iter_episodes(), got "
                f"{episode}"
            )
        if first_row is None and len(parts) == 1:
            return parts.popitem()[1]
        if first_row not in parts:
            heads = ", ".join(map(str, list(parts)[:_MAX_HEADS]))
            why = ", as chunks between its parts are lost" if len(parts) > 1 else ""
            raise ValueError(
                f"first_row: expected a row with which stored rows of episode {episode} begin "
                f"({heads}), got {first_row}{why}"
            )
        return parts[first_row]

    def items(self, kind: ItemKind, chosen: EpisodeFilter | None = None) -> ItemCounts:
        """The up-to-date counts of the items of one kind, which is hashable."""
        # chosen: episodes that the items may belong to, updated; None for all.
        key = (kind, chosen)
        if key not in self._counts:
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.pop(next(iter(self._counts)))
            self._counts[key] = ItemCounts(kind, chosen)
        counts = self._counts[key]
        if counts.known < self._length:
            counts.update(self.records, self.base)
        return counts

    def _check_first(self, chunk: _StoredRows, fresh: set[int]) -> None:
        """Refuse a first chunk that does not begin a new episode."""
        if chunk.first_row != 0 and not chunk.starts_late:
            raise ValueError(_misplaced(chunk, 0))
        number = chunk.episode
        is_old = number < self._oldest_new_episode or number in fresh
        is_new = number >= self.next_episode or number in self._skipped
        if is_old or (not is_new and (self.records["episode"] == number).any()):
            raise ValueError(
                f"episode {number} is stored already, expected an id that was never used: "
                f"ids from {self.next_episode} on are free"
            )

    def _use_id(self, episode: int) -> None:
        """Note that an episode's id is used."""
        self._skipped.pop(episode, None)
        if episode >= self.next_episode:
            first = max(self.next_episode, episode - _MOST_SKIPPED)
            self._skipped.update(dict.fromkeys(range(first, episode)))
            while len(self._skipped) > _MOST_SKIPPED:
                del self._skipped[next(iter(self._skipped))]
            self.next_episode = episode + 1

    def _use(self, records: np.ndarray) -> None:
        """Keep the records in this memory."""
        self._records = records
        # The memory of the records and of room for more, as int64 one after the other.
        self.numbers = memoryview(cast("bytes", records.view(np.int64))).cast("B").cast("q")

    def _set_counters(self, counters: Counters) -> None:
        """Begin with the counters of an earlier process, all of whose ids are used."""
        self.next_row_id, self.next_episode, self.total_steps = counters
        self._oldest_new_episode = counters.next_episode

    def _enter(
        self,
        episode: int,
        stream: int,
        first_row: int,
        rows: int,
        end: int,
        row_id: int,
        segment: int,
        offset: int,
        nbytes: int,
        previous: int,
    ) -> None:
        """Add a record, and link it to the one at the position of the episode's chunk before."""
        head = first_row
        if previous >= 0:
            head = self._continue(previous)
        else:
            self.episodes += 1
        if self._length == len(self._records):
            self._use(_with_room(self._length, self._records))
        _RECORD.pack_into(
            *(self.numbers, self._length * _RECORD.size),
            *(episode, stream, first_row, rows, end),
            *(1, previous, head, row_id, rows, segment, offset, nbytes),
            *self._join_stream(stream, first_row, previous),
        )
        self._length += 1
        self.steps += rows - (first_row == 0)

    def _continue(self, position: int) -> int:
        """Let a chunk follow the one at a position; returns the first stored row of its episode."""
        numbers, begin = self.numbers, (position - self.base) * _WIDTH
        numbers[begin + _IS_TAIL] = 0
        if numbers[begin + _END] & _PENDING:
            # The pending last row no longer counts: the next chunk contains it again.
            rows = numbers[begin + _ROWS]
            numbers[begin + _ROWS] = rows - 1
            # The reset's row is no step, so a chunk of that row alone has none.
            self.steps -= rows > 1 or numbers[begin + _FIRST_ROW] > 0
        for counts in self._counts.values():  # the counts depend on is_tail
            counts.forget_from(position - self.base)
        return numbers[begin + _HEAD]

    def _join_stream(
        self, stream: int, first_row: int, previous: int
    ) -> tuple[int, int, int, int, int]:
        """Link the next chunk to the one before in its stream, unless rows between are missing."""
        position, before = self.base + self._length, self._newest.get(stream, -1)
        self._newest[stream] = position
        begin, numbers = (before - self.base) * _WIDTH, self.numbers
        if begin < 0 or numbers[begin + _END] & _LOST or (before != previous and first_row != 0):
            return -1, -1, 0, 0, int(first_row > 0)
        numbers[begin + _STREAM_NEXT] = position
        row = numbers[begin + _STREAM_ROW] + numbers[begin + _ROWS]
        return before, -1, row, numbers[begin + _STREAM_HEAD], numbers[begin + _STARTS_LATE]

    def _link(self) -> None:
        """Compute what follows from the order of the records, as `append` does one by one."""
        stream = self.records["stream"]
        order = np.argsort(stream, kind="stable")
        _link(self.records, order, self.base)
        stream = stream[order]
        newest = order[np.append(stream[1:] != stream[:-1], True)[: len(order)]]
        positions = (newest + self.base).tolist()
        self._newest = dict(zip(self.records["stream"][newest].tolist(), positions, strict=True))
        self.steps = int(_steps_of(self.records).sum())
        self.episodes = int(self.records["is_tail"].sum())


def _continues(chunk: ChunkInfo, before: ChunkInfo) -> bool:
    """True if a chunk continues the episode of the one before it in its stream; see `_link`."""
    next_row = before.first_row + before.stored_rows - (before.end & _PENDING != 0)
    return (
        chunk.episode == before.episode
        and chunk.first_row == next_row
        and not before.end & (_FINAL | _LOST)
    )


def _with_room(more: int, *parts: np.ndarray) -> np.ndarray:
    """A copy of records, and room for more."""
    roomy, end = np.empty(sum(map(len, parts)) + more, CHUNK), 0
    # As plain numbers: numpy copies a dtype of many fields one by one.
    numbers = roomy.view(np.int64)
    for part in parts:
        begin, end = end, end + len(part) * _WIDTH
        numbers[begin:end] = part.view(np.int64)
    return roomy


class _OpenEpisode(NamedTuple):
    """The newest episode of a stream, while its environment has not ended it."""

    episode: int
    position: int
    next_row: int
    is_pending: bool


def _open_after(chunk: _StoredRows, rows: int, position: int) -> _OpenEpisode:
    is_pending = int(chunk.end) & _PENDING != 0
    return _OpenEpisode(chunk.episode, position, chunk.first_row + rows - is_pending, is_pending)


def _new_steps(chunk: _StoredRows, rows: int, before: _OpenEpisode | None) -> int:
    """Env steps of a chunk: neither the reset's row nor a superseding row is a new one."""
    return rows - (chunk.first_row == 0 or (before is not None and before.is_pending))


def _steps_of(records: np.ndarray) -> np.ndarray:
    """Env steps [chunks] that count; the reset's row is no step."""
    steps: np.ndarray = np.maximum(0, records["rows"] - (records["first_row"] == 0))
    return steps


def _misplaced(chunk: _StoredRows, expected: int) -> str:
    return (
        f"chunk of episode {chunk.episode} begins with row {chunk.first_row}, "
        f"expected row {expected}: chunks must be added in order"
    )


def _link(records: np.ndarray, order: np.ndarray, base: int) -> None:
    """Compute the links between chunks; `order` are the records' indices, stream by stream."""
    episode, first_row, stored_rows, end = (
        records[name][order] for name in ("episode", "first_row", "stored_rows", "end")
    )
    is_pending = end & _PENDING != 0
    is_final = end & _FINAL != 0
    is_lost = end & _LOST != 0
    next_row = first_row + stored_rows - is_pending
    continues = np.zeros(len(order), np.bool_)
    continues[1:] = (
        (episode[1:] == episode[:-1])
        & (first_row[1:] == next_row[:-1])
        & ~(is_final | is_lost)[:-1]
        & ~is_lost[1:]
    )
    is_continued = np.append(continues[1:], False)[: len(order)]
    begin = np.maximum.accumulate(np.where(continues, 0, np.arange(len(order))))
    rows = np.where(is_lost, 0, stored_rows - (is_pending & is_continued))
    records["rows"][order] = rows
    records["is_tail"][order] = ~is_continued & ~is_lost
    records["previous"][order] = np.where(continues, base + np.roll(order, 1), -1)
    records["head"][order] = first_row[begin]
    _link_streams(records, order, continues, base)


def _link_streams(records: np.ndarray, order: np.ndarray, continues: np.ndarray, base: int) -> None:
    """Compute the links between the chunks of each stream."""
    # order: the records' indices, stream by stream. continues: [chunks] in that order: the chunk
    # continues the episode of the one before.
    stream, first_row, rows, end = (
        records[name][order] for name in ("stream", "first_row", "rows", "end")
    )
    is_lost = end & _LOST != 0
    joins = np.zeros(len(order), np.bool_)
    joins[1:] = (
        (stream[1:] == stream[:-1])
        & (continues[1:] | (first_row[1:] == 0))
        & ~(is_lost[1:] | is_lost[:-1])
    )
    begin = np.maximum.accumulate(np.where(joins, 0, np.arange(len(order))))
    rows_before = np.cumsum(rows) - rows
    is_joined = np.append(joins[1:], False)[: len(order)]
    records["stream_previous"][order] = np.where(joins, base + np.roll(order, 1), -1)
    records["stream_next"][order] = np.where(is_joined, base + np.roll(order, -1), -1)
    records["stream_row"][order] = rows_before - rows_before[begin]
    records["stream_head"] = 0
    records["stream_starts_late"][order] = first_row[begin] > 0


def _begin_episodes(kept: np.ndarray, base: int) -> None:
    """Let each episode begin with its first kept chunk: the one before was dropped."""
    firsts = np.flatnonzero((kept["previous"] >= 0) & (kept["previous"] < base))
    if not len(firsts):
        return
    rest, first = _matching(kept["episode"], kept["episode"][firsts])
    first = firsts[first]
    # A later chunk of the episode belongs to another run of rows if some between were lost.
    is_same = kept["head"][rest] == kept["head"][first]
    kept["head"][rest[is_same]] = kept["first_row"][first[is_same]]
    kept["previous"][firsts] = -1


def _begin_streams(kept: np.ndarray, base: int) -> None:
    """Let each stream begin with its first kept chunk: the one before was dropped."""
    before = kept["stream_previous"]
    firsts = np.flatnonzero((before >= 0) & (before < base))
    if not len(firsts):
        return
    streams = kept["stream"][firsts]
    rest, first = _matching(kept["stream"], streams)
    # Up to the next gap in the stream, where other rows begin.
    gap, of_stream = _matching(np.where(before < 0, kept["stream"], _NO_STREAM), streams)
    stop = np.full(len(firsts), len(kept))
    np.minimum.at(stop, of_stream, gap)
    is_before = rest < stop[first]
    rest, first = rest[is_before], firsts[first[is_before]]
    kept["stream_head"][rest] = kept["stream_row"][first]
    kept["stream_starts_late"][rest] = kept["first_row"][first] > 0
    kept["stream_previous"][firsts] = -1


def _matching(values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices [n] of values that are among some different ones, and which of those they are."""
    order = np.argsort(chosen)
    place = np.searchsorted(chosen, values, sorter=order)
    which = order[np.minimum(place, len(chosen) - 1)]
    index = np.flatnonzero(chosen[which] == values)
    return index, which[index]
