"""Join the infos of several envs into arrays, fast where all of them say the same things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["plain_columns"]

_PLAIN = (int, float, bool)


def plain_columns(
    infos: Sequence[tuple[int, dict[str, Any]]], num_envs: int
) -> dict[str, Any] | None:
    """What gymnasium's `VectorEnv._add_info` makes of infos, if they are plain; else None.

    Plain are infos of all envs with the same keys and with numbers of the same type: those of
    emulators in most steps. Gymnasium goes through them value by value, which for 12 numbers of 8
    envs takes 150 us of the 4,500 that two workers take for the step on the fastest NES emulator.

    Args:
        infos: (index, info) of the envs.
        num_envs: N.

    Returns:
        For each key an array [N] and under "_key" the mask, all True.

    Example:
        >>> plain_columns([(0, {"lives": 3}), (1, {"lives": 2})], 2)
        {'lives': array([3, 2]), '_lives': array([ True,  True])}
        >>> plain_columns([(1, {"lives": 2})], 2) is None
        True
    """
    if len(infos) != num_envs or [index for index, _ in infos] != list(range(num_envs)):
        return None
    first = infos[0][1]
    if any(info.keys() != first.keys() for _, info in infos):
        return None
    collected: dict[str, Any] = {}
    for key, value in first.items():
        kind = type(value)
        column = [info[key] for _, info in infos]
        # A final observation, or a key that looks like a mask, is gymnasium's to deal with.
        is_plain = kind in _PLAIN and key != "final_obs" and not key.startswith("_")
        if not is_plain or any(type(one) is not kind for one in column):
            return None
        collected[key] = np.array(column, kind)
        collected[f"_{key}"] = np.ones(num_envs, np.bool_)
    return collected
