"""Stored episodes, with rows that are read on first use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.storage.chunk_index import ChunkInfo
from stepwell.buffers.storage.field_locator import RowCopier
from stepwell.buffers.storage.protocol import Storage

__all__ = ["StoredEpisode", "stored_episodes"]

_REWARD_ROWS = 1 << 16


class StoredEpisode:
    """A stored episode, with rows that are read on first use.

    Args:
        storage: The storage.
        copier: Reads rows of that storage.
        position: Position of its last chunk.
    """

    __slots__ = ("_copier", "_metadata", "_position", "_record", "_storage", "_total_reward")

    def __init__(self, storage: Storage, copier: RowCopier, position: int) -> None:
        self._storage = storage
        self._copier = copier
        self._position = position
        self._record = storage.index.record(position)
        self._metadata: Mapping[str, object] | None = None
        self._total_reward: float | None = None

    @property
    def id(self) -> int:
        """Id of the episode."""
        return self._record.episode

    @property
    def stream(self) -> int:
        """Index of the env that it comes from."""
        return self._record.stream

    @property
    def first_row(self) -> int:
        """0, or the number of leading rows that are no longer stored."""
        return self._record.head

    @property
    def rows(self) -> int:
        """Number of stored rows."""
        return self._record.first_row + self._record.rows - self._record.head

    @property
    def steps(self) -> int:
        """Stored env steps, as in `len(replay)`; the reset's row is not a step."""
        return max(0, self.rows - (self.first_row == 0))

    @property
    def end(self) -> End:
        """Flags of the last row; PENDING: it has no action yet."""
        return End(self._record.end) & ~End.LOST

    @property
    def has_ended(self) -> bool:
        """True if it was terminated or truncated, False if it is ended by a cut."""
        return self.end.is_final

    @property
    def metadata(self) -> Mapping[str, object]:
        """JSON-able facts about the episode."""
        if self._metadata is None:
            self._metadata = self._storage.metadata(self._chain()[0][0])
        return self._metadata

    @property
    def total_reward(self) -> float:
        """The undiscounted return: the sum of the stored rewards, read on first use."""
        if self._total_reward is None:
            rewards = (
                float(rows["reward"].sum()) for _, rows in self._runs(_REWARD_ROWS, ["reward"])
            )
            self._total_reward = sum(rewards)
        return self._total_reward

    def chunks(self, max_rows: int, names: Sequence[str] | None = None) -> Iterator[Chunk]:
        """Iterate over its rows in large chunks, independent of the stored sizes.

        Args:
            max_rows: Rows of each chunk but the last.
            names: Names of the fields to read; None for all.
        """
        stop = self.first_row + self.rows
        for first_row, fields in self._runs(max_rows, names or self._storage.spec.names):
            is_last = first_row + len(next(iter(fields.values()))) == stop
            end = self.end if is_last else End.NONE
            # A copy may begin late if the source has lost its first rows.
            starts_late = first_row == self.first_row > 0
            yield Chunk(self.id, self.stream, first_row, end, fields, self.metadata, starts_late)

    def _runs(
        self, max_rows: int, names: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """First row and fields of consecutive runs of rows."""
        self._copier.follow()
        spec = self._storage.spec
        places = [spec.names.index(name) for name in names]
        chain = self._chain()
        first_rows = [record.first_row for _, record in chain]
        stop = self.first_row + self.rows
        row_bytes = sum(spec[name].row_bytes for name in names)
        for begin in range(self.first_row, stop, max_rows):
            end = min(begin + max_rows, stop)
            check_free_memory((end - begin) * row_bytes, f"episode {self.id}")
            rows = {
                name: np.empty((end - begin, *spec[name].shape), spec[name].numpy_dtype)
                for name in names
            }
            # A chunk whose only row was superseded begins with the same row as the next one.
            position, record = chain[bisect_right(first_rows, end - 1) - 1]
            targets = list(zip(places, rows.values(), strict=True))
            self._copier.copy(position, record, begin, end, targets)
            yield begin, rows

    def _chain(self) -> list[tuple[int, ChunkInfo]]:
        """Position and record of all its chunks, the oldest first."""
        found = [(self._position, self._record)]
        while found[-1][1].previous >= 0:
            position = found[-1][1].previous
            found.append((position, self._storage.index.record(position)))
        return found[::-1]


def stored_episodes(storage: Storage) -> Iterator[StoredEpisode]:
    """All episodes of a storage, in the order of their ids.

    An episode with a lost chunk in the middle is two: up to the gap, and after it.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import End, Field, MemoryStorage, Chunk, Spec
        >>> spec = Spec((Field("reward", "float64", (), "raw"),), "reward", "reward")
        >>> storage = MemoryStorage(spec)
        >>> for first_row, end in ((0, End.NONE), (4, End.TERMINATED)):
        ...     rows = {"reward": np.arange(4.0)}
        ...     storage.add([Chunk(0, 0, first_row, end, rows, {"task": "door"})])
        >>> (episode,) = stored_episodes(storage)
        >>> episode.steps, episode.total_reward, episode.has_ended, episode.metadata
        (7, 12.0, True, {'task': 'door'})
        >>> [chunk.rows for chunk in episode.chunks(max_rows=6)]
        [6, 2]
    """
    records = storage.index.records
    tails = np.flatnonzero((records["is_tail"] == 1) & (records["end"] & End.LOST == 0))
    in_order = tails[np.lexsort((records["head"][tails], records["episode"][tails]))]
    positions = (in_order + storage.index.base).tolist()
    return _each(storage, positions)


def _each(storage: Storage, positions: Sequence[int]) -> Iterator[StoredEpisode]:
    copier = RowCopier(storage)
    for position in positions:
        if position < storage.index.base:
            raise NotEnoughData(
                f"chunk {position} was evicted while the episodes were read: expected no writes "
                f"meanwhile, got {storage.index.base} as the oldest chunk; start again"
            )
        yield StoredEpisode(storage, copier, position)
