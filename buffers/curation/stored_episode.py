"""Stored episodes, with rows that are read on first use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from ..base.errors import NotEnoughData
from ..base.memory_limit import check_free_memory
from ..rows.episode import Chunk, End
from ..spec.spec import Spec
from ..storage.chunk_index import ChunkInfo
from ..storage.encoded_chunk import EncodedChunk
from ..storage.field_locator import RowCopier
from ..storage.protocol import Storage

_REWARD_ROWS = 1 << 16


class StoredEpisode:
    """A stored episode, with rows that are read on first use."""

    __slots__ = ("_copier", "_metadata", "_position", "_record", "_storage", "_total_reward")

    def __init__(self, storage: Storage, copier: RowCopier, position: int) -> None:
        self._storage = storage
        self._copier = copier
        self._position = position  # of its last chunk
        self._record = storage.index.record(position)
        self._metadata: Mapping[str, object] | None = None
        self._total_reward: float | None = None

    @property
    def id(self) -> int:
        """Id of the episode."""
        return self._record.episode

    @property
    def spec(self) -> Spec:
        """The fields of its rows."""
        return self._storage.spec

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
            self._copier.follow()
            place = self.first_row, self.first_row + self.rows, _REWARD_ROWS
            runs = self._runs(*place, ["reward"], self._chain())
            rewards = (float(rows["reward"].sum()) for _, rows in runs)
            with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
                self._total_reward = sum(rewards)
        return self._total_reward

    def chunks(
        self,
        max_rows: int,  # of each chunk but the last
        names: Sequence[str] | None = None,  # of the fields to read; None for all
    ) -> Iterator[Chunk]:
        """Iterate over its rows in large chunks, independent of the stored sizes."""
        self._copier.follow()
        stop = self.first_row + self.rows
        yield from self._chunks(self._runs(self.first_row, stop, max_rows, names, self._chain()))

    def _chunks(self, runs: Iterable[tuple[int, dict[str, np.ndarray]]]) -> Iterator[Chunk]:
        """The chunks of some runs of rows."""
        stop = self.first_row + self.rows
        for first_row, fields in runs:
            is_last = first_row + len(next(iter(fields.values()))) == stop
            end = self.end if is_last else End.NONE
            # A copy may begin late if the source has lost its first rows.
            starts_late = first_row == self.first_row > 0
            yield Chunk(self.id, self.stream, first_row, end, fields, self.metadata, starts_late)

    def encoded_chunks(self, least_rows: int, max_rows: int) -> Iterator[Chunk | EncodedChunk]:
        """Iterate over its rows in the chunks in which they are stored, if those are large."""
        # Chunks of fewer than `least_rows` are decoded and joined to chunks of `max_rows`, if three
        # or more follow each other.
        self._copier.follow()
        chain = self._chain()
        for is_small, group in groupby(chain, lambda each: each[1].stored_rows < least_rows):
            run = list(group)
            if not is_small or len(run) < 3:
                yield from (self._storage.encoded(position) for position, _ in run)
            else:
                first, last = run[0][1].first_row, run[-1][1]
                yield from self._chunks(
                    self._runs(first, last.first_row + last.rows, max_rows, None, chain)
                )

    def read(
        self, begin: int, stop: int, names: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Rows ``begin .. stop``, counted from the reset: ``[stop - begin, ...]`` by field name."""
        last = self.first_row + self.rows
        if not self.first_row <= begin < stop <= last:
            raise ValueError(
                f"episode {self.id}: expected rows from {self.first_row} to {last - 1}, got "
                f"{begin} to {stop - 1}; ask for others"
            )
        self._copier.follow()
        return self._read(begin, stop, names or self._storage.spec.names, self._chain())

    def _runs(
        self,
        first_row: int,
        stop: int,
        max_rows: int,
        names: Sequence[str] | None,
        chain: Sequence[tuple[int, ChunkInfo]],
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """First row and fields of consecutive runs of rows."""
        names = names or self._storage.spec.names
        for begin in range(first_row, stop, max_rows):
            yield begin, self._read(begin, min(begin + max_rows, stop), names, chain)

    def _read(
        self, begin: int, stop: int, names: Sequence[str], chain: Sequence[tuple[int, ChunkInfo]]
    ) -> dict[str, np.ndarray]:
        """Rows of some fields, from the episode's chunks."""
        spec = self._storage.spec
        row_bytes = sum(spec[name].row_bytes for name in names)
        check_free_memory((stop - begin) * row_bytes, f"episode {self.id}")
        rows = {
            name: np.empty((stop - begin, *spec[name].shape), spec[name].numpy_dtype)
            for name in names
        }
        # A chunk whose only row was superseded begins with the same row as the next one.
        place = bisect_right(chain, stop - 1, key=lambda each: each[1].first_row) - 1
        targets = [(spec.names.index(name), rows[name]) for name in names]
        self._copier.copy(*chain[place], begin, stop, targets)
        return rows

    def _chain(self) -> list[tuple[int, ChunkInfo]]:
        """Position and record of all its chunks, the oldest first."""
        found = [(self._position, self._record)]
        while found[-1][1].previous >= 0:
            position = found[-1][1].previous
            found.append((position, self._storage.index.record(position)))
        return found[::-1]


def stored_episodes(storage: Storage) -> Iterator[StoredEpisode]:
    """All episodes of a storage, in the order of their ids."""
    # An episode with a lost chunk in the middle is two: up to the gap, and after it.
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
