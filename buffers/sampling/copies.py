"""Copies of large rows, planned under the storage's lock and made without it.

A plan refers to the memory itself, so it stays valid when the chunks are evicted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.sampling.thread_share import ThreadShare
from stepwell.buffers.spec import Field
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, Coding
from stepwell.buffers.storage.field_locator import DamagedChunk

__all__ = ["CodedCopies", "Copies", "PlainCopies"]

# Longer stretches are copied by numpy, which lets other threads run; shorter ones by a memoryview,
# which begins sooner.
_LONG_BYTES = 1 << 17


class PlainCopies(NamedTuple):
    """Stretches of bytes that are stored as they are handed out.

    Args:
        sources: [S] memory.
        begins: [S] offset of each stretch in it.
        targets: [S] offset of each stretch in the output.
        sizes: [S] bytes.
        columns: Where the output is to be time-major, the rows of each of its sequences, T: what
            is row ``b * T + t`` in ``targets`` goes to row ``t * B + b``. Else 0.
    """

    sources: list[memoryview]
    begins: list[int]
    targets: list[int]
    sizes: list[int]
    columns: int = 0

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output, which is C-contiguous."""
        flat = out.reshape(-1).view(np.uint8)
        nbytes = sum(self.sizes)
        if self.columns:
            share.run(self._turning_copier(flat, len(out)), len(self.sizes), nbytes)
            return
        if nbytes >= _LONG_BYTES * len(self.sizes):
            share.run(self._long_copier(flat), len(self.sizes), nbytes)
            return
        target = memoryview(flat.data)
        for source, begin, low, size in zip(*self[:4], strict=True):
            target[low : low + size] = source[begin : begin + size]

    def _long_copier(self, target: np.ndarray) -> Callable[[range], None]:
        def copy(some: range) -> None:
            for k in some:
                low, size = self.targets[k], self.sizes[k]
                source = np.frombuffer(self.sources[k], np.uint8, size, self.begins[k])
                target[low : low + size] = source

        return copy

    def _turning_copier(self, target: np.ndarray, rows: int) -> Callable[[range], None]:
        row_bytes = len(target) // rows
        places = target.reshape(self.columns, -1, row_bytes)

        def copy(some: range) -> None:
            for k in some:
                number, first = divmod(self.targets[k] // row_bytes, self.columns)
                source = np.frombuffer(self.sources[k], np.uint8, self.sizes[k], self.begins[k])
                run = source.reshape(-1, row_bytes)
                places[first : first + len(run), number] = run

        return copy


class CodedCopies(NamedTuple):
    """Rows that are compressed, or stored in another dtype.

    Args:
        field: What they are.
        reader: Reads them.
        sources: [S] memory.
        codings: [S] how they are stored.
        places: [S] offset of the chunk's rows in the memory, number of its rows, first row wanted,
            rows wanted, first row of the output.
        chunks: [S] index of the chunk that each lies in.
        base: Position of the first chunk.
        columns: As in `PlainCopies`.
    """

    field: Field
    reader: ChunkDecoder
    sources: list[memoryview]
    codings: list[Coding]
    places: list[tuple[int, int, int, int, int]]
    chunks: np.ndarray
    base: int
    columns: int = 0

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output ``[rows, ...]``, which is C-contiguous."""
        dtype = self.field.numpy_dtype
        into = out if out.dtype == dtype else np.empty(out.shape, dtype)
        make = self._turning_copier if self.columns else self._copier
        share.run(make(into), len(self.places), into.nbytes)
        if into is not out:
            out[...] = into

    def _copier(self, into: np.ndarray) -> Callable[[range], None]:
        def copy(some: range) -> None:
            for k in some:
                *_, rows, target = self.places[k]
                self._read(k, into[target : target + rows])

        return copy

    def _turning_copier(self, into: np.ndarray) -> Callable[[range], None]:
        turned = into.reshape(self.columns, -1, *self.field.shape)

        def copy(some: range) -> None:
            for k in some:
                *_, rows, target = self.places[k]
                number, first = divmod(target, self.columns)
                run = np.empty((rows, *self.field.shape), into.dtype)
                self._read(k, run)
                turned[first : first + rows, number] = run

        return copy

    def _read(self, k: int, out: np.ndarray) -> None:
        """Read a stretch of rows, which is C-contiguous."""
        source, coding = self.sources[k], self.codings[k]
        offset, stored, start, rows, _ = self.places[k]
        if coding.block_rows:
            part = memoryview(out.reshape(-1).view(np.uint8).data)
            try:
                self.reader.decode_rows(source, coding, offset, stored, start, rows, part)
            except StoreCorrupt as error:
                raise self._damaged(k, error) from error
        else:
            self.reader.copy_rows(source, coding, offset, stored, start, out)

    def _damaged(self, k: int, error: StoreCorrupt) -> DamagedChunk:
        what = f"a chunk of field {self.field.name!r} cannot be read: {error}; run stepwell verify"
        return DamagedChunk(self.base + int(self.chunks[k]), StoreCorrupt(what))


Copies: TypeAlias = PlainCopies | CodedCopies
