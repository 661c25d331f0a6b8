"""Sequences as the tuple that an old caller unpacks."""

from __future__ import annotations

from typing import Self

import numpy as np

from stepwell.buffers.sampling.batch import Batch

__all__ = ["DrawnSequences"]


class DrawnSequences(tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Observations, actions, rewards and terminals, and the batch that they were made from.

    Args:
        observations: In the form of the method that drew them, as are the others.
        actions: float32.
        rewards: float32.
        terminals: float32: 1 where the episode ended, terminated or truncated.
        batch: What those four leave out: ``is_first``, ``terminated``, ``truncated``, ``mask``,
            ``ids``, and in ``info["observed"]`` which observations the caller has given.
    """

    batch: Batch

    def __new__(
        cls,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminals: np.ndarray,
        batch: Batch,
    ) -> Self:
        """See the class."""
        drawn = super().__new__(cls, (observations, actions, rewards, terminals))
        drawn.batch = batch
        return drawn
