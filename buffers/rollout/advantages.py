"""Generalized advantage estimation."""

from __future__ import annotations

import numpy as np

__all__ = ["generalized_advantages"]


def generalized_advantages(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    *,
    terminated: np.ndarray,
    ends: np.ndarray,
    gamma: float,
    lam: float,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """GAE (Schulman et al. 2016, arXiv:1506.02438) of rows that lie one after the other.

    The advantage of row t is the sum over l of ``(gamma * lam)**l * delta[t + l]``, up to the end
    that follows, with ``delta[t] = reward[t] + gamma * next_value[t] - value[t]``.

    Args:
        reward: What the action of each row brought, ``[T, ...]``: [T, N], or [T] of one env.
        value: V of each row's observation, of the same shape as all that follows.
        next_value: V of what followed on each action: of the true last observation where an episode
            was truncated, never of a reset's. Where the MDP terminated it is not looked at.
        terminated: The MDP ended with the step from this row, bool.
        ends: Nothing is added up over this row's end, bool: terminated, truncated or cut. The last
            row need not be marked.
        gamma: Discount of a step, from 0 to 1.
        lam: Lambda, from 0 to 1: 0 looks one step ahead, 1 to the episode's end.
        mask: A step was taken from this row, bool; None: from each. What stands in others is not
            looked at.

    Returns:
        Advantages, float64, ``[T, ...]``; 0 where ``mask`` is False.

    Raises:
        ValueError: A shape is another one, or gamma or lam is out of range.

    Example:
        >>> reward, value, following = np.ones(3), np.full(3, 5.0), np.array([5.0, 5.0, 7.0])
        >>> is_end = np.array([False, False, True])
        >>> nowhere = np.zeros(3, bool)
        >>> generalized_advantages(
        ...     reward, value, following, terminated=nowhere, ends=is_end, gamma=1, lam=0.5
        ... )
        array([2.25, 2.5 , 3.  ])
        >>> generalized_advantages(
        ...     reward, value, following, terminated=is_end, ends=is_end, gamma=1, lam=0.5
        ... )
        array([ 0.5, -1. , -4. ])
    """
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
    """The array as float64, with 0 in place of what does not count, which may be nan."""
    return np.where(condition, np.asarray(array, np.float64), 0)


def _check_fraction(name: str, number: float) -> None:
    if not 0 <= number <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {number}; give one")
