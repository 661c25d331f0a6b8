"""The buffers of IRIS agents, as in torchwm's ``world_models.memory.iris_memory``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from ..base import forks
from ..base.number_checks import check_whole
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import End
from ..sampling.requests import Sequences
from ..spec.spec import Codec
from .transition_writer import (
    IMAGE,
    VECTOR,
    DrawnSequences,
    ImageRing,
    TooFew,
    TransitionWriter,
    as_declared,
    check_env,
    check_one_of,
    ended_by,
)

__all__ = ["Borders", "Final", "IRISOnPolicyBuffer", "IRISReplayBuffer"]

_REAL = np.dtype(np.float64)
Declared: TypeAlias = "tuple[np.dtype[np.generic], tuple[int, ...]]"
# The row of a last observation, or a placeholder for an observation that is not known yet.
_NOT_ADDED = int(End.TERMINATED | End.TRUNCATED | End.PENDING)

Borders: TypeAlias = Literal["inside", "pad_after"]
"""Limits of a sequence: ``"inside"`` one episode, or padded after its end."""

Final: TypeAlias = Literal["repeat", "required"]
"""The substitute for an episode's last observation that was not given."""


class IRISReplayBuffer(ImageRing[Borders]):
    """Keeps the newest steps of one env or more, and draws sequences of them.

    At least the newest ``size`` steps are there to be drawn, and up to a fifteenth more. The newest
    step of an open episode can be drawn once the next one is added, with its observation; a step
    that waits for it at `close` is not kept: that observation never comes. Draws may leave out the
    newest steps: up to a thousandth of all for each env, a hundredth at most.

    Args:
        size: Steps to keep.
        obs_shape: Shape of an image, (C, H, W).
        action_size: Length A of an action.
        seq_len: Steps in a sequence, L.
        batch_size: Sequences in a batch, B.
        borders: ``"inside"``: a sequence lies in one episode. ``"pad_after"``: it begins with any
            step, and behind its episode's end come zeros, which ``batch.mask`` leaves out: for
            episodes that are shorter than L.
        final: The observation after an episode's last step if ``final_obs`` is missing:
            ``"repeat"``: the observation before is repeated, and
            ``batch.info["observed"]`` is False at that step; ``"required"``: `add` refuses the
            step.
        path: Folder of the store, continued if there is one; None keeps everything in RAM.
        num_envs: Number of envs N.
        seed: Seed of all draws; None draws one from the system.
        codec: Codec of the images: ``"patch"`` (default in a folder), ``"raw"`` (default in RAM) or
            ``"zstd"``.
        one_hot: Actions are given as numbers from 0 to A - 1.

    Raises:
        ValueError: A number is not a whole one, or too small; or ``seq_len`` is more than ``size``.
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

    _newest: ClassVar[bool] = False
    _all_borders: ClassVar[tuple[str, ...]] = get_args(Borders)

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
        check_one_of("final", final, get_args(Final))
        self._is_final_required = final == "required"
        super().__init__(
            size,
            obs_shape,
            action_size,
            seq_len,
            batch_size,
            borders=borders,
            path=path,
            num_envs=num_envs,
            seed=seed,
            codec=codec,
            one_hot=one_hot,
        )
        self.observations = ObservationsByAge(self.replay, self._writer, size)
        """The newest observations that were added, the oldest first; indexing makes copies."""
        # The replay draws with the seed itself: the frames of `sample_frames` are not tied to
        # those.
        self._rng = forks.generator(None if seed is None else (seed, 1))

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
        """Add a step; everything is copied.

        Args:
            obs: Observation before the action, uint8 (C, H, W).
            action: float32 (A,); with ``one_hot`` its number.
            reward: The reward of the action.
            terminal: The episode ended with it, terminated or truncated.
            env: Index of the env.
            truncated: A time limit ended it; ``terminal`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: Something is not as declared: another shape, numbers that uint8 does not
                hold, a flag that is not bool; or ``final_obs`` is required. Nothing was added.
        """
        is_terminated, is_truncated = ended_by("terminal", terminal, truncated=truncated)
        if self._is_final_required:
            _check_final(terminal, final_obs)
        self._writer.add(
            obs,
            self._chosen("action", action),
            reward,
            terminated=is_terminated,
            truncated=is_truncated,
            final_observation=final_obs,
            env=env,
        )

    def check(
        self, obs: object, action: object, terminal: bool, final_obs: object, *, env: int
    ) -> None:
        """Raise if `add` would raise, without adding anything.

        Raises:
            ValueError: As in `add`.
        """
        check_env(env, self._writer.num_envs)
        as_declared("obs", obs, IMAGE, self.obs_shape)
        as_declared("action", self._chosen("action", action), VECTOR, (self.action_size,))
        if final_obs is not None:
            as_declared("final_obs", final_obs, IMAGE, self.obs_shape)
        if self._is_final_required:
            _check_final(terminal, final_obs)

    def holds(self, observation: Declared | None, action: Declared | None) -> bool:
        """True if `add` takes all values of these dtypes and shapes."""
        expected = (IMAGE, self.obs_shape), (VECTOR, (self.action_size,))
        return not self._is_one_hot and (observation, action) == expected

    def sample_sequence(
        self, seq_len: int | None = None, *, borders: Borders | None = None
    ) -> DrawnSequences:
        """Draw sequences uniformly over all sequences, with replacement.

        Args:
            seq_len: Other than the buffer's L steps, this time.
            borders: Other ones than the buffer's, this time.

        Returns:
            Observations uint8 ``[B, L + 1, C, H, W]``, actions float32 [B, L, A], and float32
            [B, L] rewards of the actions and terminals: 1 where the episode ended with the action.
            All are the caller's own. The tuple's ``batch`` has the rest.

        Raises:
            NotEnoughData: There is no sequence of L steps.
            ValueError: An argument is invalid.
        """
        length = self.seq_len if seq_len is None else seq_len
        chosen = self._chosen_borders(borders)
        check_whole("seq_len", length, 1)
        request = Sequences(self.batch_size, length, chosen, align="transition")
        batch = self._drawn(request, length if chosen == "inside" else 1)
        observations = batch.memory["observation"]  # L + 1 of each: `batch` has two views of them
        actions, rewards = np.ascontiguousarray(batch.action), np.ascontiguousarray(batch.reward)
        terminals = (batch.terminated | batch.truncated).astype(np.float32)
        drawn = DrawnSequences((observations, actions, rewards, terminals))
        drawn.batch = batch
        return drawn

    def sample_single(self) -> tuple[np.ndarray, np.ndarray, np.float32, np.float32]:
        """Draw one step, uniformly: its observation, action, reward and terminal, all copies.

        Raises:
            NotEnoughData: There is no step whose next observation is known.
        """
        batch = self._drawn(Sequences(1, 1, align="transition"), 1)
        terminal = np.float32(batch.is_last[0, 0] & ~batch.cut[0, 0])
        reward: np.float32 = np.float32(batch.reward[0, 0])
        return batch.observation[0, 0].copy(), batch.action[0, 0].copy(), reward, terminal

    def sample_frames(self, n: int) -> np.ndarray:
        """Draw observations for an autoencoder, uniformly over `observations`, with replacement.

        Args:
            n: Number of steps.

        Returns:
            uint8 ``[n, C, H, W]``, the caller's own.

        Raises:
            TooFew: The buffer is empty.
            ValueError: ``n`` is not a whole number >= 1.
        """
        check_whole("n", n, 1)
        if not len(self):
            raise TooFew(f"expected at least 1 step to draw {n} frames from, got 0; add some")
        return self.observations.take(self._rng.integers(0, len(self), n))


def _check_final(terminal: object, final_obs: object) -> None:
    """Raise for a last step without a last observation."""
    if terminal and final_obs is None:
        raise ValueError(
            "final_obs: expected the last observation with the last step, got none; give it, or "
            'make the buffer with final="repeat"'
        )


class IRISOnPolicyBuffer:
    """Keeps up to ``max_steps`` steps of one env, in lists, until they are added to a replay.

    What observations and actions are is declared by the first ones: the later ones have the same
    dtype and shape, and so have the arrays. It stays declared when the buffer is cleared.

    Args:
        max_steps: Steps to keep; one more is refused.
        obs_shape: Shape of an observation, uint8, if it is to be declared now.
        action_size: Length A of an action, float32, if it is to be declared now.

    Raises:
        ValueError: A number is not a whole one, or too small.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers.dropin.iris import IRISReplayBuffer
        >>> replay = IRISReplayBuffer(1000, (3, 8, 8), action_size=2, seq_len=2, batch_size=4)
        >>> current = IRISOnPolicyBuffer(max_steps=100)
        >>> for step in range(5):
        ...     image = np.full((3, 8, 8), step, np.uint8)
        ...     current.add(image, np.zeros(2, np.float32), 1.0, step == 4)
        >>> current.get_arrays()[0].shape
        (5, 3, 8, 8)
        >>> current.flush_into(replay, final_obs=np.full((3, 8, 8), 5, np.uint8))
        >>> len(current), len(replay), replay.sample_sequence()[0].shape
        (0, 5, (4, 3, 3, 8, 8))
    """

    def __init__(
        self,
        max_steps: int = 1000,
        *,
        obs_shape: Sequence[int] | None = None,
        action_size: int | None = None,
    ) -> None:
        check_whole("max_steps", max_steps, 1)
        if action_size is not None:
            check_whole("action_size", action_size, 1)
        self.max_steps = max_steps
        self._observation: Declared | None = (
            None if obs_shape is None else (IMAGE, tuple(obs_shape))
        )
        self._action: Declared | None = None if action_size is None else (VECTOR, (action_size,))
        self.clear()

    def add(
        self,
        obs: object,
        action: object,
        reward: float,
        terminal: float,
        *,
        truncated: bool = False,
        final_obs: object = None,
    ) -> None:
        """Add a step; everything is copied.

        Args:
            obs: Observation before the action.
            action: The action.
            reward: The reward of the action.
            terminal: The episode ended with it, terminated or truncated.
            truncated: A time limit ended it; ``terminal`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: There are ``max_steps`` steps already, or an array differs from the first
                step. Nothing was added.
        """
        if len(self) >= self.max_steps:
            raise ValueError(
                f"expected at most max_steps={self.max_steps} steps, got one more; call "
                f"flush_into(replay) or clear() before, or raise max_steps"
            )
        terminated, is_truncated = ended_by("terminal", terminal, truncated=truncated)
        if final_obs is not None and not terminal:
            raise ValueError(
                "final_obs: expected one only with the last step of an episode, got one with a "
                "step that does not end one; leave it out"
            )
        # All values are checked before the first list grows, so that an error adds nothing.
        observation, observed = _declared("obs", obs, self._observation)
        chosen, acted = _declared("action", action, self._action)
        last = None if final_obs is None else _declared("final_obs", final_obs, observed)[0]
        gain = reward if type(reward) is float else float(as_declared("reward", reward, _REAL, ()))
        self._observation, self._action = observed, acted
        self.observations.append(observation)
        self.actions.append(chosen)
        self.rewards.append(gain)
        self.terminals.append(float(terminated or is_truncated))
        self._truncated.append(is_truncated)
        self._last.append(last)

    def clear(self) -> None:
        """Forget all steps."""
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.terminals: list[float] = []
        self._truncated: list[bool] = []
        self._last: list[np.ndarray | None] = []

    def get_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Copies of all steps.

        Returns:
            Observations ``[T, ...]`` and actions ``[T, ...]`` in their dtypes, rewards [T] and
            terminals [T] float64. Arrays of undeclared shape are ``[0]``.
        """
        return (
            _stacked(self.observations, self._observation),
            _stacked(self.actions, self._action),
            np.array(self.rewards, np.float64),
            np.array(self.terminals, np.float64),
        )

    def flush_into(
        self, replay: IRISReplayBuffer, *, env: int = 0, final_obs: object = None
    ) -> None:
        """Add all steps to a replay, and forget them here.

        An episode without an end stays open there: the next flush for the same env continues it.

        Args:
            replay: The replay to write to.
            env: Index of the env that played them.
            final_obs: The final observation, if the newest step is the last one of its episode and
                was added without it.

        Raises:
            ValueError: A step does not fit the replay, or there is no such env, or ``final_obs`` is
                given and the newest step does not end an episode. Nothing was added.
        """
        last = list(self._last)
        if final_obs is not None:
            if not len(self) or not self.terminals[-1]:
                newest = "terminal=False" if len(self) else "no step"
                raise ValueError(
                    f"final_obs: expected a newest step with terminal=True, got {newest}; leave it "
                    f"out"
                )
            last[-1] = _declared("final_obs", final_obs, self._observation)[0]
        ends = [terminal > 0 for terminal in self.terminals]
        steps = list(zip(self.observations, self.actions, ends, last, strict=True))
        if replay.holds(self._observation, self._action):  # then every step as well as the first
            steps = steps[:1] + [step for step in steps[1:] if step[2]]
        for step in steps:
            replay.check(*step, env=env)
        for number, observation in enumerate(self.observations):
            replay.add(
                observation,
                self.actions[number],
                self.rewards[number],
                ends[number],
                env=env,
                truncated=self._truncated[number],
                final_obs=last[number],
            )
        self.clear()

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.observations)


def _declared(what: str, value: object, declared: Declared | None) -> tuple[np.ndarray, Declared]:
    """A copy of a value with the declared, or else its own, dtype and shape."""
    if declared is None:
        array = np.array(value)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{what}: expected numbers, got {array.dtype}; convert them first")
        return array, (array.dtype, array.shape)
    return as_declared(what, value, *declared).copy(), declared


def _stacked(values: list[np.ndarray], declared: Declared | None) -> np.ndarray:
    if declared is None:
        return np.zeros(0)
    dtype, shape = declared
    return np.array(values, dtype).reshape(len(values), *shape)


class ObservationsByAge:
    """The newest observations from which an action was chosen, the oldest first."""

    def __init__(self, replay: SequenceReplayBuffer, writer: TransitionWriter, size: int) -> None:
        self._replay = replay
        self._writer = writer
        self._size = size
        self._flushed = writer.steps
        self._until = 0
        if replay.is_bound:
            self._until = replay.storage.index.base + len(replay.storage.index)
        self._extent = (-1, -1)
        self._counts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return min(self._size, self._writer.steps)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        """Copies of one observation, or ``[n, ...]`` of several.

        Args:
            index: An index, a slice, or an array [n] of indices.

        Raises:
            IndexError: The index is out of range.
        """
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        ages = np.asarray(index)
        found = self.take(ages.reshape(-1))
        return found[0] if ages.ndim == 0 else found

    def take(self, ages: np.ndarray) -> np.ndarray:
        """Copies ``[n, ...]`` of those at ages [n]; negative ones count from the newest."""
        if not len(ages):
            field = self._writer.spec.fields[0]
            return np.empty((0, *field.shape), field.numpy_dtype)
        count, oldest = len(self), int(ages.min())
        if ages.dtype.kind not in "iu" or oldest < -count or ages.max() >= count:
            there = f"whole numbers from {-count} to {count - 1}" if count else "none: it is empty"
            raise IndexError(f"index: expected {there}, got {ages.tolist()}")
        ids = self._row_ids(ages if oldest >= 0 else np.where(ages < 0, ages + count, ages))
        return self._replay.field_rows("observation", ids)

    def _row_ids(self, ages: np.ndarray) -> np.ndarray:
        """The ids of the rows in which they are stored."""
        waiting = self._writer.steps - self._flushed
        if int(ages.max()) >= len(self) - waiting:
            self._writer.flush(
                newest=False
            )  # not at each call, which would store a chunk each time
            index = self._replay.storage.index
            self._flushed, self._until = self._writer.steps, index.base + len(index)
            waiting = 0
        counts = self._stored_counts()
        # Negative only if the folder was written by more envs than there are now.
        place = np.maximum(ages + (int(counts[-1]) + waiting - len(self)), 0)
        chunk = np.searchsorted(counts, place, side="right") - 1
        records = self._replay.storage.index.records
        ids: np.ndarray = records["row_id"][chunk] + place - counts[chunk]
        return ids

    def _stored_counts(self) -> np.ndarray:
        """The number of observations before each chunk of the last flush, and in total."""
        index = self._replay.storage.index
        extent = (index.base, self._until)
        if extent != self._extent:
            records = index.records[: self._until - index.base]
            is_over = (records["is_tail"] == 1) & (records["end"] & _NOT_ADDED != 0)
            self._counts = np.cumsum(np.append(0, records["rows"] - is_over))
            self._extent = extent
        return self._counts
