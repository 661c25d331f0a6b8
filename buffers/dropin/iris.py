"""The buffers of IRIS agents, as torchwm's ``world_models.memory.iris_memory`` has them.

The line to change::

    from stepwell.buffers.dropin.iris import IRISOnPolicyBuffer, IRISReplayBuffer
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, Self, TypeAlias, get_args

import numpy as np

from stepwell.buffers.dropin.declared import as_declared
from stepwell.buffers.dropin.declared import one_hot as one_hot_vector
from stepwell.buffers.dropin.drawn import DrawnSequences
from stepwell.buffers.dropin.flags import ended_by
from stepwell.buffers.dropin.image_ring import IMAGE, VECTOR, image_ring
from stepwell.buffers.dropin.iris_on_policy import IRISOnPolicyBuffer
from stepwell.buffers.dropin.observations_by_age import ObservationsByAge
from stepwell.buffers.dropin.ring import check_whole, checked_shape
from stepwell.buffers.dropin.shortage import TooFew, shortage
from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Sequences
from stepwell.buffers.spec import Codec

__all__ = ["Borders", "Final", "IRISOnPolicyBuffer", "IRISReplayBuffer"]

Borders: TypeAlias = Literal["inside", "pad_after"]
"""Whether a sequence lies in one episode, or may begin so late that its rest is padding."""

Final: TypeAlias = Literal["repeat", "required"]
"""What stands for an episode's last observation where it was not given."""


class IRISReplayBuffer:
    """Keeps the newest steps of one env or more, and draws sequences of them.

    At least the newest ``size`` steps are there to be drawn, and up to a fifteenth more. The newest
    step of an episode that goes on can be drawn once the next one has brought its observation.
    Draws may leave out the newest steps: up to a thousandth of all for each env, a hundredth at
    most.

    Args:
        size: Steps to keep.
        obs_shape: Shape of an image, (C, H, W).
        action_size: Length A of an action.
        seq_len: Steps in a sequence, L.
        batch_size: Sequences in a batch, B.
        borders: ``"inside"``: a sequence lies in one episode. ``"pad_after"``: it begins with any
            step, and behind its episode's end come zeros, which ``batch.mask`` leaves out: for
            episodes that are shorter than L.
        final: What follows on an episode's last step where no ``final_obs`` came with it:
            ``"repeat"``: the observation before stands there once more, and
            ``batch.info["observed"]`` is False at that step; ``"required"``: `add` refuses the
            step.
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
        >>> buffer = IRISReplayBuffer(1000, (3, 8, 8), action_size=2, seq_len=5, batch_size=4)
        >>> for step in range(20):
        ...     image = np.full((3, 8, 8), step, np.uint8)
        ...     buffer.add(image, np.zeros(2), 1.0, step % 10 == 9)
        >>> obs, actions, rewards, terminals = buffer.sample_sequence()
        >>> obs.shape, actions.shape, rewards.shape, len(buffer)
        ((4, 6, 3, 8, 8), (4, 5, 2), (4, 5), 20)
        >>> buffer.sample_frames(7).shape, buffer.observations[-1].max()
        ((7, 3, 8, 8), np.uint8(19))
    """

    def __init__(
        self,
        size: int,
        obs_shape: Sequence[int],
        action_size: int,
        seq_len: int = 20,
        batch_size: int = 64,
        *,
        borders: Borders = "inside",
        final: Final = "repeat",
        path: str | os.PathLike[str] | None = None,
        num_envs: int = 1,
        seed: int | None = None,
        codec: Codec | None = None,
        one_hot: bool = False,
    ) -> None:
        _check_one_of("borders", borders, get_args(Borders))
        _check_one_of("final", final, get_args(Final))
        self.size = size
        self.obs_shape = checked_shape("obs_shape", obs_shape)
        self.action_size = action_size
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.borders: Borders = borders
        self._is_final_required = final == "required"
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
        self.observations = ObservationsByAge(replay, self._writer, size)
        """The newest observations that were added, the oldest first; indexing makes copies."""
        self._rng = np.random.default_rng(None if seed is None else (seed, 1))

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

    @property
    def buffer_capacity(self) -> int:
        """Steps to keep."""
        return self.size

    def __len__(self) -> int:
        """Steps that were added, ``size`` at most."""
        return min(self.size, self.steps)

    def add(
        self,
        obs: object,
        action: object,
        reward: float,
        terminal: float,
        *,
        env: int = 0,
        truncated: bool = False,
        final_obs: object = None,
    ) -> None:
        """Take up a step; everything is copied.

        Args:
            obs: What the action was chosen from, uint8 (C, H, W).
            action: float32 (A,); with ``one_hot`` its number.
            reward: What the action brought.
            terminal: The episode ended with it, terminated or truncated.
            env: Index of the env.
            truncated: It was the clock that ended it; ``terminal`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: Something is not as declared: another shape, numbers that uint8 does not
                hold, a flag that is none; or ``final_obs`` is required. Nothing was taken up.
        """
        terminated, is_truncated = ended_by("terminal", terminal, truncated=truncated)
        if self._is_final_required:
            _check_final(terminal, final_obs)
        self._writer.add(
            obs,
            one_hot_vector("action", action, self.action_size) if self._is_one_hot else action,
            reward,
            terminated=terminated,
            truncated=is_truncated,
            final_observation=final_obs,
            env=env,
        )

    def check(
        self, obs: object, action: object, terminal: bool, final_obs: object, *, env: int
    ) -> None:
        """Refuse what `add` would refuse, and do nothing.

        Raises:
            ValueError: With what is wrong.
        """
        count = self._writer.num_envs
        if not 0 <= env < count:
            raise ValueError(
                f"env: expected an index from 0 to {count - 1}, got {env}; give the number of envs "
                f"as num_envs"
            )
        as_declared("obs", obs, IMAGE, self.obs_shape)
        if self._is_one_hot:
            one_hot_vector("action", action, self.action_size)
        else:
            as_declared("action", action, VECTOR, (self.action_size,))
        if final_obs is not None:
            as_declared("final_obs", final_obs, IMAGE, self.obs_shape)
        if self._is_final_required:
            _check_final(terminal, final_obs)

    def sample_sequence(
        self, seq_len: int | None = None, *, borders: Borders | None = None
    ) -> DrawnSequences:
        """Draw sequences uniformly over all that there are, with replacement.

        Args:
            seq_len: Other than the buffer's L steps, this time.
            borders: Other ones than the buffer's, this time.

        Returns:
            Observations uint8 ``[B, L + 1, C, H, W]``, actions float32 [B, L, A], and float32
            [B, L] rewards and terminals: what the actions brought, 1 where the episode ended with
            it. All are the caller's own. The tuple's ``batch`` tells the rest.

        Raises:
            NotEnoughData: There is no sequence of L steps.
            ValueError: An argument makes no sense.
        """
        length = self.seq_len if seq_len is None else seq_len
        chosen = self.borders if borders is None else borders
        _check_one_of("borders", chosen, get_args(Borders))
        check_whole("seq_len", length, 1)
        self._writer.catch_up(newest=False)
        request = Sequences(self.batch_size, length, chosen, align="transition")
        try:
            batch = self.replay.sample(request)
        except NotEnoughData:
            needed = length if chosen == "inside" else 1
            raise shortage(self.replay, needed, is_across=False) from None
        return DrawnSequences(
            batch.memory["observation"],  # L + 1 of each: `batch` has two views of them
            np.ascontiguousarray(batch.action),
            np.ascontiguousarray(batch.reward),
            (batch.terminated | batch.truncated).astype(np.float32),
            batch,
        )

    def sample_single(self) -> tuple[np.ndarray, np.ndarray, np.float32, np.float32]:
        """Draw one step, uniformly: its observation, action, reward and terminal, all copies.

        Raises:
            NotEnoughData: There is none of which the next observation has come.
        """
        self._writer.catch_up(newest=False)
        try:
            batch = self.replay.sample(Sequences(1, 1, align="transition"))
        except NotEnoughData:
            raise shortage(self.replay, 1, is_across=False) from None
        terminal = np.float32(batch.is_last[0, 0] & ~batch.cut[0, 0])
        reward: np.float32 = np.float32(batch.reward[0, 0])
        return batch.observation[0, 0].copy(), batch.action[0, 0].copy(), reward, terminal

    def sample_frames(self, n: int) -> np.ndarray:
        """Draw observations for an autoencoder, uniformly over `observations`, with replacement.

        Args:
            n: How many.

        Returns:
            uint8 ``[n, C, H, W]``, the caller's own.

        Raises:
            TooFew: Nothing was added yet.
            ValueError: ``n`` is no whole number >= 1.
        """
        check_whole("n", n, 1)
        if not len(self):
            raise TooFew(f"expected at least 1 step to draw {n} frames from, got 0; add some")
        return self.observations.take(self._rng.integers(0, len(self), n))

    def close(self) -> None:
        """Store what was added, and release files and locks; closing twice is harmless.

        A step that still waits for its next observation is not kept: that observation never comes.
        """
        self._writer.flush(newest=False)
        self.replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def _check_final(terminal: object, final_obs: object) -> None:
    """Refuse a last step without a last observation."""
    if terminal and final_obs is None:
        raise ValueError(
            "final_obs: expected the last observation with the last step, got none; give it, or "
            'make the buffer with final="repeat"'
        )
