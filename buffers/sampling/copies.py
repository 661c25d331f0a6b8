"""Copies of large rows, planned under the storage's lock and made without it.

A plan refers to the memory itself, so it stays valid when the pieces are evicted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.piece_format import Coding, PieceReader
from stepwell.buffers.sampling.thread_share import ThreadShare
from stepwell.buffers.spec import Field

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
    """

    sources: list[memoryview]
    begins: list[int]
    targets: list[int]
    sizes: list[int]

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output, which is C-contiguous."""
        flat = out.reshape(-1).view(np.uint8)
        nbytes = sum(self.sizes)
        if nbytes >= _LONG_BYTES * len(self.sizes):
            share.run(self._long_copier(flat), len(self.sizes), nbytes)
            return
        target = memoryview(flat.data)
        for source, begin, low, size in zip(*self, strict=True):
            target[low : low + size] = source[begin : begin + size]

    def _long_copier(self, target: np.ndarray) -> Callable[[range], None]:
        def copy(some: range) -> None:
            for k in some:
                low, size = self.targets[k], self.sizes[k]
                source = np.frombuffer(self.sources[k], np.uint8, size, self.begins[k])
                target[low : low + size] = source

        return copy


class CodedCopies(NamedTuple):
    """Rows that are compressed, or stored in another dtype.

    Args:
        field: What they are.
        reader: Reads them.
        sources: [S] memory.
        codings: [S] how they are stored.
        places: [S] offset of the piece's rows in the memory, number of its rows, first row wanted,
            rows wanted, first row of the output.
    """

    field: Field
    reader: PieceReader
    sources: list[memoryview]
    codings: list[Coding]
    places: list[tuple[int, int, int, int, int]]

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output ``[rows, ...]``, which is C-contiguous."""
        dtype = self.field.numpy_dtype
        into = out if out.dtype == dtype else np.empty(out.shape, dtype)
        share.run(self._copier(into), len(self.places), into.nbytes)
        if into is not out:
            out[...] = into

    def _copier(self, into: np.ndarray) -> Callable[[range], None]:
        reader, row_bytes = self.reader, self.field.row_bytes
        flat = memoryview(into.reshape(-1).view(np.uint8).data)

        def copy(some: range) -> None:
            for k in some:
                source, coding = self.sources[k], self.codings[k]
                offset, stored, start, rows, target = self.places[k]
                if coding.block_rows:
                    part = flat[target * row_bytes : (target + rows) * row_bytes]
                    reader.decode_rows(source, coding, offset, stored, start, rows, part)
                else:
                    part_of = into[target : target + rows]
                    reader.copy_rows(source, coding, offset, stored, start, part_of)

        return copy


Copies: TypeAlias = PlainCopies | CodedCopies
