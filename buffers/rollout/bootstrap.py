"""What followed on the open ends of a rollout, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.buffers.rollout.numbers import place, row_numbers

__all__ = ["Bootstrap", "BootstrapValue", "bootstrap_values"]

BootstrapValue: TypeAlias = "npt.ArrayLike | Callable[..., npt.ArrayLike]"
"""[K] values, or a function that is called as f(observation), or f(observation, state) where the
policy is recurrent, and gives them."""


class Bootstrap(NamedTuple):
    """The K open ends of a rollout: behind these rows the episode goes on, was truncated, or cut.

    Args:
        step: [K] int64: row t of the open end.
        env: [K] int64: its column n.
        observation: What followed on ``action[t, n]``, [K, ...]: the true last observation of a
            truncated or cut episode, the newest one where the rollout ends inside an episode. Never
            a reset's.
        state: A recurrent policy's state after row t, [K, ...]; None for a policy without.
        value: [K]: what the policy's own ``value`` method gave for them; None where it has none.
    """

    step: np.ndarray
    env: np.ndarray
    # Any: arrays, or nested ones, which a reader wants to index without asking which.
    observation: Any
    state: Any | None
    value: np.ndarray | None


def bootstrap_values(bootstrap: Bootstrap, given: BootstrapValue | None) -> np.ndarray:
    """V of what followed on each open end, [K].

    Args:
        bootstrap: The open ends.
        given: The values, or who gives them; the bootstrap's own ones when None.

    Raises:
        ValueError: There are none, or not one finite number for each.
    """
    count = len(bootstrap.step)
    name = "bootstrap_value"
    if count == 0:
        return np.zeros(0)
    if given is None:
        name, given = "bootstrap.value", bootstrap.value
    elif callable(given):
        name = "what bootstrap_value gave"
        state = () if bootstrap.state is None else (bootstrap.state,)
        given = given(bootstrap.observation, *state)
    if given is None:
        raise ValueError(
            f"{name}: expected the values of {count} open ends, got None; give the policy a method "
            f"value(observation), or pass bootstrap_value="
        )
    values = row_numbers(name, given, (count,))
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        where = place(int(bootstrap.step[bad[0]]), int(bootstrap.env[bad[0]]))
        raise ValueError(
            f"{name}: expected finite numbers, got {values[bad[0]]} behind {where}; see what the "
            f"value function was given"
        )
    return values
