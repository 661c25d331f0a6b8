"""The ended episodes in a ring of steps, and goals that were achieved in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np

__all__ = ["EpisodeRing", "Strategy", "strategy_of"]

Strategy: TypeAlias = Literal["future", "final", "episode"]
_Numbers: TypeAlias = "Callable[[np.ndarray | int, np.ndarray], np.ndarray]"


class EpisodeRing:
    """Which places of a ring of steps of N envs belong to an ended episode, all of it still there.

    A place is ``step * N + env``. Where the first step of an ended episode is overwritten, none of
    its steps is drawn any more, as in SB3's ``HerReplayBuffer``.

    Args:
        size: Steps of the ring.
        num_envs: Number of envs N.

    Attributes:
        start: [size, N] int64: step at which the episode of each step begins.
        length: [size, N] int64: steps of its episode; 0 unless that has ended.
        begun: [N] int64: step at which each env's open episode begins.

    Example:
        >>> ring = EpisodeRing(4, 1)
        >>> for step in range(3):
        ...     ring.begin(step)
        >>> ring.end(0, 3)
        >>> ring.drawable()
        array([0, 1, 2])
        >>> ring.goals(np.array([0, 1]), "final", np.random.default_rng(0).integers)
        array([2, 2])
        >>> ring.begin(3)
        >>> ring.begin(0)  # overwrites the episode's first step
        >>> ring.drawable()
        array([], dtype=int64)
    """

    def __init__(self, size: int, num_envs: int) -> None:
        self.start = np.zeros((size, num_envs), np.int64)
        self.length = np.zeros((size, num_envs), np.int64)
        self.begun = np.zeros(num_envs, np.int64)
        self._drawable: np.ndarray | None = None

    def begin(self, step: int) -> None:
        """A step of all envs is written: leave out the episodes that it overwrites."""
        for env in self.length[step].nonzero()[0].tolist():
            steps = step + np.arange(self.length[step, env])
            self.length[steps % len(self.length), env] = 0
            self._drawable = None
        self.start[step] = self.begun

    def end(self, env: int, step: int) -> None:
        """An env's episode has ended before a step, with which its next one begins."""
        begun = self.begun.item(env)
        # Of an episode that is longer than the ring this leaves the last steps, as in SB3.
        length = (step - begun) % len(self.length)
        self.length[(begun + np.arange(length)) % len(self.length), env] = length
        self.begun[env] = step
        self._drawable = None

    def drawable(self) -> np.ndarray:
        """[n] int64: the places of all steps of ended episodes, in order."""
        if self._drawable is None:
            self._drawable = np.flatnonzero(self.length)
        return self._drawable

    def goals(self, places: np.ndarray, strategy: Strategy, draw: _Numbers) -> np.ndarray:
        """The places of steps after which the goal of a step was achieved.

        Args:
            places: [n]: places of the steps.
            strategy: ``"future"``: uniformly from the step itself to the last one of its episode;
                ``"final"``: that last one; ``"episode"``: uniformly of all its episode.
            draw: Draws whole numbers [n], each from a lowest one up to below another.

        Returns:
            [n] int64.
        """
        size, num_envs = self.start.shape
        start, length = self.start.ravel().take(places), self.length.ravel().take(places)
        step, env = np.divmod(places, num_envs)
        if strategy == "final":
            number = length - 1
        elif strategy == "future":
            number = draw((step - start) % size, length)
        else:
            number = draw(0, length)
        found: np.ndarray = (start + number) % size * num_envs + env
        return found


def strategy_of(value: object) -> Strategy:
    """The name of a strategy, or of a member of SB3's ``GoalSelectionStrategy``, in small letters.

    Raises:
        ValueError: There is no such strategy.

    Example:
        >>> strategy_of("Future")
        'future'
    """
    found = str(getattr(value, "name", value)).lower()
    names: tuple[Strategy, ...] = get_args(Strategy)
    for name in names:
        if name == found:
            return name
    raise ValueError(f"goal_selection_strategy: expected one of {', '.join(names)}, got {value!r}")
