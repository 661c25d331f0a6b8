"""Copies runs of rows, of many episodes at once, into the arrays of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..base import native
from ..base.errors import StoreCorrupt
from ..spec.spec import Field
from ..storage.chunk_index import ChunkIndex, ChunkInfo
from ..storage.field_locator import DamagedChunk, FieldLocator
from ..storage.protocol import Storage
from .copies import CodedCopies, Copies, PlainCopies, ThreadShare

# A gather from one array takes microseconds for a whole batch; chunk by chunk it would take that
# for each row. Larger rows cost so much to copy that the difference does not matter.
_SMALL_ROW_BYTES = 64
_MAX_BYTES = 1 << 30

# The columns of the table that has a row for each chunk. A row takes 64 bytes: in a large store it
# is the memory that is read which takes time.
FIRST_ROW = 0  # as in the record of the chunk
_ROWS = 1
LAST = 2  # its last row, where the episode ends with it, else -1
ROW_ID = 3
_SEGMENT = 4
PREVIOUS = 5  # index of the chunk before in the stream, if there is one
SLOT = 6  # of its first row
_IS_KNOWN = 7  # 1 once its fields were located, and the small ones decoded
_COPIED = [
    ChunkInfo._fields.index(name)
    for name in ("first_row", "rows", "is_tail", "row_id", "segment", "stream_previous")
]


_SEGMENT_NUMBERS = 13  # of a segment, in the core: five of `Segments.places`, and its line
_MOST_SEGMENTS = 4  # of a run; those of more are found by numpy


class Segments(NamedTuple):
    """Runs of consecutive rows of a stream, each segment in one chunk."""

    chunk: np.ndarray  # [S] index of the chunk
    at: np.ndarray  # [S, 8] the chunk's row in the table
    start: np.ndarray  # [S] first row in it
    rows: np.ndarray  # [S] how many rows
    target: np.ndarray  # [S] row of the output that the first one goes to, in rising order
    # a run takes several segments, so that there are more of these than runs
    is_split: bool = False
    # [5, S] as of `CodedCopies`, with the chunk in place of the offset, where they are at hand
    places: np.ndarray | None = None


class RowReader:
    """Gathers rows; its results are valid while the storage's lock is held."""

    # Rows of small fields are decoded when their chunk is first used, and kept in one array for
    # each field, by *slots*, which count the stored rows, so that a chunk has consecutive ones. Of
    # integers as many bytes are kept as the stored chunks keep: an Atari row takes two or three.

    def __init__(
        self,
        storage: Storage,
        threads: int | None,
        cache_bytes: int,  # of patches of stores on disk
    ) -> None:
        self._storage = storage
        self._fields: Mapping[str, tuple[int, Field, np.dtype[np.generic], int]] = {
            field.name: (place, field, field.numpy_dtype, field.row_bytes)
            for place, field in enumerate(storage.spec.fields)
        }
        self._of_small = [
            (place, field)
            for place, field in enumerate(storage.spec.fields)
            if field.row_bytes <= _SMALL_ROW_BYTES
        ]
        self._small_bytes = sum(field.row_bytes for _, field in self._of_small)
        self._places = FieldLocator(storage, cache_bytes)
        self.share = ThreadShare(threads)
        self._index = storage.index
        self._extent: tuple[int, int, int, int] | None = None
        self._forget(storage.generation, self._index.base)

    def _forget(self, generation: int, base: int) -> None:
        self._generation, self._base = generation, base
        self._table: np.ndarray = np.zeros((0, 8), np.int64)
        self._columns: dict[str, np.ndarray] = {}
        self._chunks = self._next_slot = self._size = 0
        self._small = frozenset(field.name for _, field in self._of_small)

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that rows of small fields, and patches of stores on disk, take."""
        cached = self._places.reader.cache.nbytes
        return cached + sum(column.nbytes for column in self._columns.values())

    def follow(self) -> ChunkIndex:
        """Update for chunks that were added, evicted, lost or moved; returns the index."""
        storage = self._storage
        index = storage.index
        extent = storage.generation, index.losses, index.base, len(index)
        if extent != self._extent or index is not self._index:
            self._places.follow()
            self._update(index, extent)
        return index

    def close(self) -> None:
        """End the threads, and forget all rows and memory."""
        self.share.close()
        self._places.close()
        self._extent = None
        self._forget(self._storage.generation, self._index.base)

    def is_small(self, name: str) -> bool:
        """True if `take` copies the rows of this field; else `plan` does."""
        return name in self._small

    def locate(
        self,
        chunk: np.ndarray,  # [B] index of some chunk of the same episode, or stream
        row: np.ndarray,  # [B] the row, counted in that
        *,
        is_across: bool = False,  # it is counted in the stream
        is_exact: bool = False,  # these chunks hold the rows
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the chunks that hold rows; for a missing row, the last chunk of its episode."""
        # Returns the index of the chunk [B], the row in it [B], and its row in the table [B, 8].
        at = self._table.take(chunk, 0)
        place = row - (self._stream_rows(chunk) if is_across else at[:, FIRST_ROW])
        if is_exact:
            return chunk, place, at
        # As an unsigned number, a row before the chunk is far behind it: one comparison.
        is_there = place.view(np.uint64) < at[:, _ROWS].view(np.uint64)
        if np.count_nonzero(is_there) == len(is_there):
            return chunk, place, at
        of, chunk = np.flatnonzero(~is_there), chunk.copy()
        chunk[of], place[of] = self._nearest(chunk[of], row[of], is_across=is_across)
        return chunk, place, self._table.take(chunk, 0)

    def tails(self, chunk: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Index [B] of the last stored chunks of episodes, and their rows in the table [B, 8]."""
        # chunk: [B] index of some chunk of each episode. at: [B, 8] their rows in the table.
        of = (at[:, LAST] < 0).nonzero()[0]
        if not len(of):
            return chunk, at
        following, chunk, at = self._index.records["stream_next"], chunk.copy(), at.copy()
        while len(of):
            chunk[of] = step = following[chunk[of]] - self._base
            at[of] = rows = self._table.take(step, 0)
            of = of[rows[:, LAST] < 0]
        return chunk, at

    def steps(
        self,
        chunk: np.ndarray,  # [B] as those of `Drawn`
        start: np.ndarray,  # [B]
        n: int,  # steps that each transition has at most
        frames: int,  # of the stacks before its ends; 0 if they are not wanted
        *,
        is_joined: bool,  # one stack for both, with a frame more
    ) -> tuple[np.ndarray, np.ndarray, bool, tuple[Segments, np.ndarray] | None] | None:
        """The rows of transitions, in one call of the core; None where numpy must find them."""
        # Returns eight numbers of each [8, B] (for its last row the index of the chunk, the row in
        # that, and the slot; the same for its first one; the steps between them, and the id), the
        # flags terminated, truncated and cut [3, B], whether one is set, and the frames.
        if native.core is None:
            return None
        batch = len(start)
        runs = (1 if is_joined else 2) * batch if frames else 0
        found, flags = np.empty((8, batch), np.int64), np.empty((3, batch), np.bool_)
        # Five numbers and a line of each segment, of which a row may have one of its own.
        room = np.empty(runs * (1 + _SEGMENT_NUMBERS * (frames + is_joined)), np.int64)
        result = native.core.find_steps(
            *(self._table, self._index.numbers, self._base, chunk, start),
            *(n, frames, is_joined),
            *(found, flags, room),
        )
        if result is None:
            return None
        count, has_ended = result
        if not frames:
            return found, flags, has_ended, None
        return found, flags, has_ended, (_segments_in(room[runs:], count, runs), room[:runs])

    def lines(self, chunk: np.ndarray) -> np.ndarray:
        """The rows of chunks in the table, [n, 8]."""
        return self._table.take(chunk, 0)

    def find(self, chunk: np.ndarray, at: np.ndarray) -> None:
        """Locate the fields of chunks that were not read yet, and decode their small ones."""
        # chunk: [n] indices. at: [n, 8] their rows in the table.
        is_known = at[:, _IS_KNOWN]
        if np.count_nonzero(is_known) < len(is_known):
            for each in np.unique(chunk[is_known == 0]).tolist():
                self._decode(each)

    def segments(
        self,
        chunk: np.ndarray,  # [R] index of the chunk that holds the run's last row
        place: np.ndarray,  # [R] that row in the chunk
        at: np.ndarray,  # [R, 8] the chunk's row in the table
        rows: np.ndarray,  # [R] how many rows
        target: np.ndarray,  # [R] row of the output that the first one goes to
    ) -> Segments:
        """Find the chunks of runs of rows, and their fields."""
        if native.core is not None:
            room = np.empty(_MOST_SEGMENTS * _SEGMENT_NUMBERS * len(chunk), np.int64)
            count = native.core.find_runs(
                *(self._table, self._index.numbers, chunk, place, rows, target, room)
            )
            if count is not None:
                return _segments_in(room, count, len(chunk))
        found = Segments(chunk, at, place - rows + 1, rows, target)
        of = (found.start < 0).nonzero()[0]
        if len(of):
            found = self._split(found, of)
        self.find(found.chunk, found.at)
        return found

    def slots(self, segments: Segments, size: int) -> np.ndarray:
        """Indices of the rows in the columns, [size] by output row; any in rows without a run."""
        return spread(segments.at[:, SLOT] + segments.start, segments, size)

    def take(self, name: str, slots: np.ndarray, out: np.ndarray) -> None:
        """Copy rows of a small field to ``out`` [n, ...], of any dtype that holds the values."""
        # slots: [n] indices in the column; those out of range give any row.
        column = self._columns[name]
        if column.dtype == out.dtype:
            column.take(slots, 0, out, "clip")  # clip: no copy of `out` is made
        else:
            out[...] = column.take(slots, 0, mode="clip")

    def rows(self, name: str, segments: Segments, size: int) -> np.ndarray:
        """Rows of a field in new memory, [size, ...]; rows without a run are undefined."""
        if name in self._small:
            found = self._columns[name].take(self.slots(segments, size), 0, mode="clip")
            dtype = self._fields[name][2]
            return found if found.dtype == dtype else found.astype(dtype)
        out = self.empty(name, size)
        if out.size:
            self.plan(name, segments, out).make(out, self.share)
        return out

    def empty(self, name: str, size: int) -> np.ndarray:
        """New memory for rows of a field, [size, ...]."""
        _, field, dtype, _ = self._fields[name]
        return np.empty((size, *field.shape), dtype)

    def pick(
        self,
        name: str,
        chunk: np.ndarray,  # [B] indices
        row: np.ndarray,  # [B] the rows in them
        slots: np.ndarray,  # [B] of the rows
    ) -> np.ndarray:
        """One row each of a field, [B, ...]; the chunks were found."""
        if name in self._small:
            found = self._columns[name].take(slots, 0)
            dtype = self._fields[name][2]
            return found if found.dtype == dtype else found.astype(dtype)
        batch = len(row)
        ones = np.ones(batch, np.int64)
        segments = Segments(chunk, self.lines(chunk), row, ones, np.arange(batch))
        return self.rows(name, segments, batch)

    def field_rows(self, name: str, chunk: np.ndarray, row: np.ndarray) -> np.ndarray:
        """One row each of a field, [B, ...]."""
        at = self.lines(chunk)
        self.find(chunk, at)
        return self.pick(name, chunk, row, at[:, SLOT] + row)

    def plan(self, name: str, segments: Segments, out: np.ndarray, columns: int = 0) -> Copies:
        """Plan the copies of a large field to ``out``, ``[rows, ...]``."""
        # columns: for an output of [columns, B] rows; see `PlainCopies`.
        number, field, dtype, row_bytes = self._fields[name]
        chunk, at, start, rows, target, *_ = segments
        places, index = self._places, self._index
        sources = places.buffers(chunk, at[:, _SEGMENT])
        offsets = places.offsets[number].take(chunk)
        kinds: list[int] = places.kinds[number].take(chunk).tolist()
        first, is_alike = places.codings[kinds[0]], kinds.count(kinds[0]) == len(kinds)
        if is_alike and not first.block_rows and first.dtype == dtype == out.dtype:
            return PlainCopies(
                sources,
                (offsets + start * row_bytes).tolist(),
                (target * row_bytes).tolist(),
                (rows * row_bytes).tolist(),
                columns,
            )
        if segments.places is not None:
            where = segments.places.copy()
            where[0] = offsets
        else:
            found = (offsets, index.records["stored_rows"][chunk], start, rows, target)
            where = np.concatenate(found).reshape(len(found), -1)
        codings = [first] if is_alike else [places.codings[kind] for kind in kinds]
        return CodedCopies(
            *(field, dtype, places.reader, sources, codings, where),
            *(number, places.generation, chunk, index.base, columns),
        )

    def _nearest(
        self, chunk: np.ndarray, row: np.ndarray, *, is_across: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Walk to the chunks of rows; for a missing row, to the last one before it."""
        records = self._index.records
        while True:
            at = self._table.take(chunk, 0)
            place = row - (self._stream_rows(chunk) if is_across else at[:, FIRST_ROW])
            rows, following = at[:, _ROWS], records["stream_next"][chunk]
            is_after = place >= rows
            if not (is_after | (place < 0)).any():
                return chunk, place
            is_last = following < 0 if is_across else at[:, LAST] >= 0
            row = np.where(is_after & is_last, row - place + rows - 1, row)
            step = np.where(is_after, following - self._base, at[:, PREVIOUS])
            chunk = np.where(is_after & ~is_last | (place < 0), step, chunk)

    def _stream_rows(self, chunk: np.ndarray) -> np.ndarray:
        """The first rows of chunks, counted in their streams."""
        rows: np.ndarray = self._index.records["stream_row"][chunk]
        return rows

    def _split(self, runs: Segments, of: np.ndarray) -> Segments:
        """Walk back along the streams until every run has its rows."""
        # of: the numbers of the runs that begin before their chunk.
        chunk, at, start, need, target, *_ = runs
        begin = np.maximum(start, 0)
        lack = begin - start
        chunks, begins, rows, targets = [chunk], [begin], [need - lack], [target + lack]
        while len(of):
            at, need, target = at.take(of, 0), lack.take(of), target.take(of)
            chunk = at[:, PREVIOUS]
            at = self._table.take(chunk, 0)
            start = at[:, _ROWS] - need
            begin = np.maximum(start, 0)
            lack = begin - start
            chunks.append(chunk)
            begins.append(begin)
            rows.append(need - lack)
            targets.append(target + lack)
            of = lack.nonzero()[0]
        found = np.concatenate(chunks + begins + rows + targets).reshape(4, -1)
        if np.count_nonzero(found[2]) < len(found[2]):  # a chunk whose only row was superseded
            found = found[:, found[2] > 0]
        chunk, start, need, target = found.take(found[3].argsort(kind="stable"), 1)
        return Segments(chunk, self._table.take(chunk, 0), start, need, target, True)

    def _decode(self, chunk: int) -> None:
        """Locate the fields of a chunk, and decode its small ones."""
        places, position = self._places, chunk + self._base
        record = self._index.record(position)
        buffer, offsets, kinds = places.find(position, record)
        if self._small:
            rows = record.stored_rows
            begin = int(self._table[chunk, SLOT])
            for number, field in self._of_small:
                coding = places.codings[kinds[number]]
                column = self._columns.get(field.name)
                if column is None or column.dtype != coding.dtype:
                    column = self._column(field, coding.dtype)
                out = column[begin : begin + rows]
                try:
                    places.reader.copy_rows(buffer, coding, offsets[number], rows, 0, out)
                except StoreCorrupt as error:
                    raise DamagedChunk(position, error, record) from error
        self._table[chunk, _IS_KNOWN] = 1

    def _column(self, field: Field, dtype: np.dtype[np.generic]) -> np.ndarray:
        """The column of a field, wide enough for values of a dtype."""
        column = self._columns.get(field.name)
        if column is None:
            column = np.zeros((self._size, *field.shape), dtype)
        elif not np.can_cast(dtype, column.dtype, "safe"):
            column = column.astype(np.result_type(dtype, column.dtype))
        self._columns[field.name] = column
        return column

    def _update(self, index: ChunkIndex, extent: tuple[int, int, int, int]) -> None:
        """Update the table, and make room in the columns."""
        generation, losses, base, chunks = extent
        if generation != self._generation or base < self._base:
            self._forget(generation, base)
        records = index.records
        known, gone = self._chunks, base - self._base
        if gone:
            self._table = self._table[gone:].copy()
            self._chunks, self._base = max(0, known - gone), base
        if gone or index is not self._index or self._extent is None or losses != self._extent[1]:
            changed = np.arange(chunks)
        else:  # what is added changes no chunks but those that it continues
            before = records["stream_previous"][known:] - base
            changed = np.append(before[before >= 0], np.arange(known, chunks))
        if chunks > len(self._table):
            self._table = np.pad(self._table, ((0, 2 * chunks - len(self._table)), (0, 0)))
        table = self._table
        numbers = np.ndarray((chunks, len(ChunkInfo._fields)), np.int64, records)
        copied = numbers.take(changed, 0)[:, _COPIED]  # with "is_tail" in place of LAST
        copied[:, LAST] = copied[:, LAST] * copied[:, _ROWS] - 1
        copied[:, PREVIOUS] -= base
        table[changed, : len(_COPIED)] = copied
        new_rows = records["stored_rows"][self._chunks :]
        stops = self._next_slot + np.cumsum(new_rows)
        table[self._chunks : chunks, SLOT] = stops - new_rows
        if len(new_rows):
            self._next_slot = int(stops[-1])
        self._chunks, self._index, self._extent = chunks, index, extent
        self._make_room()

    def _make_room(self) -> None:
        """Extend the columns to the newest slot."""
        if self._next_slot <= self._size:
            return
        table = self._table[: self._chunks]
        first = int(table[0, SLOT])
        table[:, SLOT] -= first
        self._next_slot -= first
        self._size = max(1024, 2 * self._next_slot)
        kept, self._columns = self._columns, {}
        most = _MAX_BYTES // max(1, self._small_bytes)
        if self._size > most:
            # With less room than a quarter, a full replay would move its columns too often.
            if most < 1.25 * self._next_slot:
                self._small = frozenset()
                return
            self._size = most
        if not self._small:  # nothing was decoded
            table[:, _IS_KNOWN] = 0
        self._small = frozenset(field.name for _, field in self._of_small)
        for name, column in kept.items():
            moved = np.zeros((self._size, *column.shape[1:]), column.dtype)
            old = column[first:][: self._size]
            moved[: len(old)] = old
            self._columns[name] = moved


def _segments_in(room: np.ndarray, count: int, runs: int) -> Segments:
    """Segments as the compiled core leaves them, of some runs."""
    stop = 5 * count
    places = room[:stop].reshape(5, count)
    chunk, _, start, rows, target = places
    at = room[stop : stop + 8 * count].reshape(count, 8)
    return Segments(chunk, at, start, rows, target, count > runs, places)


def spread(first: np.ndarray, segments: Segments, size: int) -> np.ndarray:
    """Number the rows of each segment upwards from ``first`` [S]; any numbers elsewhere."""
    # The segments are in the order of the output, which has `size` rows.
    rows, target = segments.rows, segments.target
    count = len(rows)
    length = size // count
    if not segments.is_split and count * length == size == length * np.count_nonzero(
        rows == length
    ):
        # Equally long runs that fill the output.
        found: np.ndarray = (first[:, None] + np.arange(length)).ravel()
        return found
    borders = np.empty(count + 1, np.int64)
    borders[:count], borders[0], borders[count] = target, 0, size
    numbers: np.ndarray = np.arange(size) + (first - target).repeat(borders[1:] - borders[:-1])
    return numbers
