"""A ring of steps of N envs, which replays and rollouts of SB3 are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from stepwell.buffers.dropin.transition_writer import check_whole
from stepwell.buffers.replay import SequenceReplayBuffer

if TYPE_CHECKING:
    import torch

__all__ = ["MAKER", "StepRing", "check_kind", "check_replay", "observation_shape", "random_numbers"]

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


def check_replay(replay: object) -> None:
    """Refuse anything but a replay, or None."""
    if not isinstance(replay, SequenceReplayBuffer | None):
        raise TypeError(
            f"replay: expected a SequenceReplayBuffer, got {type(replay).__name__}; make one"
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
    """Numbers of an action."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return 1
    raise NotImplementedError(
        f"action_space: expected Box, Discrete, MultiDiscrete or MultiBinary, got {space}; flatten "
        f"it with a gymnasium wrapper"
    )


def random_numbers(low: int, stop: int, count: int) -> np.ndarray:
    """Whole numbers of NumPy's global generator: a model's seed determines its batches by that."""
    return np.random.randint(low, stop, size=count)  # noqa: NPY002


def _device(device: Any) -> Any:
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
