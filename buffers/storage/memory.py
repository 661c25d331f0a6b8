"""Episodes in RAM."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import RLock

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.free_memory import free_memory
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import Buffer, ChunkDecoder, ChunkEncoder, Part
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.whole_numbers import whole_number

__all__ = ["MemoryStorage"]

# Memory is allocated and freed in slabs: a whole one is evicted at a time, the oldest first.
_SLABS = 16
_SLAB_BYTES = 8 << 20
_MOST_SLABS, _MOST_SLAB_BYTES = 128, 1 << 30


class MemoryStorage:
    """Keeps chunks in RAM, compressed as the Spec says.

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

    def __init__(
        self, spec: Spec, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        check_capacity(capacity, capacity_bytes)
        if "reward" not in spec.names:
            raise ValueError(f"fields of a replay: expected a reward, got {', '.join(spec.names)}")
        _check_free_memory(spec, capacity)
        self._spec = spec
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._slab_bytes = min(_SLAB_BYTES, (capacity_bytes or _SLABS * _SLAB_BYTES) // _SLABS)
        self._max_rows = max_chunk_rows(capacity)
        self._writer = ChunkEncoder(spec)
        self._reader = ChunkDecoder(spec)
        self._index = ChunkIndex()
        self._slabs: deque[_Slab] = deque()
        self._first_slab = 0
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
        return sum(slab.memory.nbytes for slab in self._slabs)

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here, the oldest first."""
        return self._sessions

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Record that a new run writes here."""
        self._sessions.append(facts)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks, and evict the oldest slabs to keep the capacity.

        Raises:
            ValueError: A chunk does not continue its episode, or is larger than the capacity;
                nothing was stored.
            SpecMismatch: A field is missing or has another dtype or shape; nothing was stored.
        """
        parts = [part for chunk in chunks for part in chunk.split(self._max_rows)]
        self._index.check(parts)
        encoded = [self._writer.encode(chunk) for chunk in parts]
        for chunk, data in zip(parts, encoded, strict=True):
            check_chunk_bytes(chunk, sum(map(len, data)), self._capacity_bytes)
        with self._lock:
            for chunk, data in zip(parts, encoded, strict=True):
                self._add(chunk, data)

    def drop_before(self, row_id: int) -> None:
        """Evict slabs all of whose rows are older than the one with this id."""
        with self._lock:
            while self._slabs and self._index.oldest_segment_stop <= row_id:
                self._evict()

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The slab that holds the chunk at a position, and the chunk's offset in it."""
        record = self._index.record(position)
        return self._slabs[record.segment - self._first_slab].memory, record.offset

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

    def _add(self, chunk: Chunk, parts: list[Part]) -> None:
        nbytes, rows = sum(map(len, parts)), chunk.rows
        slab = self._slab_for(nbytes, rows)
        offset = slab.used
        for part in parts:
            slab.memory[slab.used : slab.used + len(part)] = np.frombuffer(part, np.uint8)
            slab.used += len(part)
        slab.rows += rows
        self._index.append(chunk, self._first_slab + len(self._slabs) - 1, offset, nbytes)
        while self._capacity is not None and self._index.steps > self._capacity:
            self._evict()

    def _slab_for(self, nbytes: int, rows: int) -> _Slab:
        """The newest slab, or a new one where that has no room."""
        newest = self._slabs[-1] if self._slabs else None
        if newest and newest.has_room(nbytes, rows, self._max_rows):
            return newest
        size = max(self._slab_bytes, nbytes)
        budget = self._capacity_bytes
        if budget is None:  # larger slabs rather than very many
            size = max(size, min(self.nbytes // _MOST_SLABS, _MOST_SLAB_BYTES))
        while budget is not None and self._slabs and self.nbytes + size > budget:
            self._evict()
        self._slabs.append(_Slab(size))
        return self._slabs[-1]

    def _evict(self) -> None:
        if len(self._index) and self._index.records["segment"][0] == self._first_slab:
            self._index.drop_segment()
        self._slabs.popleft()
        self._first_slab += 1


class _Slab:
    """A block of memory that chunks are appended to."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.empty(nbytes, np.uint8)
        self.used = 0
        self.rows = 0

    def has_room(self, nbytes: int, rows: int, max_rows: int) -> bool:
        """True if a chunk of this size and number of rows still fits."""
        return self.used + nbytes <= len(self.memory) and self.rows + rows <= max_rows


def max_chunk_rows(capacity: int | None) -> int:
    """Rows of the largest chunk, and of a slab or segment, under a capacity in steps."""
    return 1 << 40 if capacity is None else max(1, capacity // _SLABS)


def check_capacity(capacity: int | None, capacity_bytes: int | None) -> None:
    """Refuse capacities that are not positive whole numbers."""
    for name, value in (("capacity", capacity), ("capacity_bytes", capacity_bytes)):
        if value is not None:
            whole_number(name, value, 1)


def check_chunk_bytes(chunk: Chunk, nbytes: int, capacity_bytes: int | None) -> None:
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
