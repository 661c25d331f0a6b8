"""Which episodes count, and what they came to."""

from __future__ import annotations

import numpy as np

from stepwell.collectors.arrival import Arrival

__all__ = ["Tally"]


class Tally:
    """Counts steps, returns and lengths, and chooses episodes by the order of their *starts*.

    Choosing by who finishes first would favour short episodes.

    Args:
        num_envs: Number of envs N.
    """

    def __init__(self, num_envs: int) -> None:
        self._all = np.arange(num_envs)
        self._sums = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._counts = np.ones(num_envs, np.bool_)
        self._unlimited = True
        self._may_start = 0
        self.begin()

    def begin(self, episodes: int | None = None) -> None:
        """Start a new count.

        Args:
            episodes: Only so many of the episodes that start from now on count; None for all.
        """
        self.steps = 0
        self.rows = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.cut = 0
        self.restarts = 0
        self._unlimited = episodes is None
        self._may_start = episodes or 0
        if episodes is not None:
            self._counts[:] = False

    @property
    def is_complete(self) -> bool:
        """All episodes that were asked for have ended."""
        return not self._unlimited and self._may_start == 0 and not self._counts.any()

    def count(self, arrival: Arrival) -> Arrival | None:
        """Count what arrived and return the rows that are to be recorded, None for none."""
        envs = self._all if arrival.env_ids is None else arrival.env_ids
        self.restarts += arrival.restarts
        if not self._unlimited:
            self._choose(arrival, envs)
            keep = self._counts[envs]
            if not keep.all():
                arrival = arrival.only(keep, envs)
                envs = envs[keep]
        if len(envs):
            self._add(arrival, envs)
        return arrival if len(envs) else None

    def forget(self) -> int:
        """All envs begin anew: the episodes under way are cut; returns how many had steps."""
        cut = int(((self._lengths > 0) & self._counts).sum())
        self._sums[:] = 0
        self._lengths[:] = 0
        self._counts[:] = True
        self.cut += cut
        return cut

    def _choose(self, arrival: Arrival, envs: np.ndarray) -> None:
        if arrival.is_first is not None:
            for env in envs[arrival.is_first].tolist():
                # An episode that begins where one was cut off stands in for it.
                self._may_start += int(self._counts[env])
                self._counts[env] = self._may_start > 0
                self._may_start -= int(self._counts[env])

    def _add(self, arrival: Arrival, envs: np.ndarray) -> None:
        self.rows += len(envs)
        if arrival.is_first is not None:
            first = envs[arrival.is_first]
            died = self._lengths[first] > 0
            self.cut += int(died.sum())
            self._sums[first] = 0
            self._lengths[first] = -1
        self._sums[envs] += arrival.reward
        self._lengths[envs] += 1
        self.steps += arrival.steps
        for flags in (arrival.terminated, arrival.truncated):
            if flags is not None:
                for env in envs[flags].tolist():
                    self._finish(env)

    def _finish(self, env: int) -> None:
        if self._lengths[env] < 0:  # both flags were set
            return
        self.returns.append(float(self._sums[env]))
        self.lengths.append(int(self._lengths[env]))
        self._lengths[env] = -1
        if not self._unlimited:
            self._counts[env] = False
