"""The protocol of a storage, which keeps chunks in order under a capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Protocol

from stepwell.buffers.episode import Chunk
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import Buffer
from stepwell.buffers.storage.chunk_index import ChunkIndex

__all__ = ["Storage"]


class Storage(Protocol):
    """Keeps chunks in order; the oldest are evicted when the capacity is reached.

    `stepwell.buffers.testing.check_storage` checks the rules that every Storage keeps.
    """

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        ...

    @property
    def index(self) -> ChunkIndex:
        """The index of the stored chunks."""
        ...

    @property
    def lock(self) -> RLock:
        """Held while the index changes, and by readers of the index."""
        ...

    @property
    def skips_corrupt(self) -> bool:
        """Damaged chunks are left out instead of ending a read."""
        ...

    @property
    def lost_chunks(self) -> int:
        """Chunks that are left out as damaged."""
        ...

    @property
    def generation(self) -> int:
        """Grows whenever positions are assigned again, so that remembered ones are invalid."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored chunks take."""
        ...

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """JSON-able facts about the runs that wrote here, the oldest first."""
        ...

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Record, durably, that a new run writes here."""
        ...

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks; when it returns they are durable.

        Raises:
            ValueError: A chunk does not continue its episode; nothing was stored.
        """
        ...

    def drop_before(self, row_id: int) -> None:
        """Evict slabs, or segments, all of whose rows are older than the one with this id."""
        ...

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The memory that holds the chunk at a position, and the chunk's offset in it."""
        ...

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position."""
        ...

    def lose(self, position: int) -> None:
        """Leave out a chunk whose bytes are damaged."""
        ...

    def refresh(self) -> bool:
        """Read new chunks of another process; returns True if the index changed."""
        ...

    def close(self) -> None:
        """Release memory, files and locks; closing twice is harmless."""
        ...
