"""A ring of steps of N envs, which replays and rollouts of SB3 are; SB3's own classes."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from gymnasium import spaces

from ...base.number_checks import check_whole
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode_buffer import EpisodeBuffer
from ...spec.exact_values import exactly, numbers_in
from ..transition_writer import call_at_end

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.buffers import DictReplayBuffer as SB3DictReplayBuffer
    from stable_baselines3.common.buffers import DictRolloutBuffer as SB3DictRolloutBuffer
    from stable_baselines3.common.buffers import NStepReplayBuffer as SB3NStepReplayBuffer
    from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
    from stable_baselines3.common.buffers import RolloutBuffer as SB3RolloutBuffer
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3HerReplayBuffer
else:  # for type checkers ours are subclasses; really they inherit nothing, and are registered
    SB3DictReplayBuffer = SB3DictRolloutBuffer = SB3HerReplayBuffer = object
    SB3NStepReplayBuffer = SB3ReplayBuffer = SB3RolloutBuffer = object

__all__ = [
    "SB3DictReplayBuffer",
    "SB3DictRolloutBuffer",
    "SB3HerReplayBuffer",
    "SB3NStepReplayBuffer",
    "SB3ReplayBuffer",
    "SB3RolloutBuffer",
]

ClassT = TypeVar("ClassT", bound=type)
_MODULES = "common.buffers", "her.her_replay_buffer"


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


@cache
def _original(name: str) -> Any:
    """SB3's class of a name; None where SB3 is not installed."""
    for part in _MODULES:
        try:
            module = importlib.import_module(f"stable_baselines3.{part}")
        except ModuleNotFoundError as error:
            if error.name != "stable_baselines3":
                raise
            return None
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"stable_baselines3: expected {name} in {_MODULES}, got none; install 2.9")


def registered(ours: ClassT) -> ClassT:
    """Make ``isinstance`` take a class for SB3's one of its name."""
    original = _original(ours.__name__)
    if original is not None:
        # Abstract base classes take classes that inherit nothing of them.
        original.register(ours)
    return ours


def samples_class(samples: type[Any]) -> Any:
    """SB3's class of the same name, where SB3 is installed."""
    return _original(samples.__name__) or samples


BY_CLOCK = "TimeLimit.truncated"
MAKER = "stable-baselines3"


class StepRing:
    """A position in a ring of steps of N envs, of replays and rollouts."""

    obs_shape: Any

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
        self.obs_shape = observation_shape(observation_space)
        self.action_dim = _action_size(action_space)
        self.pos = 0
        self.full = False
        self.device = _device(device)
        self.n_envs = int(n_envs)
        _part_forks()

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

    def _session(self, recipe: Mapping[str, object]) -> dict[str, object]:
        """The facts about a run that the replay stores."""
        return {"source": f"SB3 {type(self).__name__}", "recipe": recipe, "num_envs": self.n_envs}

    @property
    def _is_dict(self) -> bool:
        return isinstance(self.observation_space, spaces.Dict)

    def _parts(self, observation: Any) -> Mapping[Any, Any]:
        """An observation, its space, shape or fields, by key; without a Dict the key is None."""
        return observation if self._is_dict else {None: observation}

    def _whole(self, parts: Mapping[Any, Any]) -> Any:
        """The observation of the parts."""
        return parts if self._is_dict else parts[None]

    def _zeros(self, lead: tuple[int, ...]) -> Any:
        """Arrays for observations, a dict of them for a Dict."""
        shapes, parts = self._parts(self.obs_shape), self._parts(self.observation_space)
        return self._whole(
            {key: np.zeros((*lead, *shapes[key]), part.dtype) for key, part in parts.items()}
        )

    def to_torch(self, array: np.ndarray, copy: bool = True) -> torch.Tensor:
        """An array as a tensor on the device."""
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


def store_at_end(replay: SequenceReplayBuffer, flush: Callable[[], None]) -> None:
    """Store waiting steps before the replay is closed, or the process ends; a method of theirs."""
    replay.call_before_close(flush)
    call_at_end(flush)


def rows_for(replay: SequenceReplayBuffer, num_envs: int) -> EpisodeBuffer:
    """Rows of N envs on their way into a bound replay."""
    return EpisodeBuffer(
        replay.spec,
        num_envs,
        capacity=replay.capacity,
        next_episode=replay.storage.index.next_episode,
        store=replay.add,
    )


def check_kind(space: Any, *, is_dict: bool) -> None:
    """Refuse a Dict for a buffer of arrays, and the other way round."""
    if isinstance(space, spaces.Dict) != is_dict:
        wanted, other = ("a Dict", "without") if is_dict else ("one array", "with")
        raise ValueError(
            f"observation_space: expected {wanted}, got {space}; use the class {other} Dict in its "
            f"name"
        )


def observation_shape(space: Any) -> Any:
    """Shape of an observation as SB3 keeps it, or a dict of shapes."""
    if isinstance(space, spaces.Dict):
        return {key: observation_shape(part) for key, part in space.spaces.items()}
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
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return 1
    raise NotImplementedError(
        f"action_space: expected Box, Discrete, MultiDiscrete or MultiBinary, got {space}; flatten "
        f"it with a gymnasium wrapper"
    )


def fitted(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """A value of all envs as an array of a dtype and shape, not copied where it is one."""
    # As in SB3, lists and tensors are valid, axes of length 1 at an end may be more or fewer, and
    # one number may stand for all envs. Floats are rounded to the dtype.
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
        return value
    array = numbers_in(value, name, dtype, shape)
    if array.shape != shape:
        if array.ndim == 0 < len(shape) < 2:
            array = np.broadcast_to(array, shape)
        elif _trimmed(array.shape) != _trimmed(shape):
            back = _trimmed(array.shape[::-1]), _trimmed(shape[::-1])
            if back[0] != back[1]:
                raise ValueError(
                    f"{name}: expected shape {shape} for one step of all envs, got {array.shape}; "
                    f"give a value for each env"
                )
        array = array.reshape(shape)
    if array.dtype.kind == "f" and dtype.kind in "iu":  # whole ones, as SB3 takes them
        with np.errstate(all="ignore"):
            found = array.astype(dtype)
        is_wrong = found != array
        if np.count_nonzero(is_wrong):
            raise ValueError(
                f"{name}: expected values that {dtype} holds, got {array[is_wrong][0]}; declare "
                f"another space, or convert them first"
            )
        return found
    return exactly(array, dtype, shape, name)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without the axes of length 1 before all others."""
    return next((shape[axis:] for axis, size in enumerate(shape) if size != 1), ())


def flags(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Flags, which SB3 keeps as float32: bools as they are, or numbers 0 and 1."""
    if type(value) is np.ndarray and value.dtype == np.bool_ and value.shape == shape:
        return value
    found = fitted(name, value, np.dtype(np.float32), shape)
    if getattr(value, "dtype", None) != np.bool_:
        is_wrong = (found != 0) & (found != 1)
        if np.count_nonzero(is_wrong):
            raise ValueError(
                f"{name}: expected flags, True or False, 1 or 0, got {found[is_wrong][0]}; give "
                f"one for each env"
            )
    return found


def ends_by_clock(infos: Any, n: int) -> np.ndarray | None:
    """[n] float32: infos mark ends that are no terminations; None where they mark nothing."""
    if isinstance(infos, dict):
        marks = infos.get(BY_CLOCK, False)
        return None if marks is False else flags(BY_CLOCK, marks, (n,))
    is_list = isinstance(infos, list | tuple | np.ndarray)
    # What all loops give is told by their types, in a third of the time of a loop over them.
    is_known = type(infos) is list and len(infos) == n and {*map(type, infos)} == {dict}
    if not is_known and not (
        is_list and len(infos) == n and all(isinstance(info, Mapping) for info in infos)
    ):
        got = len(infos) if is_list else type(infos).__name__
        raise ValueError(f"infos: expected one for each of {n} envs, got {got}; give their dicts")
    each = [info.get(BY_CLOCK, False) for info in infos]
    if not [flag for flag in each if flag is not False]:
        return None
    return np.array([flags(BY_CLOCK, flag, ()) for flag in each])


def random_numbers(low: int, stop: int, count: int) -> np.ndarray:
    """Whole numbers of NumPy's global generator: a model's seed determines its batches by that."""
    return np.random.randint(low, stop, size=count)  # noqa: NPY002


@cache
def _part_forks() -> None:
    """Let forked processes draw batches of their own, as Python's own ``random`` does."""
    # NumPy's global generator goes on in each as in the others. From now on it continues there from
    # its state at the fork and the number of forks before; in this process it changes nothing.
    if not hasattr(os, "register_at_fork"):
        return
    forks = [0]

    def count() -> None:
        forks[0] += 1

    def reseed() -> None:
        drawn = np.random.randint(2**32, size=8, dtype=np.uint32)  # noqa: NPY002
        np.random.seed([*drawn, *forks])  # noqa: NPY002

    os.register_at_fork(before=count, after_in_child=reseed)


def _device(device: Any) -> Any:
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
