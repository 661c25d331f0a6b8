"""Numbers of steps of many episodes, one after the other."""

from __future__ import annotations

import numpy as np

__all__ = ["StepIndex"]


class StepIndex:
    """The steps of episodes, counted through; without the last ones of each where that is wanted.

    Args:
        lengths: [E] steps of the episodes.
        horizon: Of each episode the last ``horizon - 1`` steps are left out.

    Example:
        >>> index = StepIndex(np.array([3, 1, 2]), horizon=2)
        >>> [each.tolist() for each in index.at(np.arange(len(index)))]
        [[0, 0, 2], [0, 1, 0]]
    """

    def __init__(self, lengths: np.ndarray, horizon: int = 1) -> None:
        self._lengths = lengths
        counts = np.maximum(lengths - (horizon - 1), 0)
        self._stops = np.cumsum(counts)
        self._begins = self._stops - counts
        self._chosen: np.ndarray | None = None

    def only(self, is_wanted: np.ndarray) -> StepIndex:
        """Those of the steps that are wanted.

        Args:
            is_wanted: [all steps of the episodes] bool, left out ones included.
        """
        everything = np.arange(len(self))
        place, step = self.at(everything)
        first = np.cumsum(self._lengths) - self._lengths
        fewer = StepIndex(self._lengths)
        fewer._stops, fewer._begins = self._stops, self._begins
        fewer._chosen = everything[is_wanted[first[place] + step]]
        return fewer

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        return int(self._stops[-1]) if len(self._stops) else 0

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which episode [B], and which of its steps [B], has a number."""
        if self._chosen is not None:
            numbers = self._chosen[numbers]
        place = np.searchsorted(self._stops, numbers, side="right")
        return place, numbers - self._begins[place]
