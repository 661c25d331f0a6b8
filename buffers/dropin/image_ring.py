"""A ring of steps that begin with an image, for the buffers of Dreamer and IRIS."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn, Self

import numpy as np

from ..base.errors import NotEnoughData, not_copied
from ..replay.replay import SequenceReplayBuffer
from ..sampling.batch import Batch
from ..spec.spec import Codec
from .transition_writer import (
    NOT_COPIED,
    TransitionWriter,
    check_whole,
    checked_shape,
    close_at_end,
    new_replay,
    row_field,
)

__all__ = ["IMAGE", "VECTOR", "DrawnSequences", "ImageRing", "TooFew", "shortage"]

IMAGE, VECTOR = np.dtype(np.uint8), np.dtype(np.float32)


class ImageRing(ABC):
    """A replay of uint8 images and float32 actions, and its writer."""

    # Where actions are `one_hot` they are given as numbers.

    def __reduce__(self) -> NoReturn:
        not_copied(*NOT_COPIED)

    def __init__(
        self,
        size: int,
        obs_shape: Sequence[int],
        action_size: int,
        seq_len: int,
        batch_size: int,
        *,
        path: str | os.PathLike[str] | None,
        num_envs: int,
        seed: int | None,
        codec: Codec | None,
        one_hot: bool,
    ) -> None:
        self.size = size
        self.obs_shape = checked_shape("obs_shape", obs_shape)
        self.action_size = action_size
        self.seq_len = seq_len
        self.batch_size = batch_size
        self._is_one_hot = one_hot
        check_whole("size", size, 1)
        check_whole("action_size", action_size, 1)
        check_whole("seq_len", seq_len, 1)
        check_whole("batch_size", batch_size, 1)
        check_whole("num_envs", num_envs, 1)
        if seq_len > size:
            raise ValueError(
                f"seq_len: expected at most size={size}, got {seq_len}; no episode can have that "
                f"many steps: raise size"
            )
        image = row_field("observation", IMAGE, tuple(obs_shape), path=path, codec=codec)
        action = row_field("action", VECTOR, (action_size,), path=path)
        # In an episode without its first rows the last row counts as a step, but no draw begins
        # there.
        self.replay: SequenceReplayBuffer = new_replay(size + num_envs, path, seed=seed)
        """The underlying replay, which holds the steps and has more ways to draw them."""
        try:
            self._writer = TransitionWriter(self.replay, image, action, num_envs=num_envs, facts={})
        except Exception:
            self.replay.close()  # otherwise the folder stays locked
            raise
        if path is not None:
            close_at_end(self)

    @property
    def steps(self) -> int:
        """Steps ever added."""
        return self._writer.steps

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        return self._writer.episodes

    @property
    def idx(self) -> int:
        """The next write index of a ring of ``size`` steps."""
        return self.steps % self.size

    @property
    def full(self) -> bool:
        """True if at least ``size`` steps were added."""
        return self.steps >= self.size

    @abstractmethod
    def close(self) -> None:
        """Store added steps, and release files and locks; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DrawnSequences(tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Observations, actions, rewards and terminals, and the batch that they were made from.

    Args:
        observations: In the form of the method that drew them, as are the others.
        actions: float32.
        rewards: float32.
        terminals: float32: 1 where the episode ended, terminated or truncated.
        batch: The batch they come from, with ``is_first``, ``terminated``, ``truncated``,
            ``mask``, ``ids``, and ``info["observed"]``: False for observations filled in.
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


class TooFew(NotEnoughData, ValueError):
    """Fewer steps than requested; also a ValueError, which callers of the originals expect."""


def shortage(replay: SequenceReplayBuffer, length: int, *, is_across: bool) -> NotEnoughData:
    """The error of a draw that finds no sequence of ``length`` steps, across ends or not."""
    records = replay.storage.index.records
    last = records[records["is_tail"] == 1]
    steps = last["first_row"] + last["rows"] - last["head"] - 1
    where = "of one env" if is_across else "in one episode"
    return NotEnoughData(
        f"expected {length} steps {where} to draw from, got {len(replay)} in all, at most "
        f"{max(0, steps.max(initial=0))} in one episode; add more, or draw shorter sequences"
    )
