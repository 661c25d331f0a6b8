"""Locates the fields of stored chunks in memory, and copies consecutive rows of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from ..base.errors import NotEnoughData, StoreCorrupt
from .chunk_codec import Buffer, ChunkDecoder, Coding
from .chunk_index import ChunkInfo
from .protocol import Storage

# Before Python 3.13 each file that is mapped holds a file descriptor.
_MAX_SEGMENTS = 512


class DamagedChunk(StoreCorrupt):
    """A chunk is damaged."""

    def __init__(
        self,
        position: int,
        error: StoreCorrupt,
        record: ChunkInfo | None = None,  # of the chunk, if the error does not name it
    ) -> None:
        what = str(error)
        if record is not None:
            last_row = record.first_row + record.stored_rows - 1
            what = (
                f"rows {record.first_row} to {last_row} of episode {record.episode} cannot be "
                f"read: {what}; run stepwell verify to learn in which file they are"
            )
        super().__init__(what)
        self.position = position


class FieldLocator:
    """Finds the offset and coding of a chunk's fields, and remembers them: ten bytes a field."""

    # Chunks are addressed by *index*: their position less `base`.

    def __init__(self, storage: Storage, cache_bytes: int = 0) -> None:
        self._storage = storage
        self.reader = ChunkDecoder(storage.spec, cache_bytes)
        self.codings: list[Coding] = []
        self._numbers: dict[Coding, int] = {}
        self.generation = self.base = 0
        self.is_known: np.ndarray
        self.offsets: np.ndarray
        self.kinds: np.ndarray
        self._buffers: dict[int, memoryview] = {}
        self._forget()

    def follow(self) -> None:
        """Follow the storage: chunks that were added, evicted or moved to other positions."""
        generation, index = self._storage.generation, self._storage.index
        if generation != self.generation or index.base < self.base:
            self._forget()
        gone = index.base - self.base
        if gone:
            self._buffers = {}
            self.is_known = self.is_known[gone:].copy()
            self.offsets, self.kinds = self.offsets[:, gone:].copy(), self.kinds[:, gone:].copy()
            self.base = index.base
        if len(index) > len(self.is_known):
            self._grow(2 * len(index))

    def close(self) -> None:
        """Forget all memory: a closed store's files are then neither mapped nor open."""
        self._forget()

    def find(self, position: int, record: ChunkInfo) -> tuple[memoryview, list[int], list[int]]:
        """The memory of a chunk, and the offset and the number of the coding of each field."""
        # NotEnoughData means that it was evicted since `follow`.
        index = position - self.base
        if index < 0:
            raise NotEnoughData(
                f"chunk {position} was evicted while its rows were read: expected no writes "
                f"meanwhile, got {self.base} as the oldest chunk; start again"
            )
        buffer = self._buffers.get(record.segment)
        if buffer is not None and self.is_known[index]:
            return buffer, self.offsets[:, index].tolist(), self.kinds[:, index].tolist()
        try:
            payload, origin = self._storage.payload(position)
        except StoreCorrupt as error:
            raise DamagedChunk(position, error) from error
        buffer = memoryview(cast("bytes", payload))
        codings, offsets = map(
            list, zip(*self.reader.fields(buffer, origin, record.stored_rows), strict=True)
        )
        numbers = self._numbers
        for coding in codings:
            if coding not in numbers:
                # Two threads may assign two, which is harmless.
                self.codings.append(coding)
                numbers[coding] = self.codings.index(coding)
        kinds = list(map(numbers.__getitem__, codings))
        self.offsets[:, index], self.kinds[:, index] = offsets, kinds
        self.is_known[index] = True  # last, for other threads
        if buffer.readonly and len(self._buffers) >= _MAX_SEGMENTS:  # a file
            self._buffers = {}
        self._buffers[record.segment] = buffer
        return buffer, offsets, kinds

    def buffers(self, indices: np.ndarray, segments: np.ndarray) -> list[memoryview]:
        """The memory of chunks, by index [n] and segment [n], all of which were found before."""
        try:
            return list(map(self._buffers.__getitem__, segments.tolist()))
        except KeyError:  # forgotten: there were many
            positions, index = (indices + self.base).tolist(), self._storage.index
            return [self.find(position, index.record(position))[0] for position in positions]

    def _forget(self) -> None:
        self.generation, self.base = self._storage.generation, self._storage.index.base
        self._buffers = {}
        self.is_known = np.zeros(0, np.bool_)
        fields = len(self._storage.spec.fields)
        self.offsets, self.kinds = np.zeros((fields, 0), np.int64), np.zeros((fields, 0), np.int16)

    def _grow(self, chunks: int) -> None:
        """Make room for more chunks."""
        more = chunks - len(self.is_known)
        self.is_known = np.pad(self.is_known, (0, more))
        self.offsets = np.pad(self.offsets, ((0, 0), (0, more)))
        self.kinds = np.pad(self.kinds, ((0, 0), (0, more)))


class RowCopier(FieldLocator):
    """Copies consecutive rows of an episode out of the chunks that hold them."""

    def metadata(self, position: int) -> Mapping[str, object]:
        """The metadata of a chunk's episode."""
        try:
            return self._storage.metadata(position)
        except StoreCorrupt as error:
            raise DamagedChunk(position, error) from error

    def copy(
        self,
        position: int,
        record: ChunkInfo,
        begin: int,  # first row, counted in the episode
        stop: int,  # row after the last
        # fields by their number in the Spec, each with memory for the rows
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> tuple[int, ChunkInfo]:
        """Copy rows ``begin .. stop`` of an episode, of which the last is in the given chunk."""
        # Returns position and record of the chunk that holds the first row.
        while True:
            first_row = record.first_row
            if stop > first_row:  # not where the chunk's only row was superseded
                start = max(begin - first_row, 0)
                rows = slice(first_row + start - begin, stop - begin)
                self._copy(position, record, start, rows, targets)
            if begin >= first_row:
                return position, record
            stop, position = first_row, record.previous
            record = self._storage.index.record(position)

    def _copy(
        self,
        position: int,
        record: ChunkInfo,
        start: int,
        rows: slice,
        targets: Sequence[tuple[int, np.ndarray]],
    ) -> None:
        """Copy rows of one chunk, from its row ``start`` on."""
        buffer, offsets, kinds = self.find(position, record)
        for place, out in targets:
            coding = self.codings[kinds[place]]
            try:
                self.reader.copy_rows(
                    buffer, coding, offsets[place], record.stored_rows, start, out[rows]
                )
            except StoreCorrupt as error:
                raise DamagedChunk(position, error, record) from error


def read_chunks(
    storage: Storage, decoder: ChunkDecoder, chunks: np.ndarray, name: str
) -> np.ndarray:
    """The rows of one field of many chunks that count, one after the other: ``[rows, *shape]``."""
    # Faster than `RowCopier` for a small field of many short chunks, of which nothing is
    # remembered. The storage's lock is held. chunks: [n] indices of chunks with rows.
    index, field = storage.index, storage.spec[name]
    number = storage.spec.names.index(name)
    rows = index.records["rows"][chunks]
    stored_rows = index.records["stored_rows"][chunks]
    out = np.empty((int(rows.sum()), *field.shape), field.numpy_dtype)
    origins = np.empty(len(chunks), np.int64)
    buffers: list[Buffer] = []
    begins: list[int] = []  # of chunks that follow each other in the same memory
    for k, position in enumerate((chunks + index.base).tolist()):
        try:
            buffer, origins[k] = storage.payload(position)
        except StoreCorrupt as error:
            raise DamagedChunk(position, error) from error
        if not buffers or buffers[-1] is not buffer:
            buffers.append(buffer)
            begins.append(k)
    stops = np.append(0, np.cumsum(rows))
    begins.append(len(chunks))
    for buffer, (begin, stop) in zip(buffers, pairwise(begins), strict=True):
        those = slice(begin, stop)
        part = out[stops[begin] : stops[stop]]
        decoder.read_many(buffer, origins[those], stored_rows[those], rows[those], number, part)
    return out
