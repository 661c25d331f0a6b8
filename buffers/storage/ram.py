"""Episodes in RAM."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import NoReturn, cast

import numpy as np

from ..base.errors import not_copied
from ..base.memory_limit import free_memory
from ..base.number_checks import whole_number
from ..rows.episode import Chunk, End
from ..rows.row_memory import Place, RowMemory
from ..spec.spec import Spec
from .chunk_codec import Buffer, ChunkDecoder, ChunkEncoder, Part
from .chunk_index import ChunkIndex
from .encoded_chunk import EncodedChunk, fitting_chunks, pack_chunks
from .protocol import Storage

_LOG = logging.getLogger("stepwell.buffers.storage")
# Chunks are evicted in slabs: a whole one at a time, the oldest first.
_SLABS = 16
_SLAB_BYTES = 8 << 20
_MOST_SLABS, _MOST_SLAB_BYTES = 128, 1 << 30
# Memory that rows were written to is kept if it is large, and chunks fill three quarters of it.
_LEAST_KEPT_BYTES = 1 << 20


class MemoryStorage:
    """Keeps chunks in RAM, compressed as the Spec says.

    Chunks are copied into the memory of slabs. Chunks that an `EpisodeBuffer` has nearly filled a
    large `RowMemory` with stay there: the storage keeps that memory, and only writes the rest of
    each chunk around its rows.

    Args:
        spec: The fields of every row.
        capacity: Steps to keep at most; the oldest are evicted first, about a sixteenth of them at
            a time. None keeps everything.
        capacity_bytes: Bytes of RAM to use at most; the oldest are evicted first.

    Raises:
        ValueError: A capacity is not positive, or its uncompressed fields need more memory than is
            free, or the rows have no reward.

    Example:
        >>> import gymnasium as gym
        >>> from stepwell.buffers import Spec
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> MemoryStorage(spec, capacity=1_000).nbytes
        0
    """

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a storage in RAM", "keep the rows in a folder, and open it in the other process"
        )

    def __init__(
        self, spec: Spec, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        capacity, capacity_bytes = whole_capacities(capacity, capacity_bytes)
        if "reward" not in spec.names:
            raise ValueError(f"fields of a replay: expected a reward, got {', '.join(spec.names)}")
        _check_free_memory(spec, capacity)
        self._spec = spec
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._slab_bytes = min(_SLAB_BYTES, (capacity_bytes or _SLABS * _SLAB_BYTES) // _SLABS)
        self._max_rows = max_chunk_rows(capacity)
        self._writer = ChunkEncoder(spec, packs_patches=False)
        self._reader = ChunkDecoder(spec)
        self._index = ChunkIndex()
        self._slabs: deque[_Slab] = deque()
        self._first_segment = 0
        self._segments: deque[np.ndarray] = deque()  # the memory of each
        self._sessions: list[Mapping[str, object]] = []
        self._lock = RLock()

    def __repr__(self) -> str:
        return (
            f"MemoryStorage(capacity={self._capacity}, steps={self._index.steps}, "
            f"episodes={self._index.episodes}, fields=({self._spec.summary}))"
        )

    @property
    def lock(self) -> RLock:
        """Held while the index changes."""
        return self._lock

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        return self._spec

    @property
    def index(self) -> ChunkIndex:
        """The index of the stored chunks."""
        return self._index

    @property
    def skips_corrupt(self) -> bool:
        """False: nothing is damaged in RAM."""
        return False

    @property
    def lost_chunks(self) -> int:
        """Chunks that were left out."""
        return int((self._index.records["end"] & End.LOST != 0).sum())

    @property
    def generation(self) -> int:
        """0: positions are assigned once."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of RAM allocated for stored chunks."""
        with self._lock:  # two slabs may have chunks in one memory
            return sum({id(each): each.nbytes for each in self._segments}.values())

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here, the oldest first."""
        return self._sessions

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Record that a new run writes here."""
        self._sessions.append(facts)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """See `Storage.add`; the oldest slabs are evicted to keep the capacity."""
        parts = [part for chunk in chunks for part in chunk.split(self._max_rows)]
        self._index.check(parts)
        encoded = [self._writer.encode(chunk) for chunk in parts]
        sizes = [sum(map(len, data)) for data in encoded]
        places: list[Place | None] = [None] * len(parts)
        if self._capacity_bytes is not None:
            for chunk, nbytes in zip(parts, sizes, strict=True):
                check_chunk_bytes(chunk, nbytes, self._capacity_bytes)
        elif any(chunk.place is not None for chunk in parts):
            # What is kept may be larger than the chunks in it, but capacity_bytes is strict.
            places = _kept_places(parts, encoded, sizes)
        with self._lock:
            for chunk, data, nbytes, place in zip(parts, encoded, sizes, places, strict=True):
                self._add(chunk, data, nbytes, place)

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """See `Storage.add_encoded`."""
        fitting = fitting_chunks(chunks, self._max_rows, self._reader, self._writer)
        self._index.check(fitting)
        for chunk in fitting:
            check_chunk_bytes(chunk, chunk.nbytes, self._capacity_bytes)
        with self._lock:
            for chunk in fitting:
                self._add(chunk, chunk.parts, chunk.nbytes, None)

    def drop_before(self, row_id: int) -> None:
        """Evict slabs all of whose rows are older than the one with this id."""
        with self._lock:
            while self._slabs and self._slabs[0].stop <= row_id:
                self._evict()

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The memory that holds the chunk at a position, and the chunk's offset in it."""
        record = self._index.record(position)
        return self._segments[record.segment - self._first_segment], record.offset

    def encoded(self, position: int) -> EncodedChunk:
        """See `Storage.encoded`."""
        with self._lock:
            record = self._index.record(position)
            return EncodedChunk.stored(record, self._spec, *self.payload(position))

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position."""
        return self._reader.metadata(*self.payload(position))

    def lose(self, position: int) -> None:
        """Leave out a chunk."""
        self._index.lose([position])

    def refresh(self) -> bool:
        """False: no other process stores here."""
        return False

    def close(self) -> None:
        """Keep the data: RAM is released with the object."""

    def _add(
        self, chunk: Chunk | EncodedChunk, parts: Sequence[Part], nbytes: int, place: Place | None
    ) -> None:
        """Store a chunk; its rows may stay at the place."""
        rows = chunk.rows
        slab = self._slab_for(nbytes, rows)
        # Each room is written to once: the same rows may come again, as those of another chunk.
        if place is not None and slab.memory is None and place.memory.kept <= place.start:
            offset = self._keep(slab, place, parts)
        else:
            offset = self._copy(slab, parts, nbytes)
        slab.used += nbytes
        slab.rows += rows
        segment = self._first_segment + len(self._segments) - 1
        self._index.append(chunk, segment, offset, nbytes)
        slab.stop = self._index.next_row_id
        while self._capacity is not None and self._index.steps > self._capacity:
            self._evict()

    def _keep(self, slab: _Slab, place: Place, parts: Sequence[Part]) -> int:
        """Write the rest of a chunk around the rows that stay, and return its offset."""
        memory = place.memory
        if not slab.segments or self._segments[-1] is not memory.data:
            slab.segments += 1
            self._segments.append(memory.data)
        memory.kept = place.stop
        head, padding, first, *rest = parts
        offset = place.rows - len(head) - len(padding)
        _write([head, padding], memory.data, offset)
        _write(rest, memory.data, place.rows + len(first))
        return offset

    def _copy(self, slab: _Slab, parts: Sequence[Part], nbytes: int) -> int:
        """Copy a chunk to the slab's own memory, and return its offset there."""
        if slab.memory is None:
            slab.memory = np.empty(slab.size - slab.used, np.uint8)
            slab.segments += 1
            self._segments.append(slab.memory)
        offset = slab.filled
        _write(parts, slab.memory, offset)
        slab.filled += nbytes
        return offset

    def _slab_for(self, nbytes: int, rows: int) -> _Slab:
        """The newest slab, or a new one where that has no room."""
        newest = self._slabs[-1] if self._slabs else None
        if newest and newest.has_room(nbytes, rows, self._max_rows):
            return newest
        size = max(self._slab_bytes, nbytes)
        budget = self._capacity_bytes
        if budget is None:  # larger slabs rather than very many
            planned = sum(slab.size for slab in self._slabs)
            size = max(size, min(planned // _MOST_SLABS, _MOST_SLAB_BYTES))
        while budget is not None and self._slabs and self.nbytes + size > budget:
            self._evict()
        self._slabs.append(_Slab(size))
        return self._slabs[-1]

    def _evict(self) -> None:
        slab = self._slabs.popleft()
        if not slab.segments:  # nothing was stored there
            return
        self._first_segment += slab.segments
        for _ in range(slab.segments):
            self._segments.popleft()
        self._index.drop_segment(self._first_segment - 1)
        _LOG.debug("in RAM: evicted %d rows", slab.rows)


class _Slab:
    """Chunks that are evicted together."""

    # Those that are copied go into one memory, which is allocated for the first of them. After that
    # the slab keeps no memory of rows, so that its segments are in the order of the chunks.

    def __init__(
        self,
        size: int,  # bytes of chunks that it has room for
    ) -> None:
        self.size = size
        self.used = 0  # bytes of chunks
        self.rows = 0
        self.stop = 0  # id of the row after the last
        self.segments = 0
        self.memory: np.ndarray | None = None
        self.filled = 0  # bytes of that

    def has_room(self, nbytes: int, rows: int, max_rows: int) -> bool:
        """True if a chunk of this size and number of rows still fits."""
        return self.used + nbytes <= self.size and self.rows + rows <= max_rows


def _kept_places(
    chunks: list[Chunk], encoded: list[list[Part]], sizes: list[int]
) -> list[Place | None]:
    """The place of each chunk that may stay there; None for the others."""
    places = [
        chunk.place if chunk.place is not None and _fits(chunk.place, parts) else None
        for chunk, parts in zip(chunks, encoded, strict=True)
    ]
    filled: dict[RowMemory, int] = {}
    for place, nbytes in zip(places, sizes, strict=True):
        if place is not None:
            filled[place.memory] = filled.get(place.memory, 0) + nbytes
    kept = {memory for memory, size in filled.items() if 4 * size >= 3 * memory.data.nbytes}
    return [place if place is not None and place.memory in kept else None for place in places]


def _fits(place: Place, parts: list[Part]) -> bool:
    """True if a chunk's bytes fit around the rows of its first field, which are in place."""
    memory, start, rows, nbytes, stop = place
    if memory.data.nbytes < _LEAST_KEPT_BYTES:
        return False
    head, padding, first, *rest = parts
    is_there = _address(first) == memory.address + rows and len(first) == nbytes
    end = rows + len(first) + sum(map(len, rest))
    return is_there and start <= rows - len(head) - len(padding) and end <= stop


def _write(parts: Sequence[Part], memory: np.ndarray, offset: int) -> None:
    target = memoryview(cast("bytes", memory))  # numpy takes longer for few bytes
    for part in parts:
        end = offset + len(part)
        target[offset:end] = part
        offset = end


def _address(part: Part) -> int:
    address: int = np.frombuffer(part, np.uint8).__array_interface__["data"][0]
    return address


def max_chunk_rows(capacity: int | None) -> int:
    """Rows of the largest chunk, and of a slab or segment, under a capacity in steps."""
    return 1 << 40 if capacity is None else max(1, capacity // _SLABS)


def whole_capacities(
    capacity: int | None, capacity_bytes: int | None
) -> tuple[int | None, int | None]:
    """Both as ints, also where they are 1e6; ValueError unless they are positive whole numbers."""
    return (
        None if capacity is None else whole_number("capacity", capacity, 1),
        None if capacity_bytes is None else whole_number("capacity_bytes", capacity_bytes, 1),
    )


def check_chunk_bytes(chunk: Chunk | EncodedChunk, nbytes: int, capacity_bytes: int | None) -> None:
    """Refuse a chunk that alone takes more than the whole budget."""
    if capacity_bytes is not None and nbytes > capacity_bytes:
        raise ValueError(
            f"one chunk of {chunk.rows} rows takes {nbytes} bytes, expected at most "
            f"capacity_bytes={capacity_bytes}: raise capacity_bytes"
        )


def _check_free_memory(spec: Spec, capacity: int | None) -> None:
    """Refuse a capacity that does not fit in free memory, which is allocated only as data comes."""
    planned = (capacity or 0) * sum(f.row_bytes for f in spec.fields if f.codec == "raw")
    free = free_memory()
    if planned > free:
        raise ValueError(
            f"capacity={capacity} steps takes {planned / 1e9:.1f} GB uncompressed, expected at "
            f"most the {free / 1e9:.1f} GB of free memory: lower capacity, or use codec zstd or a "
            f"folder"
        )


def packed_rows(storage: Storage) -> bytes:
    """All chunks of a storage, packed: what a saved state has of rows in RAM."""
    with storage.lock:
        places = range(storage.index.base, storage.index.base + len(storage.index))
        return pack_chunks([storage.encoded(place) for place in places])
