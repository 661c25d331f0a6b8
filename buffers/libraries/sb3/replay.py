"""A Stepwell replay as the replay buffer of a Stable-Baselines3 model."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
from gymnasium import spaces

from ...base.errors import not_copied
from ...curation.episode_writer import check_replay
from ...dropin.sb3.step_ring import MAKER, ends_by_clock, fitted, flags, rows_for
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode_buffer import EpisodeBuffer
from ...sampling.batch import TransitionBatch
from ...sampling.requests import Sequences, Transitions
from ...spec.spec import Spec, plain_array, unflatten
from .models import ActionForm, DeviceTensors, ObservationForm, check_off_policy, load_sb3

_NAME = "as_sb3_replay"
_FIELDS = ("observation", "action", "reward")
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def as_sb3_replay(
    replay: SequenceReplayBuffer,
    model: Any,
    *,
    frame_stack: int = 1,
    stack_padding: Literal["zero", "repeat"] = "zero",
) -> Any:
    """Make a ``replay_buffer`` for a model of DQN, SAC, TD3 or DDPG.

    Either a `Collector` writes into the replay, and ``model.train(gradient_steps, batch_size)``
    learns from it; or ``model.learn()`` steps its own envs and writes through `SB3Replay.add`.

    The next observation of a truncated episode is the true one, and each frame is stored once;
    ``dones`` are terminations only. Draws come from the replay's own generator.

    Args:
        replay: Filled by a Collector, or empty, or written by `SB3Replay.add` before. Its capacity
            is used instead of the model's ``buffer_size``: make the model with ``buffer_size=1``,
            because SB3 allocates its own replay at once.
        model: A model of Stable-Baselines3; its ``n_steps`` and ``gamma`` determine n-step
            returns, its spaces the form of observations and actions.
        frame_stack: Frames that the model's own envs stack on the first axis; `add` stores one per
            row: 4 with ``VecFrameStack(envs, 4)`` of gray images. Rows of a Collector
            have their own Spec.
        stack_padding: Padding before an episode's first frame: ``"zero"`` with VecFrameStack.

    Returns:
        An `SB3Replay`, to be assigned: ``model.replay_buffer = as_sb3_replay(replay, model)``. It
        is annotated as Any because SB3 declares its own class there.

    Raises:
        ImportError: Stable-Baselines3 is not installed, or too old.
        TypeError: The model learns from rollouts, or from relabelled goals (HER).
        ValueError: The replay holds observations or actions that are not the model's.

    Example:
        >>> import stepwell as sw
        >>> from stable_baselines3 import DQN
        >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, seed=0)
        >>> replay = sw.SequenceReplayBuffer(capacity=10_000, seed=0)
        >>> model.replay_buffer = as_sb3_replay(replay, model)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=200)
        >>> batch = model.replay_buffer.sample(32)
        >>> tuple(batch.next_observations.shape), tuple(batch.actions.shape), batch.dones.dtype
        ((32, 4), (32, 1), torch.float32)
    """
    check_off_policy(model, _NAME)
    check_replay("replay", replay)
    return SB3Replay(replay, model, frame_stack=frame_stack, stack_padding=stack_padding)


class SB3Replay:
    """A Stepwell replay with the methods of SB3's replays; made by `as_sb3_replay`.

    Attributes:
        device: Device of the batches.
        n_envs: Number of the model's envs.
        handle_timeout_termination: True: time limits are not terminations.
        optimize_memory_usage: False; in SB3 it would lose last observations.
    """

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        model: Any,
        *,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        self.replay = replay
        self.observation_space: spaces.Space[Any] = model.observation_space
        self.action_space: spaces.Space[Any] = model.action_space
        self.device = model.device
        self.n_envs = int(model.n_envs)
        self.n_steps = int(model.n_steps)
        self.gamma = float(model.gamma)
        self.handle_timeout_termination = True
        self.optimize_memory_usage = False
        self._observations = ObservationForm(self.observation_space)
        self._actions = ActionForm(self.action_space)
        self._rows = Spec.from_spaces(
            self.observation_space,
            self.action_space,
            frame_stack=frame_stack,
            stack_padding=stack_padding,
        )
        kind = "DictReplay" if isinstance(self.observation_space, spaces.Dict) else "Replay"
        types = load_sb3("common.type_aliases", _NAME)
        self._samples: Any = getattr(types, f"{kind}BufferSamples")
        self._to_tensors = DeviceTensors(self.device)
        self._buffer: EpisodeBuffer | None = None  # made by the first call of `add`
        self._added = 0
        self._checked: Spec | None = None
        self._are_scaled = self._are_as_stored = False
        if replay.is_bound:
            self._check_rows()

    @property
    def buffer_size(self) -> int:
        """Capacity in steps of each env."""
        capacity = self.replay.capacity
        return sys.maxsize if capacity is None else max(1, capacity // self.n_envs)

    @property
    def full(self) -> bool:
        """The oldest steps have been evicted."""
        return self.replay.steps > len(self.replay)

    @property
    def pos(self) -> int:
        """Position of the next row, as SB3 counts it."""
        return (self.replay.steps + self._waiting) // self.n_envs % self.buffer_size

    def size(self) -> int:
        """Steps of each env in the buffer."""
        return min(self.buffer_size, (len(self.replay) + self._waiting) // self.n_envs)

    @property
    def _waiting(self) -> int:
        """Added steps that are not stored yet."""
        return 0 if self._buffer is None else self._added - self.replay.steps

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions uniformly.

        Args:
            batch_size: Number of transitions, B >= 1.
            env: SB3's ``VecNormalize``, which normalises observations and rewards; None leaves
                them unchanged.

        Returns:
            SB3's ``ReplayBufferSamples``, or ``DictReplayBufferSamples``: observations and next
            observations ``[B, ...]`` in the space's dtype, actions [B, A] (scaled to -1..1 where
            they are Box actions), dones [B, 1] float32: terminations, rewards [B, 1] float32;
            with ``n_steps`` > 1 the rewards are n-step returns, and discounts [B, 1] float32.
            On the CPU the tensors share the memory of arrays that the caller owns.

        Raises:
            NotEnoughData: There is no transition yet.
            ValueError: The replay holds observations or actions that are not the model's.
        """
        # Each flush makes a chunk for every env: flush for a thousandth of new rows for each env,
        # and for a hundredth at most.
        if self._buffer is not None:
            if self._waiting * 1000 >= len(self.replay) * min(10, self.n_envs):
                self.flush()
        self._check_rows()
        request = Transitions(batch_size, self.n_steps, self.gamma, fields=_FIELDS)
        batch = self.replay.sample(request)
        seen = batch.observation, batch.next_observation
        if not self._are_as_stored:
            seen = tuple(self._observations.fit(part, 1, for_buffer=True) for part in seen)
        if env is not None:
            seen = tuple(env.normalize_obs(part) for part in seen)
        columns: dict[str, Any] = {
            "observations": seen[0],
            "actions": self._chosen(batch.action),
            "next_observations": seen[1],
            "dones": batch.terminated.astype(_FLOAT32)[:, None],
            "rewards": self._rewards(batch, env)[:, None],
        }
        if self.n_steps > 1:
            powers = np.float32(self.gamma) ** batch.steps.astype(np.float32)
            columns["discounts"] = powers[:, None]
        return self._samples(**self._to_tensors(columns))

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add one step of all envs from ``model.learn()``; everything is copied.

        Rows are stored when about a thousandth of the replay is new, or `flush` is called. Where an
        observation is not the one that followed before, the env was reset: its episode is cut.

        Args:
            obs: Observations ``[N, ...]``, as the model sees them.
            next_obs: Next observations ``[N, ...]``; at the end of an episode its true last
                observation, as SB3 passes it.
            action: ``[N, ...]``, as SB3 passes it: Box actions scaled to -1..1.
            reward: [N].
            done: [N]: the episode ended.
            infos: For each env; ``"TimeLimit.truncated"`` marks the end by a time limit.

        Raises:
            ValueError: A Collector writes into the replay, or an array does not match the
                model's spaces; nothing was added.
            SpecMismatch: The replay holds other rows, or observations are not stacks of
                ``frame_stack`` frames.
        """
        n = self.n_envs
        taken = self._observations.fit(self._shaped(obs), 1)
        following = self._observations.fit(self._shaped(next_obs), 1)
        chosen = self._chosen_now(action)
        gains = fitted("reward", reward, _FLOAT64, (n,))
        over = flags("done", done, (n,)) != 0
        marks = ends_by_clock(infos, n)
        by_clock = np.zeros(n, bool) if marks is None else marks != 0
        if self._buffer is None:
            self._buffer = self._new_buffer()
            self._added = self.replay.steps
        self._buffer.add(taken, chosen, gains, following, over & ~by_clock, over & by_clock)
        self._added += n

    def extend(self, *args: Any) -> None:
        """Add several steps: the arguments of `add` with a leading axis."""
        for step in zip(*args, strict=True):
            self.add(*step)

    def flush(self) -> None:
        """Store all added rows, so that they can be drawn; in a folder they are then durable."""
        if self._buffer is not None:
            chunks = self._buffer.take(everything=True)
            if chunks:
                self.replay.add(chunks)

    def __reduce__(self) -> NoReturn:
        where = self.replay.path
        kept = "RAM alone: give SequenceReplayBuffer a folder" if where is None else str(where)
        not_copied(
            "a Stepwell replay",
            f"save_replay_buffer is not needed, as its rows are kept in {kept}; after the model is "
            "loaded again, open the folder and assign "
            "model.replay_buffer = as_sb3_replay(replay, model)",
        )

    def _chosen(self, action: Any) -> np.ndarray:
        """Actions [B, A] as SB3's replays hold them."""
        found = self._actions.fit(action, 1)
        if not self._actions.is_box:
            return found
        if not self._are_scaled:
            space: Any = self.action_space
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            found = 2.0 * ((found - low) / (high - low)) - 1.0
        return found.astype(np.float32, copy=False)  # SB3 keeps no float64 actions either

    def _rewards(self, batch: TransitionBatch, env: Any) -> np.ndarray:
        """Returns [B] float32; each reward is normalised before it is discounted."""
        found: np.ndarray = batch.reward
        if env is None:
            return found
        if self.n_steps == 1:
            found = env.normalize_reward(found).astype(np.float32)
            return found
        request = Sequences(
            len(found), self.n_steps, borders="pad_after", align="transition", fields=("reward",)
        )
        # Padding behind an episode's end is 0, and stays so.
        each = env.normalize_reward(self.replay.take(request, batch.ids).reward)
        found = (each @ self.gamma ** np.arange(self.n_steps)).astype(np.float32)
        return found

    def _check_rows(self) -> None:
        """Raise ValueError unless the rows are the model's."""
        spec = self.replay.spec
        if spec is self._checked:
            return
        no_rows = {f.name: np.empty((0, *f.source_shape), f.numpy_dtype) for f in spec.fields}
        stored = unflatten(spec.observation, no_rows)
        fitted = self._observations.fit(stored, 1, for_buffer=True)
        self._actions.fit(unflatten(spec.action, no_rows), 1)
        by_add = {_is_by_add(session) for session in self.replay.sessions}
        if self._actions.is_box and len(by_add) > 1:
            raise ValueError(
                "the actions in these stores are scaled or not, expected stores all of which were "
                "written by add, or none, got both; open them one by one"
            )
        self._are_scaled = by_add == {True}
        self._are_as_stored = fitted is stored  # so `fit` changes nothing in a batch either
        self._checked = spec

    def _chosen_now(self, action: Any) -> np.ndarray:
        """Actions [N, ...] of the model; axes that SB3 has joined are restored."""
        dtype, wanted = self._actions.dtype, (self.n_envs, *self._actions.shape)
        given = plain_array("action", action, ValueError)
        found = fitted("action", given, dtype, given.shape)
        if not np.can_cast(given.dtype, dtype, "same_kind"):
            raise ValueError(
                f"action: expected numbers for {dtype}, got {given.dtype}; give what the model's "
                f"policy chose"
            )
        if found.size != math.prod(wanted) or found.shape[:1] != wanted[:1]:
            raise ValueError(
                f"action: expected {math.prod(wanted)} numbers, {wanted} for the model's envs, got "
                f"shape {found.shape}; give those of one step of all envs"
            )
        return found.reshape(wanted)

    def _shaped(self, observation: Any) -> Any:
        """SB3 gives numbers of a Discrete space as [N] or [N, 1]."""
        space = self.observation_space
        if isinstance(space, spaces.Discrete):
            return self._of_each("obs", observation)
        if not isinstance(space, spaces.Dict):
            return observation
        return {
            key: self._of_each(f"obs/{key}", part)
            if isinstance(space.spaces.get(key), spaces.Discrete)
            else part
            for key, part in observation.items()
        }

    def _of_each(self, name: str, numbers: object) -> np.ndarray:
        array = plain_array(name, numbers, ValueError)
        if array.size != self.n_envs:
            raise ValueError(
                f"{name}: expected one number for each of {self.n_envs} envs, got shape "
                f"{array.shape}; give those of one step"
            )
        return array.reshape(self.n_envs)

    def _new_buffer(self) -> EpisodeBuffer:
        if self.replay.is_bound and not all(map(_is_by_add, self.replay.sessions)):
            raise ValueError(
                "add: expected an empty replay, or one that add has written, got one that a "
                "Collector writes, with the actions of its envs; train the model with "
                "model.train(gradient_steps, batch_size), or give it a separate replay"
            )
        facts = {"maker": MAKER, "actions": "scaled" if self._actions.is_box else "given"}
        self.replay.bind(self._rows, {"recipe": facts, "num_envs": self.n_envs})
        return rows_for(self.replay, self.n_envs)


def _is_by_add(session: Mapping[str, object]) -> bool:
    """True if `SB3Replay.add` has written the rows, False if a Collector has."""
    recipe = session.get("recipe")
    return isinstance(recipe, Mapping) and recipe.get("maker") == MAKER
