"""A ring of steps that begin with an image, for the buffers of Dreamer and IRIS."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from ..base.errors import NotEnoughData
from ..base.number_checks import check_whole
from ..replay.replay import SequenceReplayBuffer
from ..sampling.batch import Batch
from ..spec.spec import Codec
from .transition_writer import (
    ReplayOwner,
    TransitionWriter,
    checked_shape,
    new_replay,
    one_hot,
    row_field,
)

IMAGE, VECTOR = np.dtype(np.uint8), np.dtype(np.float32)


class ImageRing(ReplayOwner):
    """A replay of uint8 images and float32 actions, and its writer."""

    # Where actions are `one_hot` they are given as numbers.

    _newest: ClassVar[bool]  # the newest step of an open episode is stored as well

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
        self._fields = (
            row_field("observation", IMAGE, tuple(obs_shape), path=path, codec=codec),
            row_field("action", VECTOR, (action_size,), path=path),
        )
        self._num_envs = num_envs
        # In an episode without its first rows the last row counts as a step, but no draw begins
        # there.
        self.replay: SequenceReplayBuffer = new_replay(size + num_envs, path, seed=seed)
        """The underlying replay, which holds the steps and has more ways to draw them."""
        self._open(self.replay)

    def _begin(self) -> None:
        facts = {"source": f"torchwm {type(self).__name__}", "recipe": {}}
        self._writer = TransitionWriter(
            self.replay, *self._fields, num_envs=self._num_envs, facts=facts
        )

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

    def _chosen(self, name: str, action: object) -> object:
        """An action as it is stored; with `one_hot` its number was given."""
        return one_hot(name, action, self.action_size) if self._is_one_hot else action

    def _store_rest(self) -> None:
        self._writer.flush(newest=self._newest)


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
