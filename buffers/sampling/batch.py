"""What an off-policy learner gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Batch", "TransitionBatch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of rows, arrays ``[B, T, ...]`` in memory that the caller owns.

    Row ``t`` holds what *arrived* with ``observation[:, t]`` and the action chosen from it; with
    ``align="transition"`` reward, info and flags (all but ``is_first``) are those that followed.
    Asked for with ``time_major=True`` the arrays are ``[T, B, ...]``, contiguous but for stacks and
    whole episodes, which are views. A field that was not asked for is None.

    Args:
        observation: Observations, nested like the env's space; ``[B, T, k, ...]`` where stacks were
            asked for: those are a view into ``[B, T + k - 1, ...]`` frames.
        action: Actions, nested like the env's space; zeros in the final row of an episode.
        reward: [B, T] float32: what the step into this row gave, 0 in a first row.
        is_first: [B, T] bool: the row of a reset.
        is_last: [B, T] bool: terminated, truncated or cut.
        terminated: [B, T] bool: the MDP ended with this row: do not bootstrap from it.
        truncated: [B, T] bool: the env's clock ended the episode with this row.
        cut: [B, T] bool: only the recording stopped here, or has not come further yet.
        mask: [B, T] bool: this is a stored row (or transition), not padding.
        lengths: [B] int64: how many of a sequence's rows are that.
        info: Stored info fields, [B, T, ...] by name.
        extras: Stored policy extras, [B, T, ...] by name.
        ids: [B] int64: id of the row that each sequence was drawn by, stable and never reused: its
            first one after the burn-in, or with ``borders="pad_before"`` its last one.
        weights: [B] float32: importance weights of a draw by priorities, else ones.
        state: Extras of each sequence's first stored row alone, [B, ...] by name.
        next_observation: With ``align="transition"`` what followed on each action, a view; else
            None.
        burn_in: Number of leading rows that are there to bring a recurrent state up to date.
    """

    # Any: an array nearly always, which a reader wants to index without asking what it is.
    observation: Any
    action: Any
    reward: Any
    is_first: np.ndarray
    is_last: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    ids: np.ndarray
    weights: np.ndarray
    state: Mapping[str, np.ndarray]
    next_observation: Any = None
    burn_in: int = 0
    memory: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], repr=False)
    """What the arrays are views into: where ``out=`` puts the next batch."""


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Transitions of up to n steps, arrays ``[B, ...]`` in memory that the caller owns.

    The value to learn from is ``reward + discount * value(next_observation)``. A field that was not
    asked for is None.

    Args:
        observation: Observations, nested like the env's space; ``[B, k, ...]`` where stacked.
        action: Actions chosen from them.
        reward: [B] float32: n-step return, the sum of ``gamma**i`` times the i-th reward.
        next_observation: Observations ``steps`` later, of the same form as ``observation``. Under
            frame stacking both are views into the frames, of which each is copied once.
        discount: [B] float32: ``gamma**steps``, or 0 where the MDP terminated.
        terminated: [B] bool: the MDP ended with the next observation: do not bootstrap from it.
        truncated: [B] bool: the env's clock ended the episode there.
        cut: [B] bool: only the recording stopped there, or has not come further yet.
        steps: [B] int64: env steps between the two, fewer than n at an episode's end.
        info: Stored info fields that arrived with the *next* observation, [B, ...] by name.
        extras: Stored policy extras of the action, [B, ...] by name.
        ids: [B] int64: id of each transition's first row, stable and never reused.
        weights: [B] float32: importance weights of a draw by priorities, else ones.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    discount: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    steps: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    ids: np.ndarray
    weights: np.ndarray
    memory: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], repr=False)
    """What the arrays are views into: where ``out=`` puts the next batch."""
