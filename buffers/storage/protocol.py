"""What a storage is: a place that keeps chunks in order under a capacity, in RAM or in a folder."""

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
    """Keeps chunks in order; the oldest ones go when the capacity is reached.

    `stepwell.buffers.testing.check_storage` checks the rules that every Storage keeps.
    """

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        ...

    @property
    def table(self) -> ChunkIndex:
        """The index of what is stored."""
        ...

    @property
    def lock(self) -> RLock:
        """Held while the table changes, and by those who look something up in it."""
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
        """Grows whenever positions were given anew, so that remembered ones mean nothing."""
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
        """Note, for good, that a new run writes here."""
        ...

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks; when it returns they are kept for good.

        Raises:
            ValueError: A chunk does not continue its episode; nothing was stored.
        """
        ...

    def drop_before(self, row_id: int) -> None:
        """Forget slabs, or segments, all of whose rows are older than the one with this id."""
        ...

    def payload(self, position: int) -> tuple[Buffer, int]:
        """Memory that holds the chunk at a position of the table, and where it begins in it."""
        ...

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position."""
        ...

    def lose(self, position: int) -> None:
        """Leave out a chunk whose bytes are damaged."""
        ...

    def refresh(self) -> bool:
        """Take up what another process has stored since, and tell whether there was anything."""
        ...

    def close(self) -> None:
        """Release memory, files and locks; closing twice is harmless."""
        ...
