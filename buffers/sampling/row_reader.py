"""Copies runs of rows, of many episodes at once, into the arrays of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepwell.buffers.sampling.copies import CodedCopies, Copies, PlainCopies, ThreadShare
from stepwell.buffers.sampling.small_field_cache import SmallFieldCache
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.field_locator import FieldLocator
from stepwell.buffers.storage.protocol import Storage

__all__ = ["RowReader", "RowRefs", "Runs", "Segments", "chunk_of", "spread"]

_CACHE_BYTES = 64 << 20  # deltas of some 200,000 frames of Pong


class Runs(NamedTuple):
    """Runs of consecutive rows of a stream, and the consecutive output rows of each.

    Args:
        chunk: [R] index of the chunk that holds the run's last row.
        stop: [R] row of that chunk after the last.
        rows: [R] how many rows.
        target: [R] row of the output that the first one goes to.
    """

    chunk: np.ndarray
    stop: np.ndarray
    rows: np.ndarray
    target: np.ndarray


class Segments(NamedTuple):
    """The same rows, each segment in one chunk.

    Args:
        chunk: [S] index of the chunk.
        start: [S] first row in it.
        rows: [S] how many rows.
        target: [S] row of the output that the first one goes to.
        first_chunk: [R] for each run the index of the chunk that holds its first row.
        first_start: [R] that row in the chunk.
    """

    chunk: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    target: np.ndarray
    first_chunk: np.ndarray
    first_start: np.ndarray


class RowRefs(NamedTuple):
    """Single rows.

    Args:
        chunk: [B] index of the chunk of each.
        row: [B] index of the row in the chunk.
        slots: [B] index in the columns of the small fields.
    """

    chunk: np.ndarray
    row: np.ndarray
    slots: np.ndarray


class RowReader:
    """Gathers rows; its results are valid while the storage's lock is held.

    Args:
        storage: The storage of the chunks.
        threads: Threads that copy and decompress; see `ThreadShare`.
    """

    def __init__(self, storage: Storage, threads: int | None) -> None:
        self._storage = storage
        self._fields = {
            field.name: (place, field, field.numpy_dtype, field.row_bytes)
            for place, field in enumerate(storage.spec.fields)
        }
        self._extent: tuple[int, int, int] | None = None
        self._places = FieldLocator(storage, _CACHE_BYTES)
        self._columns = SmallFieldCache(storage, self._places)
        self._share = ThreadShare(threads)

    def follow(self) -> None:
        """Update for chunks that were added, evicted or moved to other positions."""
        index = self._storage.index
        extent = (self._storage.generation, index.base, len(index))
        if extent != self._extent:
            self._places.follow()
            self._columns.follow()
            self._extent = extent

    def close(self) -> None:
        """End the threads."""
        self._share.close()

    def is_small(self, name: str) -> bool:
        """True if `take` copies the rows of this field; else `plan` and `copy` do."""
        return name in self._columns.names

    def segments(self, runs: Runs) -> Segments:
        """Find the chunks of runs of rows, and their fields.

        Raises:
            DamagedChunk: The bytes of a chunk are damaged.
        """
        index = self._storage.index
        found = _resolve(runs, index.records, index.base)
        self._find(found.chunk)
        return found

    def slots(self, segments: Segments, size: int) -> np.ndarray:
        """Indices of the rows in the columns, [size] by output row; 0 in rows without a run."""
        begin = self._columns.slots(segments.chunk, segments.start)
        count = segments.rows
        rows = int(count[0])
        is_whole = len(count) == len(segments.first_chunk)
        if is_whole and len(count) * rows == size and (count == rows).all():
            # The usual case: no run is split, and equally long runs fill the output in order.
            found: np.ndarray = (begin[:, None] + np.arange(rows)).ravel()
            return found
        return spread(begin, segments, np.zeros(size, np.int64))

    def take(self, name: str, slots: np.ndarray, out: np.ndarray) -> None:
        """Copy rows of a small field to ``out``, [n, ...] of any dtype that holds the values."""
        self._columns.take(name, slots, out)

    def rows(self, name: str, segments: Segments, size: int) -> np.ndarray:
        """Rows of a field in new memory, [size, ...]; rows without a run are undefined."""
        if self.is_small(name):
            return self._columns.rows(name, self.slots(segments, size))
        _, field, dtype, _ = self._fields[name]
        out = np.empty((size, *field.shape), dtype)
        self.copy([(self.plan(name, segments, out), out)])
        return out

    def refs(self, index: np.ndarray, row: np.ndarray) -> RowRefs:
        """Find one row of each of some chunks.

        Args:
            index: [B] indices of the chunks.
            row: [B] the rows in them.

        Raises:
            DamagedChunk: The bytes of a chunk are damaged.
        """
        self._find(index)
        return RowRefs(index, row, self._columns.slots(index, row))

    def pick(self, name: str, refs: RowRefs) -> np.ndarray:
        """One row each of a field, [B, ...]."""
        if self.is_small(name):
            return self._columns.rows(name, refs.slots)
        index, row, _ = refs
        batch = len(index)
        ones = Segments(index, row, np.ones(batch, np.int64), np.arange(batch), index, row)
        return self.rows(name, ones, batch)

    def plan(self, name: str, segments: Segments, out: np.ndarray, columns: int = 0) -> Copies:
        """Plan the copies of a large field.

        Args:
            name: The field.
            segments: The rows.
            out: Output of the copies, ``[rows, ...]``.
            columns: For an output of ``[columns, B]`` rows, columns; see `PlainCopies`.
        """
        place, field, dtype, row_bytes = self._fields[name]
        chunk, start, rows, target = segments[:4]
        records, places = self._storage.index.records, self._places
        sources = places.buffers(chunk, records["segment"][chunk])
        offsets, kinds = places.offsets[place].take(chunk), places.kinds[place].take(chunk)
        first = places.codings[kinds[0]]
        is_plain = not first.block_rows and first.dtype == dtype == out.dtype
        if is_plain and np.count_nonzero(kinds == kinds[0]) == len(kinds):
            return PlainCopies(
                sources,
                (offsets + start * row_bytes).tolist(),
                (target * row_bytes).tolist(),
                (rows * row_bytes).tolist(),
                columns,
            )
        found = (offsets, records["stored_rows"][chunk], start, rows, target)
        codings = [places.codings[kind] for kind in kinds.tolist()]
        where = list(zip(*(values.tolist() for values in found), strict=True))
        base = self._storage.index.base
        return CodedCopies(field, places.reader, sources, codings, where, chunk, base, columns)

    def copy(self, copies: Sequence[tuple[Copies, np.ndarray]]) -> None:
        """Make copies, without the storage's lock.

        Args:
            copies: Each with its output, ``[rows, ...]`` and C-contiguous.
        """
        for each, out in copies:
            if out.size:  # empty rows need no copying
                each.make(out, self._share)

    def _find(self, indices: np.ndarray) -> None:
        """Locate the fields of chunks that were not read yet, and decode their small ones."""
        chunk_index = self._storage.index
        for index in self._columns.unknown(indices).tolist():
            self._columns.decode(index, chunk_index.record(index + chunk_index.base))


def spread(first: np.ndarray, segments: Segments, out: np.ndarray) -> np.ndarray:
    """Number the rows of each segment upwards from a first number.

    Args:
        first: [S] the first row's number.
        segments: The segments, with their output rows.
        out: [rows] numbers; the rows of segments are overwritten.
    """
    rows = segments.rows
    place = np.arange(int(rows.sum())) - np.repeat(np.cumsum(rows) - rows, rows)
    out[np.repeat(segments.target, rows) + place] = np.repeat(first, rows) + place
    return out


def chunk_of(
    chunk_index: ChunkIndex, index: np.ndarray, row: np.ndarray, is_across: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the chunks that hold rows; for a missing row, the last chunk of its episode.

    Args:
        chunk_index: The index of the stored chunks.
        index: [B] index of some chunk of the same episode, or stream.
        row: [B] the row, counted in that.
        is_across: It is counted in the stream.

    Returns:
        Index of the chunk [B], place of the row in the chunk [B], and the chunks' records [B].
    """
    base = chunk_index.base
    name = "stream_row" if is_across else "first_row"
    while True:
        at = chunk_index.at(index)
        place, rows = row - at[name], at["rows"]
        # As an unsigned number, a row before the chunk is far behind it: one comparison.
        if np.count_nonzero(place.view(np.uint64) < rows.view(np.uint64)) == len(place):
            return index, place, at
        is_after = place >= rows
        is_last = (at["stream_next"] < 0) if is_across else (at["is_tail"] == 1)
        row = np.where(is_after & is_last, row - place + rows - 1, row)
        step = np.where(is_after, at["stream_next"], at["stream_previous"]) - base
        index = np.where(is_after & ~is_last | (place < 0), step, index)


def _resolve(runs: Runs, records: np.ndarray, base: int) -> Segments:
    """Walk back along the streams until every run has its rows."""
    index, stop, need, target = runs
    start = stop - need
    if not np.count_nonzero(start < 0):  # mostly
        return Segments(index, start, need, target, index, start)
    count = np.minimum(need, stop)
    parts = [(index, stop - count, count, target + need - count)]
    first_chunk, first_start = index, stop - count
    need = need - count
    of = np.flatnonzero(need)
    if len(of):
        first_chunk, first_start = first_chunk.copy(), first_start.copy()
        index, need, target = index[of], need[of], target[of]
    while len(of):
        index = records["stream_previous"][index] - base
        stop = records["rows"][index]
        count = np.minimum(need, stop)
        parts.append((index, stop - count, count, target + need - count))
        first_chunk[of], first_start[of] = index, stop - count
        need = need - count
        more = need > 0
        of, index, need, target = of[more], index[more], need[more], target[more]
    chunks, starts, rows, targets = map(np.concatenate, zip(*parts, strict=True))
    # A chunk whose only row was superseded has no rows to copy.
    some = np.flatnonzero(rows)
    return Segments(chunks[some], starts[some], rows[some], targets[some], first_chunk, first_start)
