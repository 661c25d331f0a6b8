"""The protocol of a storage, which keeps chunks in order under a capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Protocol

from ..rows.episode import Chunk
from ..spec.spec import Spec
from .chunk_codec import Buffer
from .chunk_index import ChunkIndex
from .encoded_chunk import EncodedChunk


class Storage(Protocol):
    """Keeps chunks in order; the oldest are evicted when the capacity is reached.

    A chunk is addressed by its *position*: chunks are numbered from 0 on in the order in which they
    were added, and keep their numbers when older ones are evicted (see `generation` for the
    exceptions). A row has an id that is never used again; later rows have larger ones.

    `stepwell.buffers.testing.check_storage` checks the rules that every Storage keeps.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import Chunk, End, Field, MemoryStorage, Spec
        >>> spec = Spec((Field("reward", "float64", (), "raw"),), {}, {})
        >>> storage: Storage = MemoryStorage(spec)
        >>> storage.add([Chunk(0, 0, 0, End.TERMINATED, {"reward": np.zeros(3)}, {"seed": 7})])
        >>> storage.index.episodes, storage.index.steps, storage.metadata(0)
        (1, 2, {'seed': 7})
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

        Args:
            chunks: Chunks of one or several episodes; those of an episode in the order of its rows.

        Raises:
            ValueError: A chunk has no rows, does not continue its episode, or is larger than the
                capacity in bytes; nothing was stored.
            SpecMismatch: A field is missing or has another dtype or shape; nothing was stored.
        """
        ...

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """Store encoded chunks as they are; when it returns they are durable.

        They are checked first, see `EncodedChunk.check`. One with more rows than a sixteenth of the
        capacity is decoded and split.

        Raises:
            StoreCorrupt: The bytes of a chunk are damaged, or it holds other fields; nothing was
                stored.
            SpecMismatch: A field has another codec; nothing was stored.
            ValueError: A chunk does not continue its episode, or is larger than the capacity;
                nothing was stored.
        """
        ...

    def drop_before(self, row_id: int) -> None:
        """Evict slabs, or segments, all of whose rows are older than the one with this id.

        Args:
            row_id: The oldest row to keep, as in the ``row_id`` of `ChunkInfo`.
        """
        ...

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The memory that holds the chunk at a position, and the chunk's offset in bytes in it.

        The bytes are those of `ChunkEncoder`. They stay valid while the memory is referenced, also
        if the chunk is evicted.

        Raises:
            StoreCorrupt: The bytes are damaged.
        """
        ...

    def encoded(self, position: int) -> EncodedChunk:
        """The chunk at a position in the bytes in which it is stored, which are not copied.

        Raises:
            ValueError: No chunk has this position, or it was evicted.
            StoreCorrupt: The bytes are damaged, or the chunk is left out.
        """
        ...

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position.

        Raises:
            StoreCorrupt: The bytes are damaged.
        """
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


class MakeStorage(Protocol):
    """Makes an empty storage; the class itself, if its constructor takes these arguments.

    A storage that cannot keep a capacity skips the rules of `stepwell.buffers.testing` with
    ``capacity`` in their names.
    """

    def __call__(
        self, spec: Spec, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> Storage:
        """Make it.

        Args:
            spec: The fields of every row.
            capacity: Steps to keep at most.
            capacity_bytes: Bytes to take at most.

        Raises:
            ValueError: A capacity is not a whole number >= 1.
        """
        ...
