"""The replay buffer of Dreamer agents, as torchwm's ``world_models.memory.dreamer_memory`` has it.

The line to change::

    from stepwell.buffers.dropin.dreamer import Episode, Memory, ReplayBuffer
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypeAlias, get_args

import numpy as np

from stepwell.buffers.dropin.declared import one_hot as one_hot_vector
from stepwell.buffers.dropin.drawn import DrawnSequences
from stepwell.buffers.dropin.flags import ended_by
from stepwell.buffers.dropin.image_ring import image_ring
from stepwell.buffers.dropin.ring import checked_shape
from stepwell.buffers.dropin.shortage import shortage
from stepwell.buffers.dropin.step_memory import MISSING, Episode, Memory
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Sequences
from stepwell.buffers.spec import Codec

__all__ = ["MISSING", "Borders", "Episode", "Memory", "ReplayBuffer"]

Borders: TypeAlias = Literal["inside", "cross"]
"""What a sequence does at the end of an episode: it ends there, or goes on with the next one."""


class ReplayBuffer:
    """Keeps the newest steps of one env or more, and draws sequences of them, time first.

    At least the newest ``size`` steps are there to be drawn, and up to a fifteenth more. `sample`
    may leave out the newest ones: up to a thousandth of all for each env, a hundredth at most.

    Args:
        size: Steps to keep.
        obs_shape: Shape of an image, as in ``(3, 64, 64)``.
        action_size: Length A of an action.
        seq_len: Steps in a sequence, L.
        batch_size: Sequences in a batch, B.
        borders: ``"inside"``: a sequence lies in one episode. ``"cross"``: it goes on with the next
            episode of its env. The observation that an episode ended with is a row of it, too,
            where it was not given the one before again; nothing was chosen from it (action 0,
            reward 0), and its terminal is 1, so that a model that begins anew behind a terminal
            begins anew with the next reset. ``batch.mask`` is False there, and ``batch.is_first``
            marks the resets.
        path: Folder of the store, continued if there is one; None keeps everything in RAM.
        num_envs: Number of envs N.
        seed: Seed of all draws; None draws one from the system.
        codec: How images are kept: ``"zstd"`` (in a folder, unless told) or ``"raw"`` (in RAM).
        one_hot: Actions are given as numbers from 0 to A - 1.

    Raises:
        ValueError: A number is no whole one, or too small; or ``seq_len`` is more than ``size``.
        SpecMismatch: The folder holds other data.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> import numpy as np
        >>> buffer = ReplayBuffer(1000, (3, 8, 8), action_size=2, seq_len=5, batch_size=4, seed=0)
        >>> for step in range(20):
        ...     image = np.full((3, 8, 8), step, np.uint8)
        ...     buffer.add({"image": image}, np.zeros(2), 1.0, step % 10 == 9)
        >>> obs, actions, rewards, terminals = buffer.sample()
        >>> obs.shape, actions.shape, rewards.shape, buffer.steps, buffer.episodes
        ((5, 4, 3, 8, 8), (5, 4, 2), (5, 4), 20, 2)
    """

    def __init__(
        self,
        size: int,
        obs_shape: Sequence[int],
        action_size: int,
        seq_len: int,
        batch_size: int,
        *,
        borders: Borders = "inside",
        path: str | os.PathLike[str] | None = None,
        num_envs: int = 1,
        seed: int | None = None,
        codec: Codec | None = None,
        one_hot: bool = False,
    ) -> None:
        _check_borders(borders)
        self.size = size
        self.obs_shape = checked_shape("obs_shape", obs_shape)
        self.action_size = action_size
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.borders: Borders = borders
        self._is_one_hot = one_hot
        replay, self._writer = image_ring(
            size,
            obs_shape,
            action_size,
            seq_len,
            batch_size,
            path=path,
            num_envs=num_envs,
            seed=seed,
            codec=codec,
        )
        self.replay: SequenceReplayBuffer = replay
        """What is beneath: everything that Stepwell can do with stored steps."""

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
        """Where a ring of ``size`` steps would be written next."""
        return self.steps % self.size

    @property
    def full(self) -> bool:
        """At least ``size`` steps were added."""
        return self.steps >= self.size

    def add(
        self,
        obs: Mapping[str, object],
        ac: object,
        rew: float,
        done: float,
        *,
        env: int = 0,
        truncated: bool = False,
        final_obs: Mapping[str, object] | None = None,
    ) -> None:
        """Take up a step; everything is copied.

        Args:
            obs: Under ``"image"`` what the action was chosen from, uint8 ``[*obs_shape]``.
            ac: The action, float32 [A]; with ``one_hot`` its number.
            rew: What the action brought.
            done: The episode ended with it, terminated or truncated.
            env: Index of the env.
            truncated: It was the clock that ended it; ``done`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: Something is not as declared: another shape, numbers that uint8 does not
                hold, a flag that is none. Nothing was taken up.
        """
        terminated, is_truncated = ended_by("done", done, truncated=truncated)
        self._writer.add(
            _image("obs", obs),
            one_hot_vector("ac", ac, self.action_size) if self._is_one_hot else ac,
            rew,
            terminated=terminated,
            truncated=is_truncated,
            final_observation=None if final_obs is None else _image("final_obs", final_obs),
            env=env,
        )

    def sample(self, *, borders: Borders | None = None) -> DrawnSequences:
        """Draw sequences uniformly over all that there are, with replacement.

        Args:
            borders: Other ones than the buffer's, this time.

        Returns:
            Observations uint8 ``[L, B, *obs_shape]``, actions float32 [L, B, A], and float32 [L, B]
            rewards and terminals: what the actions brought, 1 where the episode ended with it. All
            are the caller's own, and contiguous. The tuple's ``batch`` tells the rest, time first
            as well.

        Raises:
            NotEnoughData: There is no sequence of L steps.
            ValueError: ``borders`` is none of the two.
        """
        chosen = self.borders if borders is None else borders
        _check_borders(chosen)
        self._writer.catch_up(newest=True)
        request = Sequences(
            self.batch_size, self.seq_len, chosen, align="transition", time_major=True
        )
        try:
            batch = self.replay.sample(request)
        except NotEnoughData:
            raise shortage(self.replay, self.seq_len, is_across=chosen == "cross") from None
        terminals = (batch.terminated | batch.truncated | ~batch.mask).astype(np.float32)
        return DrawnSequences(batch.observation, batch.action, batch.reward, terminals, batch)

    def close(self) -> None:
        """Store what was added, and release files and locks; closing twice is harmless."""
        self._writer.flush(newest=True)
        self.replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_borders(borders: object) -> None:
    if borders not in get_args(Borders):
        raise ValueError(
            f'borders: expected "inside" or "cross", got {borders!r}; the buffer\'s replay has more'
        )


def _image(name: str, observation: Mapping[str, object]) -> object:
    if type(observation) is dict and "image" in observation:  # asking for a Mapping takes longer
        return observation["image"]
    if not isinstance(observation, Mapping) or "image" not in observation:
        raise ValueError(
            f'{name}: expected a dict with the key "image", got {type(observation).__name__}; give '
            f'{{"image": ...}}'
        )
    return observation["image"]
