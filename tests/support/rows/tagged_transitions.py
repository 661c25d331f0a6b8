"""Transitions that contain their place, and the plain list of episodes that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

__all__ = ["OBS_SHAPE", "Play", "Played", "Step", "image", "plays"]

OBS_SHAPE = (4, 2, 12)
"""More than 64 bytes, up to which fields are gathered in another way."""


def image(env: int, episode: int, step: int, *, is_last: bool = False) -> np.ndarray:
    """The observation of a step; that of an episode's end says so."""
    found = np.arange(96, dtype=np.uint8).reshape(OBS_SHAPE) + np.uint8(step % 100)
    found[:3, 0, :2] = (env, episode), (step % 256, step // 256), (int(is_last), 7)
    return found


class Step(NamedTuple):
    """The next command for an env."""

    env: int  # which env
    ends: int  # 0: the episode goes on, 1: it terminates, 2: its clock ends it
    has_final: bool  # the observation that it ends with is given


@dataclass(eq=False)
class Played:
    """An episode: T steps, and whether and how it ended."""

    env: int
    number: int
    steps: int = 0
    ends: int = 0
    has_final: bool = False

    def observation(self, step: int) -> np.ndarray:
        """The observation before step ``step``; after the last step, the last observation."""
        if step < self.steps:
            return image(self.env, self.number, step)
        if self.has_final:
            return image(self.env, self.number, step, is_last=True)
        return self.observation(step - 1)

    def action(self, step: int) -> list[float]:
        return [self.env + 1, self.number * 300 + step]

    def reward(self, step: int) -> float:
        return self.number + step / 8 + self.env * 1000

    def terminal(self, step: int) -> float:
        return float(self.ends > 0 and step == self.steps - 1)


class Play:
    """Adds tagged transitions to a buffer, and keeps them as a list of episodes.

    Args:
        add: The buffer's `add`, its named arguments included.
        wrap: Makes of an image what the buffer takes for an observation.
    """

    def __init__(self, add: Any, wrap: Any = lambda array: array) -> None:
        self.episodes: list[Played] = []
        self.count = 0
        self._add, self._wrap = add, wrap
        self._open: dict[int, Played] = {}

    def step(self, step: Step) -> None:
        """Take a step."""
        played = self._open.get(step.env)
        if played is None:
            played = self._open[step.env] = Played(step.env, len(self.episodes))
            self.episodes.append(played)
        number = played.steps
        played.steps, played.ends = number + 1, step.ends
        played.has_final = step.ends > 0 and step.has_final
        self.count += 1
        final = self._wrap(played.observation(number + 1)) if played.has_final else None
        self._add(
            self._wrap(image(step.env, played.number, number)),
            np.array(played.action(number), np.float32),
            played.reward(number),
            step.ends > 0,
            env=step.env,
            truncated=step.ends == 2,
            final_obs=final,
        )
        if step.ends:
            del self._open[step.env]

    def run(self, lengths: Sequence[int], env: int = 0, *, ends: int = 1) -> None:
        """Play whole episodes of one env; a last length below 0 is that of one that goes on."""
        for length in lengths:
            for number in range(abs(length)):
                is_last = length > 0 and number == length - 1
                self.step(Step(env, ends if is_last else 0, has_final=True))

    def of(self, observation: np.ndarray) -> tuple[Played, int]:
        """The episode and the step that an observation contains."""
        number, low, high = (int(observation[place]) for place in ((0, 0, 1), (1, 0, 0), (1, 0, 1)))
        played = self.episodes[number]
        assert int(observation[0, 0, 0]) == played.env
        return played, low + 256 * high

    def windows(self, length: int, *, newest: bool) -> set[tuple[int, int]]:
        """(episode, first step) of all runs of so many steps.

        Args:
            length: Steps in each.
            newest: Also those that end with a step whose next observation has not come.
        """
        return {
            (played.number, first)
            for played in self.episodes
            for first in range(played.steps - (not played.ends and not newest) - length + 1)
        }


def steps(envs: int) -> st.SearchStrategy[Step]:
    """Steps of so many envs."""
    ends = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
    return st.builds(Step, st.integers(0, envs - 1), ends, st.booleans())


def plays(envs: int) -> st.SearchStrategy[list[list[Step]]]:
    """Changes between one draw and the next."""
    return st.lists(st.lists(steps(envs), min_size=1, max_size=25), min_size=1, max_size=6)
