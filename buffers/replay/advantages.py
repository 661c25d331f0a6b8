"""Generalized advantage estimation, and the values and flags that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..spec.spec import ArrayTree, as_array


def generalized_advantages(
    # of each row's action, [T, N], or [T] for one env; all arrays have this shape
    reward: np.ndarray,
    value: np.ndarray,  # V of each row's observation
    # V of the observation after each action: the true last one where an episode was truncated,
    # never a reset's; ignored where the MDP terminated
    next_value: np.ndarray,
    *,
    terminated: np.ndarray,  # bool: the MDP ended with the step from this row
    # bool: the sum stops after this row, which is terminated, truncated or cut; the last row need
    # not be marked
    ends: np.ndarray,
    gamma: float,  # from 0 to 1
    lam: float,  # from 0 to 1: 0 looks one step ahead, 1 to the episode's end
    # bool: a step was taken from this row; None for all; others are ignored, and get 0
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """GAE (Schulman et al. 2016, arXiv:1506.02438) of consecutive rows, float64 ``[T, ...]``."""
    # The advantage of row t is the sum over l of ``(gamma * lam)**l * delta[t + l]``, up to the end
    # that follows, with ``delta[t] = reward[t] + gamma * next_value[t] - value[t]``.
    _check_fraction("gamma", gamma)
    _check_fraction("lam", lam)
    taken = np.ones(reward.shape, bool) if mask is None else mask
    given = {"value": value, "next_value": next_value, "terminated": terminated, "ends": ends}
    for name, array in {**given, "mask": taken}.items():
        if array.shape != reward.shape:
            raise ValueError(
                f"{name}: expected the reward's shape {reward.shape}, got {array.shape}; give each "
                f"of them one number for each row"
            )
    follows = _where(taken & ~terminated, next_value)
    delta = _where(taken, reward) + float(gamma) * follows - _where(taken, value)
    decay = float(gamma) * float(lam) * (taken & ~terminated & ~ends)
    advantage = np.empty(reward.shape)
    later = np.zeros(reward.shape[1:])
    for t in reversed(range(len(reward))):
        later = delta[t] + decay[t] * later
        advantage[t] = later
    return advantage


def _where(condition: np.ndarray, array: np.ndarray) -> np.ndarray:
    """The array as float64, with 0 where the condition is False and the array may be nan."""
    return np.where(condition, np.asarray(array, np.float64), 0)


def _check_fraction(name: str, number: float) -> None:
    if not 0 <= number <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {number}; give one")


BootstrapValue: TypeAlias = "npt.ArrayLike | Callable[..., npt.ArrayLike]"
"""[K] values, or a function that returns them. It is called as f(observation), or for a recurrent
policy as f(observation, state)."""


class Bootstrap(NamedTuple):
    """The K open ends of a rollout: rows after which an episode continues, or was truncated or cut.

    Args:
        step: [K] int64: row t of the open end.
        env: [K] int64: its column n.
        observation: The observation after ``action[t, n]``, [K, ...]: the true last observation of
            a truncated or cut episode, or the newest one where the rollout ends inside an episode.
            Never a reset's.
        state: A recurrent policy's state after row t, [K, ...]; None for a policy without.
        value: [K]: results of the policy's ``value`` method; None for a policy without one.
    """

    step: np.ndarray
    env: np.ndarray
    observation: ArrayTree
    state: Any | None
    value: np.ndarray | None


def bootstrap_values(
    bootstrap: Bootstrap,
    # values, or a function that returns them; None for those in `bootstrap`
    given: BootstrapValue | None,
) -> np.ndarray:
    """V of the observation after each open end, [K]."""
    count = len(bootstrap.step)
    name = "bootstrap_value"
    if count == 0:
        return np.zeros(0)
    if given is None:
        name, given = "bootstrap.value", bootstrap.value
    elif callable(given):
        name = "result of bootstrap_value"
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
            f"{name}: expected finite numbers, got {values[bad[0]]} after {where}; check the "
            f"inputs of the value function"
        )
    return values


class RowFlags(NamedTuple):
    """The flags of a rollout's rows, [T, N] bool; `Rollout` documents them."""

    is_first: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    mask: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """[T, N] bool: the step from this row is the last recorded one of its episode."""
        found: np.ndarray = self.terminated | self.truncated | self.cut
        return found

    def check_ends(self, bootstrap: Bootstrap) -> None:
        """Raise ValueError where an end is not marked, or has not one entry in ``bootstrap``."""
        # An end that also terminated may have an entry; it is ignored.
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
                f"{times[step, env]} times; list the observation after each row that is truncated, "
                f"cut, or the last one, and not terminated"
            )

    def _check_marks(self) -> None:
        """Raise ValueError where the next row begins another episode and no end is marked."""
        continues = self.mask[:-1] & ~self.ends[:-1]
        wrong = np.argwhere(continues & (self.is_first[1:] | ~self.mask[1:]))
        if len(wrong):
            step, env = wrong[0]
            why = "begins an episode" if self.is_first[step + 1, env] else "has no step"
            raise ValueError(
                f"{place(step, env)}: expected terminated, truncated or cut, as the row after it "
                f"{why}, got none of them; set the one that holds"
            )

    def _times(self, bootstrap: Bootstrap) -> np.ndarray:
        """The number of entries of each row, [T, N]."""
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


def row_numbers(
    name: str,
    given: npt.ArrayLike,  # an array, or a tensor on any device
    shape: tuple[int, ...],  # nothing is broadcast
) -> np.ndarray:
    """An array of numbers, one for each row; a tensor is detached."""
    array = as_array(given)
    if array.shape != shape:
        advice = "leave its last axis out" if array.shape == (*shape, 1) else "give one for each"
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}; {advice}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers, got {array.dtype}; convert it")
    return array


def check_finite(
    name: str,
    array: np.ndarray,  # [T, N]
    mask: np.ndarray,  # [T, N] bool: the rows to check
    advice: str,  # for the user
) -> None:
    """Raise ValueError where a row of ``mask`` has no finite number: it would spread to others."""
    bad = np.argwhere(mask & ~np.isfinite(array))
    if len(bad):
        step, env = bad[0]
        raise ValueError(
            f"{name}: expected finite numbers, got {array[step, env]} in {place(step, env)}; "
            f"{advice}"
        )


def place(step: int, env: int) -> str:
    """A position in a rollout, for an error."""
    return f"row {step} of env {env}"
