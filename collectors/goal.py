"""What a collect is to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepwell.collectors.stepping.dialect import Vector, is_partial

__all__ = ["Wave", "check_goal", "check_number", "waves_of"]

_SEEDS = 2**31  # what every env takes


class Wave(NamedTuple):
    """Seeds of one reset of all envs.

    Args:
        seeds: Those from which an episode is to be recorded, for the first envs.
        filled: N seeds, one for each env.
    """

    seeds: Sequence[int]
    filled: Sequence[int]


def check_number(name: str, value: object) -> None:
    """Refuse what is no whole number from 1 on.

    Raises:
        ValueError: It is none.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < 1:  # type: ignore[operator]
        raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")


def check_goal(
    steps: int | None,
    episodes: int | None,
    seeds: Sequence[int] | None,
    groups: Sequence[Vector],
) -> None:
    """Refuse a goal that cannot be reached.

    Raises:
        ValueError: Not exactly one is given, or it makes no sense for these envs.
    """
    if sum(goal is not None for goal in (steps, episodes, seeds)) != 1:
        raise ValueError(
            f"collect: expected one of steps, episodes and seeds, got steps={steps}, "
            f"episodes={episodes} and seeds={seeds}"
        )
    for name, value in (("steps", steps), ("episodes", episodes)):
        if value is not None:
            check_number(name, value)
    if seeds is not None:
        _check_seeds(seeds, groups)


def waves_of(seeds: Sequence[int] | None, num_envs: int) -> list[Wave] | None:
    """As many seeds at a time as there are envs; None for none.

    Example:
        >>> [wave.filled for wave in waves_of([7, 8, 9], num_envs=2)]
        [[7, 8], [9, 9]]
    """
    if seeds is None:
        return None
    given = [int(seed) for seed in seeds]
    parts = [given[start : start + num_envs] for start in range(0, len(given), num_envs)]
    return [Wave(part, part + part[:1] * (num_envs - len(part))) for part in parts]


def _check_seeds(seeds: Sequence[int], groups: Sequence[Vector]) -> None:
    if isinstance(seeds, str | bytes) or not hasattr(seeds, "__len__") or not len(seeds):
        raise ValueError(f"seeds: expected a list of at least one whole number, got {seeds!r}")
    for seed in seeds:
        is_whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if not is_whole or not 0 <= seed < _SEEDS:
            raise ValueError(f"seeds: expected whole numbers from 0 to {_SEEDS - 1}, got {seed!r}")
    if any(map(is_partial, groups)):
        raise ValueError(
            "seeds: expected envs that all answer at once, got ale-py's with a batch_size below "
            "num_envs, whose order of answers is the machine's; make them without batch_size"
        )
