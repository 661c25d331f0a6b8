"""The replay buffers of Stable-Baselines3, over a Stepwell replay.

Before, and after::

    from stable_baselines3.common.buffers import ReplayBuffer
    from stepwell.buffers.dropin.sb3 import ReplayBuffer

They have the constructors, methods, attributes and random draws of the originals, and models take
them as ``replay_buffer_class``. In addition `ReplayBuffer.replay` keeps the same rows as episodes.
"""

from __future__ import annotations

import atexit
import copy
import importlib
import math
import os
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from gymnasium import spaces

from stepwell.buffers.dropin.episode_ring import EpisodeRing, Strategy, strategy_of
from stepwell.buffers.dropin.frame_ring import FrameRing
from stepwell.buffers.dropin.transition_blocks import BlockWriter, differing
from stepwell.buffers.dropin.transition_writer import check_whole, new_replay
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.episode_buffer import OBSERVED, EpisodeBuffer
from stepwell.buffers.errors import NotEnoughData, SpecMismatch
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Field, Layout, Spec

if TYPE_CHECKING:
    import torch

__all__ = [
    "DictReplayBuffer",
    "DictReplayBufferSamples",
    "DictRolloutBuffer",
    "DictRolloutBufferSamples",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferSamples",
    "RolloutBuffer",
    "RolloutBufferSamples",
]

Tensors: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
_MAKER = "stable-baselines3"
_MOST_STEPS, _MOST_BYTES = 1024, 32 << 20
_LARGE_ROW_BYTES = 1 << 10  # from here on it takes longer to write them twice than to compare them
_FINAL = ("_final_observation", "_final_obs")  # of gymnasium before and since version 1.0
_ENDS = int(End.TERMINATED), int(End.TRUNCATED)


class ReplayBufferSamples(NamedTuple):
    """A batch of transitions, as SB3's class of this name, which is used where SB3 is installed."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None = None


class DictReplayBufferSamples(NamedTuple):
    """The same with dicts of observations."""

    observations: dict[str, torch.Tensor]
    actions: torch.Tensor
    next_observations: dict[str, torch.Tensor]
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None = None


class RolloutBufferSamples(NamedTuple):
    """A minibatch of a rollout, as SB3's class of this name, which is used where it is there."""

    observations: torch.Tensor
    actions: torch.Tensor
    old_values: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class DictRolloutBufferSamples(NamedTuple):
    """The same with dicts of observations."""

    observations: dict[str, torch.Tensor]
    actions: torch.Tensor
    old_values: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class _Part(NamedTuple):
    """The observations of one space: arrays ``[size, N, ...]``, and the field that they become."""

    key: str | None
    name: str
    field_shape: tuple[int, ...]
    shape: tuple[int, ...]
    is_discrete: bool
    now: np.ndarray
    then: np.ndarray


class _Buffer:
    """A position in a ring of steps of N envs, of replays and rollouts."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
    ) -> None:
        check_whole("buffer_size", buffer_size, 1)
        check_whole("n_envs", n_envs, 1)
        self.buffer_size = int(buffer_size)
        self.observation_space = observation_space
        self.action_space = action_space
        self.obs_shape = _observation_shape(observation_space)
        self.action_dim = _action_size(action_space)
        self.pos = 0
        self.full = False
        self.device = _device(device)
        self.n_envs = int(n_envs)

    @staticmethod
    def swap_and_flatten(arr: np.ndarray) -> np.ndarray:
        """``[T, N, ...]`` as ``[N * T, ...]``, the steps of each env one after the other."""
        steps, envs, *rest = arr.shape
        return arr.swapaxes(0, 1).reshape(steps * envs, *(rest or [1]))

    def size(self) -> int:
        """Steps of each env in the buffer."""
        return self.buffer_size if self.full else self.pos

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a step of all envs."""
        raise NotImplementedError

    def extend(self, *args: Any, **kwargs: Any) -> None:
        """Add several steps: the arguments of `add` with a leading axis."""
        for step in zip(*args, strict=True):
            self.add(*step)

    def reset(self) -> None:
        """Begin with an empty ring."""
        self.pos = 0
        self.full = False

    def to_torch(self, array: np.ndarray, copy: bool = True) -> torch.Tensor:
        """An array as a tensor on the device.

        Args:
            array: The array.
            copy: Copy it; False may share its memory on the CPU.
        """
        import torch

        if copy:
            return torch.tensor(array, device=self.device)
        return torch.as_tensor(array, device=self.device)

    def _owned(self, array: Any) -> Any:
        """Tensors of arrays that nothing else refers to."""
        import torch

        if isinstance(array, dict):
            return {key: self._owned(part) for key, part in array.items()}
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    @staticmethod
    def _normalize_obs(obs: Any, env: Any = None) -> Any:
        return obs if env is None else env.normalize_obs(obs)

    @staticmethod
    def _normalize_reward(reward: np.ndarray, env: Any = None) -> np.ndarray:
        if env is None:
            return reward
        normalized: np.ndarray = env.normalize_reward(reward).astype(np.float32)
        return normalized


class ReplayBuffer(_Buffer):
    """A ring of transitions, which are also stored as episodes.

    The same calls give the same as with SB3's class, and after the same ``np.random.seed`` the same
    batches: a model learns exactly as with that one. There are two differences.
    ``optimize_memory_usage=True`` gives true last observations, also together with
    ``handle_timeout_termination=True``; and with it, or with observations of 1 KiB or more, each
    is kept once, and there are no attributes ``observations`` and ``next_observations``.

    Args:
        buffer_size: Transitions to keep, of all envs together.
        observation_space: Of one env: Box, Discrete, MultiDiscrete or MultiBinary.
        action_space: Of one env, the same kinds.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        n_envs: Number of envs N.
        optimize_memory_usage: Draw as SB3 does with it.
        handle_timeout_termination: ``"TimeLimit.truncated"`` in infos marks an end that is none to
            learn from.
        n_steps: Steps of the returns, as in SB3's ``NStepReplayBuffer``.
        gamma: Discount of n-step returns.
        path: Folder of the replay; None keeps it in RAM. A store there is continued, while the
            ring begins empty: SB3's ``save_replay_buffer`` keeps the ring too.
        replay: A replay of your own in place of a path, with a capacity of your own.
        frame_stack: Frames that the envs stack on the first axis, as ``VecFrameStack(envs, 4)``
            does with gray images ``[4, H, W]``: the replay stores one in each row.
        stack_padding: Frames before an episode's first one: ``"zero"`` with ``VecFrameStack``,
            ``"repeat"`` with gymnasium's wrappers.

    Raises:
        ValueError: A number is out of range, or ``frame_stack`` does not fit the space.
        SpecMismatch: The folder or the replay holds other rows.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("CartPole-v1")
        >>> buffer = ReplayBuffer(1_000, env.observation_space, env.action_space, device="cpu")
        >>> observation, _ = env.reset(seed=0)
        >>> for step in range(100):
        ...     action = np.array([step % 2])
        ...     following, reward, terminated, truncated, info = env.step(action[0])
        ...     done = np.array([terminated or truncated])
        ...     infos = [info | {"TimeLimit.truncated": truncated}]
        ...     buffer.add(observation[None], following[None], action, [reward], done, infos)
        ...     observation = env.reset()[0] if done else following
        >>> batch = buffer.sample(32)
        >>> tuple(batch.observations.shape), tuple(batch.actions.shape), tuple(batch.dones.shape)
        ((32, 4), (32, 1), (32, 1))
        >>> buffer.flush()
        >>> buffer.replay.sample_sequences(4, length=8).observation.shape
        (4, 8, 4)
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        path: str | os.PathLike[str] | None = None,
        replay: SequenceReplayBuffer | None = None,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        check_whole("n_steps", n_steps, 1)
        _check_replay(replay)
        if path is not None and replay is not None:
            raise ValueError(
                f"replay: expected none with a path, got both, with {path}; leave one out"
            )
        _check_kind(observation_space, is_dict=isinstance(self, DictReplayBuffer))
        self.buffer_size = max(self.buffer_size // self.n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = int(n_steps)
        self.gamma = gamma
        self._spec = Spec.from_spaces(
            observation_space, action_space, frame_stack=frame_stack, stack_padding=stack_padding
        )
        self._ring: FrameRing | None = None
        self._over: np.ndarray | None = None  # envs whose newest step ended an episode, in a ring
        self._is_reshaped = isinstance(observation_space, spaces.Discrete)
        is_large = self._spec.row_bytes >= _LARGE_ROW_BYTES
        if frame_stack > 1 or ((optimize_memory_usage or is_large) and not self._is_dict):
            self._ring = FrameRing(
                *(self.buffer_size, self.n_envs, np.dtype(observation_space.dtype)),
                *(self.obs_shape[frame_stack > 1 :], frame_stack, stack_padding),
            )
        self._make_arrays()
        self._waiting = 0  # steps that are not in the replay
        self._limits: deque[tuple[int, np.ndarray]] = deque()  # of steps yet to come, and envs
        # Steps that waited while the ring was full: the place behind them, and what is known.
        self._scanned: tuple[int, np.ndarray, np.ndarray, np.ndarray] | None = None
        self._before: list[np.ndarray] | None = None  # next observations before the waiting steps
        self._is_on_demand = path is None and replay is None
        self._start_replay(path, replay)

    def _make_arrays(self) -> None:
        """The ring: arrays ``[size, N, ...]``, as SB3 has them."""
        space: Any = self.observation_space
        shapes: Any = self.obs_shape
        lead = self.buffer_size, self.n_envs

        def pair(part: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((*lead, *shape), part.dtype), np.zeros((*lead, *shape), part.dtype)

        if isinstance(space, spaces.Dict):
            made = {key: pair(part, shapes[key]) for key, part in space.spaces.items()}
            self.observations: Any = {key: now for key, (now, _) in made.items()}
            self.next_observations: Any = {key: then for key, (_, then) in made.items()}
        elif self._ring is None:
            self.observations, self.next_observations = pair(space, shapes)
        kind = self._maybe_cast_dtype(self.action_space.dtype)
        self.actions = np.zeros((*lead, self.action_dim), kind)
        self.rewards, self.dones, self.timeouts = (np.zeros(lead, np.float32) for _ in range(3))
        self._use_arrays()

    def _use_arrays(self) -> None:
        """Note the parts of observations, which are views of the ring's arrays."""
        space: Any = self.observation_space
        layout: Layout = self._spec.observation
        if isinstance(space, spaces.Dict):
            assert isinstance(layout, Mapping)
            entries: list[tuple[Any, ...]] = [
                (key, str(layout[key]), part, self.observations[key], self.next_observations[key])
                for key, part in space.spaces.items()
            ]
        elif self._ring is not None:
            entries = []
        else:
            entries = [(None, str(layout), space, self.observations, self.next_observations)]
        self._parts = [
            _Part(
                key,
                name,
                self._spec[name].source_shape,
                now.shape[2:],
                isinstance(part, spaces.Discrete),
                now,
                then,
            )
            for key, name, part, now, then in entries
        ]
        self._plain = None
        if not self._is_dict and self._ring is None and not self._parts[0].is_discrete:
            part = self._parts[0]
            self._plain = part.now, part.then, part.now[0].size
        # Last observations of episodes of which the newest infos did not tell the end, by env.
        self._unmarked_ends: dict[int, list[bytes]] = {}
        self._has_timeouts = bool(self.timeouts.any())
        steps = _MOST_BYTES // max(1, self._spec.row_bytes * self.n_envs)
        self._block = max(1, min(_MOST_STEPS, steps, self.buffer_size))

    def _start_replay(
        self, path: str | os.PathLike[str] | None, replay: SequenceReplayBuffer | None
    ) -> None:
        self.is_closed = False
        self._most = self.buffer_size if self._is_on_demand else self._block
        held = (self.buffer_size + self._block) * self.n_envs
        self._replay = new_replay(held, path) if replay is None else replay
        is_box = isinstance(self.action_space, spaces.Box)
        facts = {"maker": _MAKER, "actions": "scaled" if is_box else "given"}
        try:
            self._writer = BlockWriter(self._replay, self._spec, self.n_envs, facts)
        except BaseException:
            if replay is None:
                self._replay.close()  # otherwise the folder stays locked
            raise
        if not self._is_on_demand:
            self._replay.call_before_close(self.flush)
            atexit.register(_flush, weakref.ref(self))

    @staticmethod
    def _maybe_cast_dtype(dtype: Any) -> Any:
        """float32 in place of float64, as SB3 keeps actions."""
        return np.float32 if dtype == np.float64 else dtype

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The rows as episodes, to draw sequences from, and to be exported.

        In RAM, steps are stored when you look at this property, in a folder and in a replay of your
        own also by themselves, 1024 at a time. A look stores those that are new if they are a
        thousandth of all for each env (a hundredth at most); `flush` does so always.
        """
        if self._waiting * self.n_envs * 1000 >= len(self._replay) * min(10, self.n_envs):
            self.flush()
        return self._replay

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: Any,
        done: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of all envs; everything is copied.

        An env's episode continues where ``obs`` is, byte for byte, the ``next_obs`` before.

        Args:
            obs: Observations ``[N, ...]``.
            next_obs: Next observations ``[N, ...]``; at the end of an episode its true last
                observation.
            action: ``[N, ...]``: Box actions as the model chose them, scaled to -1..1.
            reward: [N].
            done: [N]: the episode ended, or, with ``handle_timeout_termination=False``, the MDP
                terminated.
            infos: One for each env, of which ``"TimeLimit.truncated"`` is read; or the infos of a
                gymnasium vector env, where ``"_final_observation"`` or ``"_final_obs"`` mark envs
                whose episode ended. Of those that are done, the last observation is taken from
                there: CleanRL's loops give the first of the next episode as ``next_obs``.

        Raises:
            ValueError: An array does not fit the spaces, or an env without such a mark goes on
                from the last observation of an episode that is done, with reward 0: that is a reset
                of gymnasium's NEXT_STEP mode. The step was not added.
            SpecMismatch: Observations are not stacks of ``frame_stack`` frames.
        """
        pos, n, waiting = self.pos, self.n_envs, self._waiting
        if isinstance(infos, dict):
            self._refuse_resets(obs, reward, done)
            next_obs = self._with_last_observations(next_obs, done, infos)
        marked: np.ndarray | None = None
        try:
            if self._plain is not None:
                now, then, size = self._plain
                # Before anything is written, as the oldest step is in that place.
                first = obs.size if type(obs) is np.ndarray else np.size(obs)
                second = next_obs.size if type(next_obs) is np.ndarray else np.size(next_obs)
                if first != size or second != size:
                    raise ValueError("another number of values")
            self.actions[pos] = action.reshape(n, self.action_dim)
            self.rewards[pos] = reward
            self.dones[pos] = done
            if isinstance(infos, dict):
                marked = self._marked(infos)
            elif self.handle_timeout_termination:
                each: Any = infos
                flags = [info.get("TimeLimit.truncated", False) for info in each]
                if self._has_timeouts or True in flags:
                    self.timeouts[pos] = flags
                    self._has_timeouts = True
            if self._plain is not None:
                now, then, _ = self._plain
                now[pos] = obs
                then[pos] = next_obs
            elif self._ring is None:
                self._write(obs, next_obs)
            else:
                if self._is_reshaped:
                    obs, next_obs = self._reshaped(obs), self._reshaped(next_obs)
                self._ring.write(obs, next_obs, self._over)
                is_over = np.count_nonzero(self.dones[pos]) > 0
                self._over = self.dones[pos] != 0 if is_over else None
        except SpecMismatch:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._refusal(obs, next_obs, action, error) from error
        if marked is not None:
            self._limits.append((waiting, marked))
        self.pos = pos = pos + 1
        if pos == self.buffer_size:
            self.full = True
            self.pos = 0
        self._waiting = waiting = waiting + 1
        if waiting == self._most:
            if self._is_on_demand:
                self._scan()
            else:
                self.flush()

    def _write(self, obs: Any, next_obs: Any) -> None:
        """Write observations that are no array of the ring's shape to its newest step."""
        for part in self._parts:
            now = obs if part.key is None else obs[part.key]
            then = next_obs if part.key is None else next_obs[part.key]
            if part.is_discrete:
                now, then = self._reshaped(now), self._reshaped(then)
            part.now[self.pos] = now
            part.then[self.pos] = then

    def _reshaped(self, numbers: Any) -> np.ndarray:
        """Numbers of a Discrete space as [N, 1]."""
        return np.asarray(numbers).reshape(self.n_envs, 1)

    def _refuse_resets(self, obs: Any, reward: Any, done: Any) -> None:
        """Raise if a step goes on behind an end, as gymnasium's NEXT_STEP mode does."""
        for env, last in self._unmarked_ends.items():
            if self._bytes_of(obs, env) == last and not reward[env] and not done[env]:
                raise ValueError(
                    f"add: expected the first observation of a new episode of env {env}, got the "
                    "last one of the episode that ended, with reward 0: the reset of gymnasium's "
                    "NEXT_STEP mode, which is no step; make the envs with "
                    "autoreset_mode=SAME_STEP, or leave out the step after each end"
                )

    def _with_last_observations(self, next_obs: Any, done: Any, infos: Mapping[str, Any]) -> Any:
        """Next observations, with those of ``infos`` where an episode is done."""
        ends = [int(env) for env in np.flatnonzero(done)]
        name = next((name for name in _FINAL if name in infos and name[1:] in infos), None)
        marked = [env for env in ends if name is not None and infos[name][env]]
        self._unmarked_ends = {
            env: self._bytes_of(next_obs, env) for env in ends if env not in marked
        }
        if name is None or not marked:
            return next_obs
        last = infos[name[1:]]
        if not self._is_dict:
            next_obs = np.array(next_obs)
            next_obs[marked] = [last[env] for env in marked]
            return next_obs
        next_obs = {key: np.array(rows) for key, rows in next_obs.items()}
        for key, rows in next_obs.items():
            rows[marked] = [last[env][key] for env in marked]
        return next_obs

    def _bytes_of(self, obs: Any, env: int) -> list[bytes]:
        """The observation of an env."""
        parts = [obs if part.key is None else obs[part.key] for part in self._parts]
        return [np.asarray(rows[env]).tobytes() for rows in parts]

    def _marked(self, infos: Mapping[str, Any]) -> np.ndarray | None:
        """[N] bool: the infos of a vector env mark an end that is no termination."""
        if self.handle_timeout_termination:
            self.timeouts[self.pos] = infos.get("TimeLimit.truncated", False)
            self._has_timeouts = True
        for name in _FINAL:
            if name in infos:
                is_over: np.ndarray = np.asarray(infos[name], np.bool_)
                is_over = is_over & (self.dones[self.pos] == 0)
                return is_over
        return None

    def _refusal(self, obs: Any, next_obs: Any, action: Any, error: Exception) -> ValueError:
        return ValueError(
            f"add: expected observations of {self.observation_space} and actions of "
            f"{self.action_space} for each of {self.n_envs} envs, got {_described(obs)}, "
            f"{_described(next_obs)} and {_described(action)}: {error}; give those of one step"
        )

    def flush(self) -> None:
        """Store the waiting steps in the replay; in a folder they are durable then."""
        if self._scanned is not None:
            stop, ends, begins, rewards = self._scanned
            self._scanned = None
            kept = self.buffer_size - self._waiting
            gone = len(ends) - kept
            if gone:
                self._writer.leave_out(rewards[:gone], ends=ends[:gone], begins=begins[:gone])
            if kept:
                self._store(slice(stop - kept, stop), ends[gone:], begins[gone:])
        while self._waiting:
            rows, ends, begins = self._oldest_waiting()
            self._store(rows, ends, begins)
            self._pass(rows)

    def _store(self, rows: slice, ends: np.ndarray, begins: np.ndarray) -> None:
        """Store steps of the ring."""
        lead = rows.stop - rows.start, self.n_envs
        now: dict[str, np.ndarray] = {}
        then: dict[str, np.ndarray] = {}
        for part in self._parts:
            now[part.name] = part.now[rows].reshape(*lead, *part.field_shape)
            then[part.name] = part.then[rows].reshape(*lead, *part.field_shape)
        if self._ring is not None:
            field = self._spec[str(self._spec.observation)]
            before, after = self._ring.rows(rows.start, rows.stop)
            now[field.name] = before.reshape(*lead, *field.shape)
            then[field.name] = after.reshape(*lead, *field.shape)
        action = self._spec[str(self._spec.action)]
        taken = self.actions[rows].reshape(*lead, *action.shape)
        chosen = {action.name: taken.astype(action.numpy_dtype, copy=False)}
        self._writer.add(now, then, chosen, self.rewards[rows], ends=ends, begins=begins)

    def _scan(self) -> None:
        """Note how the oldest waiting steps begin and end, before others are written over them.

        They can be stored until then; afterwards only their number matters.
        """
        if self._scanned is not None:
            _, ends, begins, rewards = self._scanned
            self._writer.leave_out(rewards, ends=ends, begins=begins)
        rows, ends, begins = self._oldest_waiting()
        self._scanned = rows.stop, ends, begins, self.rewards[rows].copy()
        self._pass(rows)

    def _oldest_waiting(self) -> tuple[slice, np.ndarray, np.ndarray]:
        """Waiting steps in a row of the ring, how they end, and which begin an episode."""
        start = (self.pos - self._waiting) % self.buffer_size
        steps = min(self._waiting, self._block, self.buffer_size - start)
        rows = slice(start, start + steps)
        begins = self._begins(rows)
        terminated, truncated = _ENDS
        ends = np.where(self.timeouts[rows] != 0, truncated, terminated).astype(np.uint8)
        ends[self.dones[rows] == 0] = 0
        for step, flags in self._limits:
            if step < steps:
                ends[step][flags] = truncated
        return rows, ends, begins

    def _begins(self, rows: slice) -> np.ndarray:
        """[T, N] bool: steps whose observations are not the next ones of the steps before."""
        if self._ring is not None:
            return self._ring.begins(rows.start, rows.stop)
        begins = np.ones((rows.stop - rows.start, self.n_envs), np.bool_)
        if self._before is not None:
            before = [part[None] for part in self._before]
            begins[:1] = differing([part.now[rows][:1] for part in self._parts], before)
        begins[1:] = differing(
            [part.now[rows][1:] for part in self._parts],
            [part.then[rows][:-1] for part in self._parts],
        )
        return begins

    def _pass(self, rows: slice) -> None:
        """Note that the oldest waiting steps wait no longer."""
        steps = rows.stop - rows.start
        self._waiting -= steps
        self._limits = deque((step - steps, flags) for step, flags in self._limits if step >= steps)
        self._before = [part.then[rows.stop - 1].copy() for part in self._parts]

    def reset(self) -> None:
        """Begin with an empty ring; the replay keeps its rows, and open episodes end by a cut."""
        self.flush()
        self._writer.cut()
        self._before = self._over = None
        self._unmarked_ends = {}
        if self._ring is not None:
            self._ring.reset()
        super().reset()

    def close(self) -> None:
        """Store waiting steps, and release files and locks; closing twice is harmless."""
        if not self.is_closed:
            self.flush()
            self._replay.close()
            self.is_closed = True

    def __del__(self) -> None:
        # Absent where __init__ was not completed.
        if not self.__dict__.get("is_closed", True) and not self._is_on_demand and self._waiting:
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions uniformly, by NumPy's global generator as SB3 does.

        Args:
            batch_size: Number of transitions, B >= 1.
            env: SB3's ``VecNormalize``, which normalises observations and rewards.

        Returns:
            ``ReplayBufferSamples``, or ``DictReplayBufferSamples``: observations and next
            observations ``[B, ...]``, actions [B, A], dones [B, 1] and rewards [B, 1], with
            ``n_steps`` > 1 also discounts [B, 1]. The tensors are the caller's own.

        Raises:
            NotEnoughData: There is no transition yet.
        """
        check_whole("batch_size", batch_size, 1)
        size = self.buffer_size if self.full else self.pos
        if not size:
            raise NotEnoughData(
                "the buffer is empty: expected at least one step to draw from, got 0; add some"
            )
        if self.optimize_memory_usage and self.full:
            # SB3 leaves one out here, whose next observation it does not have.
            places = (_numbers(1, size, batch_size) + self.pos) % size
        else:
            places = _numbers(0, size, batch_size)
        return self._get_samples(places, env=env)

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        """The transitions at places of the ring, each of an env drawn at random."""
        envs = _numbers(0, self.n_envs, len(batch_inds))
        if self.n_steps > 1:
            return self._n_step_samples(batch_inds, envs, env)
        places = batch_inds * self.n_envs + envs
        now, then = self._observed(places, places)
        dones = self._at(self.dones, places)
        dones *= 1 - self._at(self.timeouts, places)
        rewards = self._at(self.rewards, places)[:, None]
        return self._samples()(
            self._owned(self._normalize_obs(now, env)),
            self._owned(self._at(self.actions, places)),
            self._owned(self._normalize_obs(then, env)),
            self._owned(dones[:, None]),
            self._owned(self._normalize_reward(rewards, env)),
        )

    def _n_step_samples(self, batch_inds: np.ndarray, envs: np.ndarray, env: Any) -> Any:
        """The same with the returns of up to `n_steps` steps, computed in SB3's order."""
        each = (batch_inds[:, None] + np.arange(self.n_steps)) % self.buffer_size
        dones, timeouts = self.dones[each, envs[:, None]], self.timeouts[each, envs[:, None]]
        # Behind the newest step another episode follows in a full ring.
        is_end = (dones != 0) | (timeouts != 0) | (each == (self.pos - 1) % self.buffer_size)
        last = np.where(is_end.any(1), is_end.argmax(1), self.n_steps - 1)
        is_used = np.arange(self.n_steps) <= last[:, None]
        rewards = self._normalize_reward(self.rewards[each, envs[:, None]], env)
        powers = self.gamma ** np.arange(self.n_steps, dtype=np.float32)[None]
        returns = (rewards * powers * is_used).sum(axis=1, keepdims=True)
        discounts = self.gamma ** is_used.sum(axis=1, keepdims=True).astype(np.float32)
        rows = np.arange(len(each)), last
        final = (dones[rows] * (1.0 - timeouts[rows]))[:, None]
        places = batch_inds * self.n_envs + envs
        now, then = self._observed(places, each[rows] * self.n_envs + envs)
        return self._samples()(
            observations=self._owned(self._normalize_obs(now, env)),
            actions=self._owned(self._at(self.actions, places)),
            next_observations=self._owned(self._normalize_obs(then, env)),
            dones=self._owned(final),
            rewards=self._owned(returns),
            discounts=self._owned(discounts),
        )

    def _observed(self, first: np.ndarray, last: np.ndarray) -> tuple[Any, Any]:
        """Observations before and after transitions, of places counted over steps and envs."""
        if self._ring is not None:
            return self._ring.read(first, last)
        now = {part.key: self._at(part.now, first) for part in self._parts}
        then = {part.key: self._at(part.then, last) for part in self._parts}
        return (now, then) if self._is_dict else (now[None], then[None])

    @property
    def _is_dict(self) -> bool:
        return isinstance(self.observation_space, spaces.Dict)

    def _at(self, array: np.ndarray, places: np.ndarray) -> np.ndarray:
        return array.reshape(-1, *array.shape[2:]).take(places, 0)

    def _samples(self) -> Any:
        """The class of the batches."""
        return _class_of(DictReplayBufferSamples if self._is_dict else ReplayBufferSamples)

    def __getstate__(self) -> dict[str, Any]:
        """The ring, and the episodes of a replay in RAM, or the folder of one on disk."""
        if not self._is_on_demand:
            self.flush()
        state = self.__dict__.copy()
        for name in ("_parts", "_plain", "_writer", "_replay"):
            del state[name]
        state["_open"] = self._writer.state()
        if self._replay.path is not None:
            state["_path"] = self._replay.path
        else:
            going = self._writer.open_episodes()
            state["_rows"] = (
                self._replay.capacity,
                [
                    (
                        *(each.id, each.stream, each.first_row),
                        int(End.PENDING if each.id in going else each.end),
                        *(dict(each.fields), dict(each.metadata)),
                    )
                    for each in self._replay.iter_episodes()
                ],
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue with the ring of `__getstate__`; a folder is opened again."""
        rows, path, going = state.pop("_rows", None), state.pop("_path", None), state.pop("_open")
        self.__dict__.update(state)
        self._use_arrays()
        if rows is None:
            self._start_replay(path, None)
            self._writer.restore(going)
            self._writer.cut()  # as whatever was open when a folder was closed
            self._before = None
        else:
            capacity, episodes = rows
            self._start_replay(None, SequenceReplayBuffer(capacity=capacity))
            for episode, stream, first_row, end, fields, metadata in episodes:
                place = episode, stream, first_row, End(end)
                chunk = Chunk(*place, fields, metadata, starts_late=first_row > 0)
                self._replay.add([chunk])
            self._writer.restore(going)


class NStepReplayBuffer(ReplayBuffer):
    """SB3's class of this name: `ReplayBuffer` with ``n_steps=3``."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 3,
        gamma: float = 0.99,
        path: str | os.PathLike[str] | None = None,
        replay: SequenceReplayBuffer | None = None,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        super().__init__(
            *(buffer_size, observation_space, action_space, device, n_envs),
            *(optimize_memory_usage, handle_timeout_termination),
            n_steps=n_steps,
            gamma=gamma,
            path=path,
            replay=replay,
            frame_stack=frame_stack,
            stack_padding=stack_padding,
        )


class DictReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` for observations that are dicts of arrays.

    Example:
        >>> space = spaces.Dict({"place": spaces.Box(0, 9, (2,)), "door": spaces.Discrete(3)})
        >>> buffer = DictReplayBuffer(100, space, spaces.Discrete(2), device="cpu")
        >>> seen = {"place": np.zeros((1, 2), np.float32), "door": np.array([2])}
        >>> for _ in range(5):
        ...     buffer.add(seen, seen, np.array([1]), np.ones(1), np.zeros(1), [{}])
        >>> {key: tuple(rows.shape) for key, rows in buffer.sample(8).observations.items()}
        {'door': (8, 1), 'place': (8, 2)}
    """


class RolloutBuffer(_Buffer):
    """A rollout for PPO and A2C, whose steps can also be stored in a replay.

    It holds, computes and draws the same as SB3's class, bit for bit.

    Args:
        buffer_size: Steps T of each env.
        observation_space: Of one env: Box, Discrete, MultiDiscrete or MultiBinary.
        action_space: Of one env, the same kinds.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        gae_lambda: Weight of longer returns in the advantages, 0 to 1.
        gamma: Discount.
        n_envs: Number of envs N.
        replay: Gets every step, with the extras ``value`` and ``log_prob``. SB3 does not say how an
            episode ended, nor what was seen last: it ends by a cut, and its last row repeats the
            observation before. Rewards are those that SB3 computes, which at the end of a time
            limit include the value of the last observation.

    Raises:
        ValueError: A number is out of range.
        SpecMismatch: The replay holds other rows.

    Example:
        >>> import torch
        >>> buffer = RolloutBuffer(8, spaces.Box(0, 1, (2,)), spaces.Discrete(2), device="cpu")
        >>> for step in range(8):
        ...     seen, action = np.full((1, 2), step / 8, np.float32), np.array([step % 2])
        ...     buffer.add(seen, action, [1.0], [step == 0], torch.zeros(1), torch.zeros(1))
        >>> buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
        >>> round(float(buffer.returns[0, 0]), 3)
        7.726
        >>> [tuple(batch.observations.shape) for batch in buffer.get(4)]
        [(4, 2), (4, 2)]
    """

    rewards: np.ndarray
    returns: np.ndarray
    episode_starts: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        replay: SequenceReplayBuffer | None = None,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        _check_kind(observation_space, is_dict=isinstance(self, DictRolloutBuffer))
        _check_replay(replay)
        self.gae_lambda = gae_lambda
        self.gamma = gamma
        self.generator_ready = False
        self.replay = replay
        self._rows: EpisodeBuffer | None = None
        if replay is not None:
            more = (
                Field("extra/value", "float32", (), "raw"),
                Field("extra/log_prob", "float32", (), "raw"),
            )
            spec = Spec.from_spaces(observation_space, action_space, more=(*more, OBSERVED))
            replay.bind(spec, {"recipe": {"maker": _MAKER, "actions": "given"}, "num_envs": n_envs})
            self._rows = EpisodeBuffer(
                replay.spec,
                self.n_envs,
                capacity=replay.capacity,
                next_episode=replay.storage.index.next_episode,
                store=replay.add,
            )
        self.reset()

    def reset(self) -> None:
        """Begin an empty rollout; stored steps stay in the replay, where episodes continue."""
        lead = self.buffer_size, self.n_envs
        space: Any = self.observation_space
        if isinstance(space, spaces.Dict):
            self.observations: Any = {
                key: np.zeros((*lead, *self.obs_shape[key]), part.dtype)
                for key, part in space.spaces.items()
            }
        else:
            self.observations = np.zeros((*lead, *self.obs_shape), space.dtype)
        self.actions = np.zeros((*lead, self.action_dim), self.action_space.dtype)
        for name in ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages"):
            setattr(self, name, np.zeros(lead, np.float32))
        self.generator_ready = False
        super().reset()

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Compute advantages by GAE (https://arxiv.org/abs/1506.02438), and returns from them.

        Args:
            last_values: [N] values of the observations after the last step.
            dones: [N] bool: the last step ended an episode.
        """
        # In SB3's order of operations, which rounding depends on.
        last = last_values.clone().cpu().numpy().flatten()
        following = np.concatenate([self.values[1:], last[None]])
        is_going = 1.0 - np.concatenate(
            [self.episode_starts[1:], np.asarray(dones)[None].astype(np.float32)]
        )
        delta = self.rewards + self.gamma * following * is_going - self.values
        decay = self.gamma * self.gae_lambda * is_going
        newest: Any = 0
        for step in range(self.buffer_size - 1, -1, -1):
            self.advantages[step] = newest = delta[step] + decay[step] * newest
        self.returns = self.advantages + self.values

    def add(
        self,
        obs: Any,
        action: np.ndarray,
        reward: Any,
        episode_start: Any,
        value: torch.Tensor,
        log_prob: torch.Tensor,
    ) -> None:
        """Add one step of all envs; everything is copied.

        Args:
            obs: Observations ``[N, ...]``.
            action: ``[N, ...]``.
            reward: [N].
            episode_start: [N] bool: an episode begins with the observation.
            value: [N] or [N, 1]: values of the observations.
            log_prob: [N] log-probabilities of the actions.
        """
        pos, n, space = self.pos, self.n_envs, self.observation_space
        if self.full:
            raise ValueError(
                f"add: expected at most {self.buffer_size} steps of a rollout, got one more; call "
                f"reset() first"
            )
        if isinstance(space, spaces.Dict):
            for key, ring in self.observations.items():
                ring[pos] = _in_columns(space.spaces[key], obs[key], n)
        else:
            self.observations[pos] = _in_columns(space, obs, n)
        self.actions[pos] = action.reshape(n, self.action_dim)
        self.rewards[pos] = reward
        self.episode_starts[pos] = episode_start
        self.values[pos] = value.detach().cpu().numpy().flatten()
        self.log_probs[pos] = log_prob.detach().cpu().numpy().reshape(-1)
        if self._rows is not None:
            self._record(self._rows)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True

    def _record(self, rows: EpisodeBuffer) -> None:
        """Store the newest step."""
        assert self.replay is not None
        pos, n, spec = self.pos, self.n_envs, self.replay.spec
        over = np.flatnonzero(self.episode_starts[pos]).tolist()
        if over:
            rows.cut(over, newest=True)
        action = spec[str(spec.action)]
        seen: Any = self.observations
        if isinstance(seen, dict):
            layout: Any = spec.observation
            now: Any = {
                key: ring[pos].reshape(n, *spec[layout[key]].shape) for key, ring in seen.items()
            }
        else:
            now = seen[pos].reshape(n, *spec[str(spec.observation)].shape)
        none = np.zeros(n, np.bool_)
        extras = {"value": self.values[pos], "log_prob": self.log_probs[pos]}
        taken = self.actions[pos].reshape(n, *action.shape)
        rows.add(now, taken, self.rewards[pos], None, none, none, extras=extras)

    def flush(self) -> None:
        """Store the steps that wait for more in the replay, if there is one."""
        if self._rows is not None and self.replay is not None:
            chunks = self._rows.take(everything=True, newest=True)
            if chunks:
                self.replay.add(chunks)

    def get(self, batch_size: int | None = None) -> Iterator[Any]:
        """All steps in random order, in batches; NumPy's global generator draws the order.

        Args:
            batch_size: Steps of a batch; None gives one batch of all.

        Returns:
            ``RolloutBufferSamples``, or ``DictRolloutBufferSamples``.

        Raises:
            NotEnoughData: The rollout is not full.
        """
        if not self.full:
            raise NotEnoughData(
                f"the rollout is not full: expected {self.buffer_size} steps, got {self.pos}; add "
                f"the others first"
            )
        return self._batches(batch_size)

    def _batches(self, batch_size: int | None) -> Iterator[Any]:
        count = self.buffer_size * self.n_envs
        order = np.random.permutation(count)  # noqa: NPY002
        if not self.generator_ready:
            flat = self.swap_and_flatten
            seen = self.observations
            self.observations = (
                {key: flat(rows) for key, rows in seen.items()}
                if isinstance(seen, dict)
                else flat(seen)
            )
            for name in ("actions", "values", "log_probs", "advantages", "returns"):
                setattr(self, name, flat(getattr(self, name)))
            self.generator_ready = True
        step = batch_size or count
        for start in range(0, count, step):
            yield self._get_samples(order[start : start + step])

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        """The steps with these numbers, counted env by env."""
        seen = self.observations
        taken = (
            {key: rows[batch_inds] for key, rows in seen.items()}
            if isinstance(seen, dict)
            else seen[batch_inds]
        )
        columns = self.values, self.log_probs, self.advantages, self.returns
        kind = DictRolloutBufferSamples if isinstance(seen, dict) else RolloutBufferSamples
        return _class_of(kind)(
            self._owned(taken),
            self._owned(self.actions[batch_inds].astype(np.float32, copy=False)),
            *(self._owned(each[batch_inds].flatten()) for each in columns),
        )


class DictRolloutBuffer(RolloutBuffer):
    """`RolloutBuffer` for observations that are dicts of arrays."""


def _in_columns(space: Any, rows: Any, n: int) -> np.ndarray:
    """Numbers of a Discrete space as [N, 1], other rows as they are."""
    return np.asarray(rows).reshape(n, 1) if isinstance(space, spaces.Discrete) else rows


def _check_replay(replay: object) -> None:
    """Refuse anything but a replay, or None."""
    if not isinstance(replay, SequenceReplayBuffer | None):
        raise TypeError(
            f"replay: expected a SequenceReplayBuffer, got {type(replay).__name__}; make one"
        )


def _check_kind(space: Any, *, is_dict: bool) -> None:
    """Refuse a Dict for a buffer of arrays, and the other way round."""
    if isinstance(space, spaces.Dict) != is_dict:
        wanted, other = ("a Dict", "without") if is_dict else ("one array", "with")
        raise ValueError(
            f"observation_space: expected {wanted}, got {space}; use the class {other} Dict in its "
            f"name"
        )


class HerReplayBuffer(DictReplayBuffer):
    """`DictReplayBuffer` that gives transitions goals which were achieved in their episode.

    Hindsight experience replay: Andrychowicz et al., 2017, arXiv:1707.01495. As in SB3's class,
    only ended episodes are drawn, and none whose first step was overwritten; a new goal changes the
    reward, but not ``dones``. There are two differences to SB3's: `reset` forgets the
    episodes, and infos are kept only with ``copy_info_dict=True``. For other replays, unfinished
    episodes and n-step returns see `stepwell.Hindsight`.

    Args:
        buffer_size: Transitions to keep, of all envs together.
        observation_space: A Dict with ``achieved_goal`` and ``desired_goal`` of one shape.
        action_space: Of one env.
        env: SB3's ``VecEnv``, whose first env computes rewards:
            ``compute_reward(achieved_goal, desired_goal, infos)`` for arrays of n goals and n
            infos. SB3's models pass their own.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        n_envs: Number of envs N.
        optimize_memory_usage: It changes nothing.
        handle_timeout_termination: As in `ReplayBuffer`.
        n_sampled_goal: Transitions with another goal for each one with its own: 4 relabels four of
            five.
        goal_selection_strategy: The goal is the one achieved after a step of the same episode:
            ``"future"``, the transition's or a later one; ``"final"``, the last one; ``"episode"``,
            any. SB3's ``GoalSelectionStrategy`` is valid, too.
        copy_info_dict: Keep the infos, and pass a copy of them to ``compute_reward``, which gets
            empty ones otherwise.
        path: Folder of the replay; None keeps it in RAM.
        replay: A replay of your own in place of a path.

    Raises:
        ValueError: A number is out of range, the strategy is unknown, or the space has no goals.
        SpecMismatch: The folder or the replay holds other rows.

    Example:
        >>> from types import SimpleNamespace
        >>> def env_method(name, achieved_goal, desired_goal, infos, indices):
        ...     return [-(achieved_goal != desired_goal).any(axis=-1).astype(np.float32)]
        >>> part = spaces.MultiBinary(4)
        >>> space = spaces.Dict(observation=part, achieved_goal=part, desired_goal=part)
        >>> env = SimpleNamespace(env_method=env_method)  # in place of a VecEnv
        >>> buffer = HerReplayBuffer(100, space, spaces.Discrete(4), env, device="cpu")
        >>> bits = np.zeros((1, 4), np.int8)
        >>> seen = {"observation": bits, "achieved_goal": bits, "desired_goal": bits + 1}
        >>> for step in range(6):
        ...     buffer.add(seen, seen, np.array([1]), [-1.0], np.array([step == 5]), [{}])
        >>> buffer.sample(5).rewards.ravel().int().tolist()
        [-1, 0, 0, 0, 0]
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        *,
        path: str | os.PathLike[str] | None = None,
        replay: SequenceReplayBuffer | None = None,
    ) -> None:
        check_whole("n_sampled_goal", n_sampled_goal, 0)
        _check_goals(observation_space)
        self._strategy: Strategy = strategy_of(goal_selection_strategy)
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            path=path,
            replay=replay,
        )
        self.env = env
        self.copy_info_dict = copy_info_dict
        self.goal_selection_strategy = goal_selection_strategy
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        self._episodes = EpisodeRing(self.buffer_size, self.n_envs)
        shape = self.buffer_size, self.n_envs
        self.infos = np.empty(shape, object) if self.copy_info_dict else None

    @property
    def ep_start(self) -> np.ndarray:
        """[size, N] int64: step of the ring at which the episode of each step begins."""
        return self._episodes.start

    @property
    def ep_length(self) -> np.ndarray:
        """[size, N] int64: steps of the episode of each step; 0 where that is not drawn from."""
        return self._episodes.length

    def set_env(self, env: Any) -> None:
        """Set the env of a buffer that was loaded.

        Raises:
            ValueError: It has one already.
        """
        if self.env is not None:
            raise ValueError("set_env: expected a buffer without an env, got one that has its own")
        self.env = env

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: Any,
        done: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of all envs; see `ReplayBuffer.add`.

        Args:
            obs: Observations ``[N, ...]``.
            next_obs: Next observations ``[N, ...]``.
            action: ``[N, ...]``.
            reward: [N].
            done: [N]: the episode ended.
            infos: One for each env; with ``copy_info_dict`` they must not be changed later.

        Raises:
            ValueError: A value does not fit; the step was not added.
        """
        pos = self.pos
        if self.infos is not None and (isinstance(infos, Mapping) or len(infos) != self.n_envs):
            raise ValueError(
                f"infos: expected a list with one dict for each of {self.n_envs} envs, got "
                f"{type(infos).__name__}; make the buffer with copy_info_dict=False to leave them "
                f"out"
            )
        self._episodes.begin(pos)
        super().add(obs, next_obs, action, reward, done, infos)
        if self.infos is not None:
            self.infos[pos] = infos
        for env in self.dones[pos].nonzero()[0].tolist():
            self._episodes.end(env, self.pos)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions of ended episodes uniformly, by NumPy's global generator as SB3 does.

        Args:
            batch_size: Number of transitions, B >= 1.
            env: SB3's ``VecNormalize``, which normalises observations and rewards.

        Returns:
            ``DictReplayBufferSamples``, as `ReplayBuffer.sample` gives them. The relabelled ones,
            ``her_ratio`` of B rounded down, are the last of the batch.

        Raises:
            NotEnoughData: No episode has ended yet.
            ValueError: The buffer has no env, or the env gives rewards of another shape.
        """
        drawable = self._episodes.drawable()
        if not len(drawable):
            raise NotEnoughData(
                "no episode in the buffer has ended: expected at least one, got 0; set "
                "learning_starts to more than the steps of the longest episode"
            )
        places = drawable.take(_numbers(0, len(drawable), batch_size))
        count = int(self.her_ratio * batch_size)
        kept = batch_size - count
        places = np.concatenate([places[count:], places[:count]])
        now, then = self._observed(places, places)
        rewards = self._at(self.rewards, places)[:, None]
        if count:
            goals = self._episodes.goals(places[kept:], self._strategy, np.random.randint)
            achieved = self._at(self.next_observations["achieved_goal"], goals)
            now["desired_goal"][kept:] = then["desired_goal"][kept:] = achieved
            rewards[kept:, 0] = self._rewards_of(
                places[kept:], then["achieved_goal"][kept:], now["desired_goal"][kept:]
            )
        dones = self._at(self.dones, places)
        dones *= 1 - self._at(self.timeouts, places)
        return self._samples()(
            self._owned(self._normalize_obs(now, env)),
            self._owned(self._at(self.actions, places)),
            self._owned(self._normalize_obs(then, env)),
            self._owned(dones[:, None]),
            self._owned(self._normalize_reward(rewards, env)),
        )

    def _rewards_of(
        self, places: np.ndarray, achieved: np.ndarray, desired: np.ndarray
    ) -> np.ndarray:
        """The rewards [n] float32 of steps for other goals."""
        if not hasattr(self.env, "env_method"):
            got = None if self.env is None else type(self.env).__name__
            raise ValueError(
                f"env: expected SB3's VecEnv, whose envs compute rewards, got {got}; call set_env"
            )
        infos: Any = [{} for _ in range(len(places))]
        if self.infos is not None:
            infos = copy.deepcopy(self.infos.ravel().take(places))
        found = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])[0]
        rewards = np.asarray(found).astype(np.float32)
        if rewards.size != len(places):
            raise ValueError(
                f"compute_reward: expected {len(places)} rewards for so many goals at once, got "
                f"shape {rewards.shape}; compute them along the last axis of the goals"
            )
        return rewards.reshape(-1)

    def truncate_last_trajectory(self) -> None:
        """Let all open episodes end here, as SB3 does after loading; bootstrapping goes on.

        In `replay` they end by a cut.
        """
        open_envs = (self._episodes.begun != self.pos).nonzero()[0].tolist()
        if not open_envs:
            return
        warnings.warn(
            f"the open episodes of {len(open_envs)} envs are truncated: expected a load between "
            f"two episodes; to go on in the same ones pass truncate_last_traj=False",
            stacklevel=2,
        )
        self.flush()
        self._writer.cut()
        self._before = None
        self._has_timeouts |= self.handle_timeout_termination
        for env in open_envs:
            self.dones[self.pos - 1, env] = 1
            self._episodes.end(env, self.pos)
            if self.handle_timeout_termination:
                self.timeouts[self.pos - 1, env] = 1

    def reset(self) -> None:
        """Begin with an empty ring; the replay keeps its rows, and open episodes end by a cut."""
        super().reset()
        self._begin_episodes()

    def __getstate__(self) -> dict[str, Any]:
        """The state without the env."""
        return super().__getstate__() | {"env": None}


def _check_goals(space: Any) -> None:
    """Refuse a space without two goals of one shape."""
    shapes = _observation_shape(space)
    keys = ("achieved_goal", "desired_goal")
    goals = [shapes.get(key) if isinstance(shapes, dict) else None for key in keys]
    if goals[0] is None or goals[0] != goals[1]:
        raise ValueError(
            f"observation_space: expected a Dict with an achieved_goal and a desired_goal of one "
            f"shape, got shapes {shapes}; use the class without Her in its name"
        )


def _observation_shape(space: Any) -> Any:
    """Shape of an observation as SB3 keeps it, or a dict of shapes."""
    if isinstance(space, spaces.Dict):
        return {key: _observation_shape(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return (1,)
    if isinstance(space, spaces.MultiDiscrete):
        return (len(space.nvec),)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return space.shape
    raise NotImplementedError(
        f"observation_space: expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of "
        f"them, got {space}; flatten it with a gymnasium wrapper"
    )


def _action_size(space: Any) -> int:
    """Numbers of an action."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return 1
    raise NotImplementedError(
        f"action_space: expected Box, Discrete, MultiDiscrete or MultiBinary, got {space}; flatten "
        f"it with a gymnasium wrapper"
    )


def _numbers(low: int, stop: int, count: int) -> np.ndarray:
    """Whole numbers of NumPy's global generator: a model's seed determines its batches by that."""
    return np.random.randint(low, stop, size=count)  # noqa: NPY002


def _flush(reference: weakref.ref[ReplayBuffer]) -> None:
    """Store the waiting steps of a buffer that was not closed, at the end of the process."""
    buffer = reference()
    if buffer is not None and not buffer.is_closed:
        buffer.flush()


def _device(device: Any) -> Any:
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_described(part)}" for key, part in value.items()) + "}"
    array = np.asarray(value)
    return f"{array.dtype} {array.shape}"


def _sb3_buffers() -> Any:
    """SB3's module of buffers; None where SB3 is not installed."""
    try:
        return importlib.import_module("stable_baselines3.common.buffers")
    except ModuleNotFoundError as error:
        if error.name != "stable_baselines3":
            raise
        return None


_BUFFERS = _sb3_buffers()
if _BUFFERS is not None:
    # Abstract base classes take classes that inherit nothing of them: isinstance() is True then.
    for _ours in (
        *(ReplayBuffer, DictReplayBuffer, NStepReplayBuffer),
        *(RolloutBuffer, DictRolloutBuffer),
    ):
        getattr(_BUFFERS, _ours.__name__).register(_ours)
    _HER = importlib.import_module("stable_baselines3.her.her_replay_buffer")
    _HER.HerReplayBuffer.register(HerReplayBuffer)


def _class_of(samples: type[Any]) -> Any:
    """SB3's class of the same name, where SB3 is installed."""
    return getattr(_BUFFERS, samples.__name__, samples)
