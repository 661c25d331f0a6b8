"""Reads steps of stored episodes, many at once, with what was changed of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.sampling.requests import Episodes, Sequences

__all__ = ["EpisodeRows"]

_MOST_VALUES = 1 << 22  # read at once where much is read


class EpisodeRows:
    """Reads the episodes that there were when this was made; those that were overwritten never.

    They stand in the order of their slots, which fill up from 0 on: the first one in slot 0, the
    next one in slot 1, and so on.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: EpisodeFolder) -> None:
        self._source: EpisodeFolder | None = folder
        self._most = folder.config.max_episodes
        self._store = folder.store
        numbers, lengths = folder.lengths()
        in_slots = np.argsort(numbers % self._most)
        self.numbers, self.lengths = numbers[in_slots], lengths[in_slots]

    def through(self, folder: EpisodeFolder) -> EpisodeRows:
        """The same episodes, read through the folder as another process opened it."""
        same = self.detached()
        same._source = folder
        return same

    def detached(self) -> EpisodeRows:
        """The same episodes, to be sent to another process."""
        same = copy(self)
        same._source = None
        return same

    @property
    def _folder(self) -> EpisodeFolder:
        assert self._source is not None
        return self._source

    @property
    def slots(self) -> np.ndarray:
        """Where the episodes stand in the ring, [E]."""
        return self.numbers % self._most

    def points(
        self, names: Sequence[str], numbers: np.ndarray, steps: np.ndarray
    ) -> dict[str, np.ndarray]:
        """One step each, [B, ...] by field.

        Args:
            names: The fields.
            numbers: [B] numbers of the episodes.
            steps: [B] which of their steps.
        """
        return {name: rows[:, 0] for name, rows in self.spans(names, numbers, steps, 1).items()}

    def spans(
        self, names: Sequence[str], numbers: np.ndarray, first: np.ndarray, length: int
    ) -> dict[str, np.ndarray]:
        """Consecutive steps, [B, length, ...] by field; zeros after the end of an episode.

        Args:
            names: The fields.
            numbers: [B] numbers of the episodes.
            first: [B] the steps that they begin with.
            length: Steps each.
        """
        borders: Any = "pad_after" if length > 1 else "inside"
        request = Sequences(len(numbers), length, borders, fields=_full(names))
        return self._take(request, names, numbers, first)

    def wholes(self, names: Sequence[str], numbers: np.ndarray) -> dict[str, np.ndarray]:
        """All steps, [B, longest, ...] by field; zeros after the end of an episode."""
        fields, lengths = _full(names), self.lengths[numbers % self._most]
        request: Any = Episodes(len(numbers), fields=fields)
        if len(lengths) and np.count_nonzero(lengths == lengths[0]) == len(lengths):
            # Often: what is needed for such a batch is looked up once, and nothing is padded.
            request = Sequences(len(numbers), int(lengths[0]), fields=fields)
        return self._take(request, names, numbers, np.zeros(len(numbers), np.int64))

    def scalars(self, name: str, places: np.ndarray) -> np.ndarray:
        """A field of one number a step, of many episodes, one after the other.

        Args:
            name: The field.
            places: [E] which of the episodes.
        """
        parts = [np.zeros(0, self._folder.config.fields[name].dtype)]
        longest = int(self.lengths.max(initial=1))
        count = max(1, _MOST_VALUES // longest)
        for begin in range(0, len(places), count):
            some = places[begin : begin + count]
            rows = self.wholes([name], self.numbers[some])[name]
            parts.append(rows[np.arange(rows.shape[1]) < self.lengths[some][:, None]])
        return np.concatenate(parts)

    def metas(self, names: Sequence[str], numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Values of episodes, [B, ...] by field."""
        found = {name: self._folder.metas(name, numbers) for name in names}
        self._check(numbers)
        return found

    def _take(
        self, request: Any, names: Sequence[str], numbers: np.ndarray, first: np.ndarray
    ) -> dict[str, np.ndarray]:
        if not names or not len(numbers):
            lead = (len(numbers), getattr(request, "length", 0))
            return {name: self._folder.config.fields[name].filled(lead) for name in names}
        self._check(numbers)
        folder = self._folder
        batch = folder.replay.take(request, folder.row_ids(numbers) + first)
        rows: dict[str, np.ndarray] = {name: batch.observation[name] for name in names}
        for name, values in rows.items():
            folder.updates.lay(name, numbers, first, values)
        self._check(numbers)  # it may have been overwritten, by another thread, meanwhile
        return rows

    def _check(self, numbers: np.ndarray) -> None:
        """Refuse episodes that do not count any more.

        Raises:
            NotEnoughData: They were overwritten, or all were removed.
        """
        folder = self._folder
        folder.check_open()
        if folder.store != self._store:
            raise NotEnoughData(
                "the buffer was cleared since the dataset was made: expected the episodes that it "
                "was made of, got others; make a new dataset"
            )
        oldest = folder.oldest
        if len(numbers) and int(numbers.min()) < oldest:
            gone = int((numbers < oldest).sum())
            raise NotEnoughData(
                f"episodes were overwritten since the dataset was made: expected all of them, got "
                f"{gone} that are gone; make a new dataset"
            )


def _full(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"observation/{name}" for name in names)
