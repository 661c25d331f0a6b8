"""What an off-policy learner gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of rows, arrays ``[B, T, ...]`` in memory that the caller owns.

    Row ``t`` holds what *arrived* with ``observation[:, t]`` and the action chosen from it.

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
        info: Stored info fields, [B, T, ...] by name.
        extras: Stored policy extras, [B, T, ...] by name.
        ids: [B] int64: id of each sequence's first row, stable and never reused.
    """

    # Any: an array nearly always, which a reader wants to index without asking what it is.
    observation: Any
    action: Any
    reward: np.ndarray
    is_first: np.ndarray
    is_last: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    ids: np.ndarray
