"""Which episodes count, and what they came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from stepwell.collectors.report import EpisodeReport
from stepwell.collectors.step_result import StepResult

__all__ = ["EpisodeCounter"]


class EpisodeCounter:
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
        self._numbers = np.full(num_envs, -1, np.int64)
        self._seeds: list[int | None] = [None] * num_envs
        self._waiting: list[int] | None = None
        self._next_number = 0
        self.total_steps = 0  # those of episodes that do not count, too
        self.begin()

    def reserve(self, episodes: int) -> list[int]:
        """Numbers for so many episodes."""
        first, self._next_number = self._next_number, self._next_number + episodes
        return list(range(first, self._next_number))

    def begin(self, numbers: Sequence[int] | None = None, *, replaces: bool = True) -> None:
        """Start a new count.

        Args:
            numbers: Only so many of the episodes that start from now on count, under these numbers;
                None for all.
            replaces: An episode that begins where one was cut off stands in for it; else its env
                is noted as ``lost``.
        """
        self.steps = 0
        self.rows = 0
        self.ended: list[EpisodeReport] = []
        self._told = 0
        self.cut = 0
        self.restarts = 0
        self.lost: list[int] = []
        self._replaces = replaces
        self._waiting = None
        if numbers is not None:
            self.go_on(numbers)

    def go_on(self, numbers: Sequence[int]) -> None:
        """Count so many of the episodes that start from now on, to what was counted so far."""
        self._waiting = list(numbers)
        self._counts[:] = False
        self.lost = []

    @property
    def is_complete(self) -> bool:
        """All episodes that were asked for have ended."""
        return self._waiting == [] and not self._counts.any()

    @property
    def returns(self) -> list[float]:
        """Sum of rewards of each episode that ended."""
        return [one.total_reward for one in self.ended]

    @property
    def lengths(self) -> list[int]:
        """Env steps of each episode that ended."""
        return [one.steps for one in self.ended]

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return len(self._all)

    def newly_ended(self) -> list[EpisodeReport]:
        """The episodes that ended since this was asked."""
        told, self._told = self._told, len(self.ended)
        return self.ended[told:]

    def envs_of(self, arrival: StepResult) -> np.ndarray:
        """[n] the envs of an arrival."""
        return self._all if arrival.env_ids is None else arrival.env_ids

    def numbers(self, envs: np.ndarray) -> np.ndarray:
        """[n] numbers of the episodes of the envs' newest rows, -1 where they do not count."""
        found: np.ndarray = self._numbers[envs]
        return found

    def count(self, arrival: StepResult) -> StepResult | None:
        """Count what arrived and return the rows that are to be recorded, None for none."""
        envs = self.envs_of(arrival)
        self.restarts += arrival.restarts
        self.total_steps += arrival.steps
        if arrival.is_first is not None:
            self._start(envs[arrival.is_first].tolist(), arrival.metadata or {})
        if self._waiting is not None:
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
        self._numbers[:] = -1
        self.cut += cut
        return cut

    def _start(self, envs: list[int], metadata: Mapping[int, Mapping[str, object]]) -> None:
        """Choose and number the episodes that begin."""
        for env in envs:
            self._seeds[env] = cast("int | None", metadata.get(env, {}).get("seed"))
            if self._waiting is None:
                self._numbers[env] = self.reserve(1)[0]
            elif not self._counts[env]:
                self._counts[env] = bool(self._waiting)
                self._numbers[env] = self._waiting.pop(0) if self._waiting else -1
            elif not self._replaces:  # here an episode was cut off
                self._counts[env], self._numbers[env] = False, -1
                self.cut += int(self._lengths[env] > 0)
                self.lost.append(env)

    def _add(self, arrival: StepResult, envs: np.ndarray) -> None:
        self.rows += len(envs)
        if arrival.is_first is not None:
            first = envs[arrival.is_first]
            died = self._lengths[first] > 0
            self.cut += int(died.sum())
            self._sums[first] = 0
            self._lengths[first] = -1
        # Whole arrays where possible: an index costs more than the sum.
        rows = slice(None) if envs is self._all else envs
        self._sums[rows] += arrival.reward
        self._lengths[rows] += 1
        self.steps += arrival.steps
        if arrival.terminated is not None or arrival.truncated is not None:
            nobody = np.zeros(len(envs), np.bool_)
            terminated = nobody if arrival.terminated is None else arrival.terminated
            truncated = nobody if arrival.truncated is None else arrival.truncated
            for place in np.flatnonzero(terminated | truncated).tolist():
                self._finish(int(envs[place]), bool(terminated[place]), bool(truncated[place]))

    def _finish(self, env: int, terminated: bool, truncated: bool) -> None:
        report = EpisodeReport(
            episode=int(self._numbers[env]),
            env=env,
            total_reward=float(self._sums[env]),
            steps=int(self._lengths[env]),
            terminated=terminated,
            truncated=truncated,
            seed=self._seeds[env],
            total_steps=self.total_steps,
        )
        self.ended.append(report)
        self._lengths[env] = -1
        if self._waiting is not None:
            self._counts[env] = False
