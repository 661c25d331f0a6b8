"""Where the episodes of a rollout begin and end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.rollout.bootstrap import Bootstrap
from stepwell.buffers.rollout.numbers import place

__all__ = ["Flags"]


class Flags(NamedTuple):
    """The flags of a rollout's rows, [T, N] bool; `Rollout` says what they mean."""

    is_first: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    mask: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """[T, N] bool: the step from this row was the last one that is known of its episode."""
        found: np.ndarray = self.terminated | self.truncated | self.cut
        return found

    def check_ends(self, bootstrap: Bootstrap) -> None:
        """Raise ValueError where an end is not marked, or ``bootstrap`` has not one entry for it.

        An end that terminated too may have an entry; it is not looked at.
        """
        self._check_marks()
        times = self._times(bootstrap)
        is_last = np.zeros(self.mask.shape, bool)
        is_last[-1] = True
        is_open = self.mask & ~self.terminated & (self.ends | is_last)
        wrong = np.argwhere(np.where(is_open, times != 1, times > self.terminated))
        if len(wrong):
            step, env = wrong[0]
            kind = "an open end" if is_open[step, env] else "not one"
            raise ValueError(
                f"bootstrap: expected each open end once, got {place(step, env)}, which is {kind}, "
                f"{times[step, env]} times; list what followed on each row that is truncated, cut, "
                f"or the last one, and not terminated"
            )

    def _check_marks(self) -> None:
        """Raise where an episode is over without having ended."""
        goes_on = self.mask[:-1] & ~self.ends[:-1]
        wrong = np.argwhere(goes_on & (self.is_first[1:] | ~self.mask[1:]))
        if len(wrong):
            step, env = wrong[0]
            why = "begins an episode" if self.is_first[step + 1, env] else "has no step"
            raise ValueError(
                f"{place(step, env)}: expected terminated, truncated or cut, as the row after it "
                f"{why}, got none of them; set the one that holds"
            )

    def _times(self, bootstrap: Bootstrap) -> np.ndarray:
        """[T, N]: how many entries each row has."""
        rows, envs = self.mask.shape
        step, env = bootstrap.step, bootstrap.env
        outside = np.flatnonzero((step < 0) | (step >= rows) | (env < 0) | (env >= envs))
        if len(outside):
            where = place(int(step[outside[0]]), int(env[outside[0]]))
            raise ValueError(
                f"bootstrap: expected rows of a rollout [{rows}, {envs}], got {where}; both count "
                f"from 0"
            )
        times = np.zeros(self.mask.shape, np.int64)
        np.add.at(times, (step, env), 1)
        return times
