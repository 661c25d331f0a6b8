"""Several vector envs stepped in turns: the policy computes for one while the others step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepwell.buffers import Tree
from stepwell.collectors.step_result import StepResult
from stepwell.collectors.vector_stepper import Stepper

__all__ = ["StepperGroups"]


class StepperGroups:
    """Looks like one `Stepper` that answers for one group of envs at a time.

    Envs are numbered through: those of the first group come first.

    Args:
        steppers: One for each group, two or more.
    """

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        self._steppers = list(steppers)
        counts = [stepper.num_envs for stepper in steppers]
        ends = np.cumsum(counts).tolist()
        self._env_ids = [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._turn = 0
        self._is_under_way = [False] * len(counts)
        self.num_envs: int = ends[-1]

    @property
    def observation(self) -> Tree:
        """Observations of the group whose turn it is."""
        return self._steppers[self._turn].observation

    @property
    def is_first(self) -> np.ndarray:
        """[n] bool: an episode of that group begins with it."""
        return self._steppers[self._turn].is_first

    @property
    def env_ids(self) -> np.ndarray | None:
        """[n] envs of the group whose turn it is."""
        return self._env_ids[self._turn]

    @property
    def unsure(self) -> np.ndarray | None:
        """None: rows of which only the next step tells whether they ended are refused."""
        return None

    @property
    def newest(self) -> list[StepResult]:
        """The newest rows of all groups of which none is under way."""
        return [
            self._told(group, arrival)
            for group, stepper in enumerate(self._steppers)
            for arrival in stepper.newest
        ]

    def reset(self, seed: int | Sequence[int]) -> list[StepResult]:
        """Reset all envs; env i gets ``seed + i``, or the i-th seed."""
        self.drain()
        self._turn = 0
        return [
            self._told(group, arrival)
            for group, stepper in enumerate(self._steppers)
            for arrival in stepper.reset(_part(seed, self._env_ids[group]))
        ]

    def send(self, action: Tree) -> None:
        """Begin a step of the group whose turn it is."""
        self._steppers[self._turn].send(action)
        self._is_under_way[self._turn] = True

    def receive(self) -> list[StepResult]:
        """Pass the turn on, and finish the next group's step if one is under way."""
        self._turn = (self._turn + 1) % len(self._steppers)
        return self._finished(self._turn)

    def gather(self) -> list[StepResult]:
        """Finish all steps that are under way; the turn stays where it is."""
        groups = range(len(self._steppers))
        return [arrival for group in groups for arrival in self._finished(group)]

    def drain(self) -> None:
        """Wait for the steps that were begun and never received, and forget what they bring."""
        self._is_under_way = [False] * len(self._steppers)
        for stepper in self._steppers:
            stepper.drain()

    def went_on(self, unsure: np.ndarray) -> np.ndarray:
        """Never asked: no row is unsure."""
        raise AssertionError

    def _finished(self, group: int) -> list[StepResult]:
        if not self._is_under_way[group]:
            return []
        self._is_under_way[group] = False
        arrivals = self._steppers[group].receive()
        if self._steppers[group].unsure is not None:
            raise ValueError(
                "life_loss_info=True: expected one vector env with it, got several in turns; make "
                "the envs without it, or give the Collector one vector env"
            )
        return [self._told(group, arrival) for arrival in arrivals]

    def _told(self, group: int, arrival: StepResult) -> StepResult:
        """The rows with the numbers that their envs have among all."""
        ids, own = self._env_ids[group], arrival.env_ids
        facts = arrival.metadata
        return replace(
            arrival,
            env_ids=ids if own is None else ids[own],
            metadata=facts and {int(ids[env]): one for env, one in facts.items()},
        )


def _part(seed: int | Sequence[int], env_ids: np.ndarray) -> int | Sequence[int]:
    """The seeds of some envs that follow each other."""
    first = int(env_ids[0])
    return seed + first if isinstance(seed, int) else seed[first : first + len(env_ids)]
