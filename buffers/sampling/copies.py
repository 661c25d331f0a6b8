"""Copies of large rows, planned under the storage's lock and made without it.

A plan refers to the memory itself, so it stays valid when the chunks are evicted meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ..base import native
from ..base.errors import StoreCorrupt
from ..spec.spec import Field
from ..storage.chunk_codec import ChunkDecoder, Coding
from ..storage.field_locator import DamagedChunk

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Longer ranges are copied by numpy, which lets other threads run; shorter ones by a memoryview,
# which begins sooner. The core does both; it copies fewer bytes in short ranges before a second
# thread would save time.
_LONG_BYTES = 1 << 17
_SHARED_BYTES = 1 << 22


class PlainCopies(NamedTuple):
    """Ranges of bytes that are stored in the form in which batches need them."""

    sources: list[memoryview]  # [S] memory
    begins: list[int]  # [S] offset of each range in it
    targets: list[int]  # [S] offset of each range in the output
    sizes: list[int]  # [S] bytes
    # of a time-major output, the rows T of each sequence: row b * T + t in `targets` goes to
    # row t * B + b; else 0
    columns: int = 0

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output, which is C-contiguous."""
        flat = out.reshape(-1).view(np.uint8)
        nbytes = sum(self.sizes)
        if self.columns:
            share.run(self._turning_copier(flat, len(out)), len(self.sizes), nbytes)
            return
        core, is_long = native.core, nbytes >= _LONG_BYTES * len(self.sizes)
        if is_long or (core is not None and nbytes >= _SHARED_BYTES):
            copy = self._long_copier(flat) if core is None else self._compiled_copier(core, flat)
            share.run(copy, len(self.sizes), nbytes)
        elif core is not None:
            core.copy_runs(flat, *self[:4])
        else:
            target = memoryview(flat.data)
            for source, begin, low, size in zip(*self[:4], strict=True):
                target[low : low + size] = source[begin : begin + size]

    def _compiled_copier(self, core: native.Core, target: np.ndarray) -> Callable[[range], None]:
        def copy(some: range) -> None:
            part = slice(some.start, some.stop)
            sources, begins, targets, sizes = self[:4]
            core.copy_runs(target, sources[part], begins[part], targets[part], sizes[part])

        return copy

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
    """Rows that are compressed, or stored in another dtype."""

    field: Field
    dtype: np.dtype[np.generic]  # of the field
    reader: ChunkDecoder  # decodes them
    sources: list[memoryview]  # [S] memory
    codings: list[Coding]  # [S], or one where all are alike
    # [5, S] offset of the chunk's rows in the memory, number of its rows, first row wanted, rows
    # wanted, first row of the output
    places: np.ndarray
    number: int  # of the field
    generation: int  # of the positions
    chunks: np.ndarray  # [S] index of the chunk of each
    base: int  # position of the first chunk
    columns: int = 0  # as in `PlainCopies`

    def make(self, out: np.ndarray, share: ThreadShare) -> None:
        """Fill an output ``[rows, ...]``, which is C-contiguous."""
        into = out if out.dtype == self.dtype else np.empty(out.shape, self.dtype)

        def copy(some: range) -> None:
            left = self._restore(some, into)
            if left:
                self._read_each(left, into)

        nbytes = into.nbytes
        if native.core is not None and self._coding(0).changes == "patches":
            nbytes //= _QUICKER  # less than another thread takes to wake up, for most batches
        share.run(copy, len(self.sources), nbytes)
        if into is not out:
            out[...] = into

    def _restore(self, some: range, into: np.ndarray) -> Sequence[int]:
        """Restore rows of patches, of many chunks in one call; returns what is left to read."""
        core, coding = native.core, self._coding(some.start)
        if core is None or coding.changes != "patches":
            return some
        of: Sequence[int] = some
        if len(self.codings) > 1:
            of = [k for k in some if self.codings[k] == coding]
        sources: list[memoryview] | list[memoryview | bytes] = self.sources
        places, cache = self.places, self.reader.cache
        if len(of) < len(sources):
            sources, places = [self.sources[k] for k in of], places.take(of, 1)
        if cache.nbytes:  # of a store on disk
            found = list(map(cache.get, self._keys(of)))
            places = places.copy()
            places[0, [plain is not None for plain in found]] = 0
            sources = [plain or source for plain, source in zip(found, sources, strict=True)]
        packed = self._apply(core, of, into, sources, places)
        if packed:
            of_packed, places = [of[each] for each in packed], places.take(packed, 1)
            places[0] = 0
            self._apply(core, of_packed, into, list(map(self._plain, of_packed)), places)
        return [] if len(of) == len(some) else sorted(set(some).difference(of))

    def _apply(
        self,
        core: native.Core,
        of: Sequence[int],
        into: np.ndarray,
        sources: list[memoryview] | list[bytes] | list[memoryview | bytes],
        places: np.ndarray,
    ) -> list[int]:
        _, row_bytes, block_rows, _ = self._coding(of[0])
        try:
            return core.apply_patches(
                into.view(np.uint8), sources, places, block_rows, row_bytes, self.columns
            )
        except ValueError as error:
            damaged = StoreCorrupt("the patches of its rows are damaged")
            raise self._damaged(of[int(str(error))], damaged) from error

    def _coding(self, k: int) -> Coding:
        return self.codings[k if len(self.codings) > 1 else 0]

    def _keys(self, of: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """Those of a field of chunks in the cache."""
        chunks = self.chunks if len(of) == len(self.chunks) else self.chunks[of]
        return zip(repeat(self.generation), (chunks + self.base).tolist(), repeat(self.number))

    def _plain(self, k: int) -> bytes:
        """The field of a chunk, with patches that are not compressed."""
        offset, stored, *_ = self.places[:, k].tolist()
        try:
            plain = self.reader.plain_patches(self.sources[k], self._coding(k), offset, stored)
        except StoreCorrupt as error:
            raise self._damaged(k, error) from error
        (key,) = self._keys([k])
        self.reader.cache.put(key, plain)
        return plain

    def _read_each(self, some: Sequence[int], into: np.ndarray) -> None:
        """Read rows chunk by chunk."""
        flat = _bytes_of(into)
        for k in some:
            rows, target = self.places[3:, k].tolist()
            if not self.columns:
                self._read(k, target, into, flat)
                continue
            number, first = divmod(target, self.columns)
            run = np.empty((rows, *self.field.shape), into.dtype)
            self._read(k, 0, run, _bytes_of(run))
            into.reshape(self.columns, -1, *self.field.shape)[first : first + rows, number] = run

    def _read(self, k: int, target: int, out: np.ndarray, flat: memoryview) -> None:
        """Read consecutive rows into the rows of ``out``, whose bytes are ``flat``."""
        source, coding = self.sources[k], self._coding(k)
        offset, stored, start, rows, _ = self.places[:, k].tolist()
        if not coding.block_rows:
            part = out[target : target + rows]
            self.reader.copy_rows(source, coding, offset, stored, start, part)
            return
        low, high = target * coding.row_bytes, (target + rows) * coding.row_bytes
        try:
            self.reader.decode_rows(source, coding, offset, stored, start, rows, flat[low:high])
        except StoreCorrupt as error:
            raise self._damaged(k, error) from error

    def _damaged(self, k: int, error: StoreCorrupt) -> DamagedChunk:
        what = f"a chunk of field {self.field.name!r} cannot be read: {error}; run stepwell verify"
        return DamagedChunk(self.base + int(self.chunks[k]), StoreCorrupt(what))


def _bytes_of(rows: np.ndarray) -> memoryview:
    return memoryview(rows.reshape(-1).view(np.uint8).data)


Copies: TypeAlias = PlainCopies | CodedCopies


# A batch smaller than this is decompressed before another thread has woken up. Restoring patches
# is so many times as quick.
_WORTHWHILE_BYTES, _QUICKER = 1 << 20, 8
_MOST_BY_DEFAULT = 4


class ThreadShare:
    """Runs work on ranges of a batch, in this thread and in others."""

    # Copying and decompressing let other threads run, so several speed up large batches. Nothing
    # runs between two calls.

    def __init__(
        self,
        # this one included; 1 starts none; None takes the cores that this process may use, at most
        # four
        threads: int | None,
    ) -> None:
        self._threads = min(_MOST_BY_DEFAULT, _cores()) if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(
        self,
        work: Callable[[range], None],
        count: int,
        nbytes: int,  # of all work: little work is not split
    ) -> None:
        """Call ``work`` with consecutive parts of ``range(count)``; return when all are done."""
        # Exceptions of `work`, which is called once per thread, are raised here.
        parts = min(self._threads, count)
        if parts < 2 or nbytes < _WORTHWHILE_BYTES:
            work(range(count))
            return
        from concurrent.futures import wait  # loads in milliseconds, which few callers need

        borders = [count * part // parts for part in range(parts + 1)]
        ranges = [range(low, high) for low, high in pairwise(borders)]
        others = [self._executor().submit(work, part) for part in ranges[1:]]
        try:
            work(ranges[0])
        finally:
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads; a later `run` starts them again."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _executor(self) -> ThreadPoolExecutor:
        # A forked child inherits the pool but not its threads.
        if self._pool is None or self._process != os.getpid():
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads - 1, "stepwell-batch")
            self._process = os.getpid()
        return self._pool


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
