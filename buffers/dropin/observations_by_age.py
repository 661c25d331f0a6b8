"""The observations that were added, by age, as an old caller indexes the array of a ring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell.buffers.dropin.transition_writer import TransitionWriter
from stepwell.buffers.episode import End
from stepwell.buffers.replay import SequenceReplayBuffer

__all__ = ["ObservationsByAge"]

# The row of a last observation, or one that stands in for an observation that is still to come.
_NOT_ADDED = int(End.TERMINATED | End.TRUNCATED | End.PENDING)


class ObservationsByAge:
    """The newest observations from which an action was chosen, the oldest first.

    With several envs those of one env are in the order in which they were added; envs take turns in
    stretches.

    Args:
        replay: Where they are.
        writer: What adds them; of every episode also the newest observation is stored.
        size: How many there are at most.
    """

    def __init__(self, replay: SequenceReplayBuffer, writer: TransitionWriter, size: int) -> None:
        self._replay = replay
        self._writer = writer
        self._size = size
        self._flushed = writer.steps
        self._until = replay.storage.table.base + len(replay.storage.table)
        self._extent = (-1, -1)
        self._counts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return min(self._size, self._writer.steps)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        """Copies of one observation, or ``[n, ...]`` of several.

        Args:
            index: An index, a slice, or an array [n] of indices.

        Raises:
            IndexError: There are not so many.
        """
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        ages = np.asarray(index)
        found = self.take(ages.reshape(-1))
        return found[0] if ages.ndim == 0 else found

    def take(self, ages: np.ndarray) -> np.ndarray:
        """Copies of some of them, ``[n, ...]``.

        Args:
            ages: [n] indices; negative ones count from the newest.

        Raises:
            IndexError: There are not so many, or an index is no whole number.
        """
        if not len(ages):
            field = self._replay.spec.fields[0]
            return np.empty((0, *field.shape), field.numpy_dtype)
        count, oldest = len(self), int(ages.min())
        if ages.dtype.kind not in "iu" or oldest < -count or ages.max() >= count:
            there = f"whole numbers from {-count} to {count - 1}" if count else "none: it is empty"
            raise IndexError(f"index: expected {there}, got {ages.tolist()}")
        ids = self._row_ids(ages if oldest >= 0 else np.where(ages < 0, ages + count, ages))
        return self._replay.field_rows("observation", ids)

    def _row_ids(self, ages: np.ndarray) -> np.ndarray:
        """The ids of the rows in which they are stored."""
        waiting = self._writer.steps - self._flushed
        if int(ages.max()) >= len(self) - waiting:
            self._flush()  # not at each call: that would store a chunk each time
            waiting = 0
        counts = self._stored_counts()
        # Never below 0, unless a folder was written by more envs than there are now.
        place = np.maximum(ages + (int(counts[-1]) + waiting - len(self)), 0)
        chunk = np.searchsorted(counts, place, side="right") - 1
        records = self._replay.storage.table.records
        ids: np.ndarray = records["row_id"][chunk] + place - counts[chunk]
        return ids

    def _flush(self) -> None:
        self._writer.flush(newest=False)
        table = self._replay.storage.table
        self._flushed, self._until = self._writer.steps, table.base + len(table)

    def _stored_counts(self) -> np.ndarray:
        """How many of them come before each chunk that was there at the last flush, and in all."""
        table = self._replay.storage.table
        extent = (table.base, self._until)
        if extent != self._extent:
            records = table.records[: self._until - table.base]
            is_over = (records["is_tail"] == 1) & (records["end"] & _NOT_ADDED != 0)
            self._counts = np.cumsum(np.append(0, records["rows"] - is_over))
            self._extent = extent
        return self._counts
