"""What a collect is to reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.collectors.vector_envs import Vector, is_partial

__all__ = ["check_goal", "check_number", "seeds_for_all"]

_SEEDS = 2**31  # what every env takes


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


def seeds_for_all(seeds: Sequence[int], num_envs: int) -> list[int]:
    """A seed for each env: the ones given for the first envs, any for the others.

    Example:
        >>> seeds_for_all([7, 8], num_envs=3)
        [7, 8, 7]
    """
    return [*seeds, *[seeds[0]] * (num_envs - len(seeds))]


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
