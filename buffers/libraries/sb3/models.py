"""Models of Stable-Baselines3: loading, checks, spaces, tensors, and progress."""

from __future__ import annotations

import inspect
import math
import time
from collections import deque
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ...base.number_checks import whole_number
from ...base.optional_libraries import load_library
from ...replay.replay import SequenceReplayBuffer
from ...sampling.tensors import ToTensors
from ...spec.space_json import recorded_spaces
from ...spec.spec import plain_array

_NEEDS_STATE = ("lstm_actor", "lstm_critic")


def load_sb3(part: str, wanted_for: str) -> ModuleType:
    """The module of that name behind ``stable_baselines3``, 2.9 or newer."""
    return load_library(
        f"stable_baselines3.{part}",
        wanted_for,
        install="'stepwell[sb3]'",
        package="stable-baselines3",
        at_least="2.9",
    )


def is_on_policy(model: Any, wanted_for: str) -> bool:
    """True if a model learns from rollouts (PPO, A2C), False if from a replay."""
    on_policy = load_sb3("common.on_policy_algorithm", wanted_for).OnPolicyAlgorithm
    off_policy = load_sb3("common.off_policy_algorithm", wanted_for).OffPolicyAlgorithm
    if not isinstance(model, (on_policy, off_policy)):
        raise TypeError(
            f"{wanted_for}: expected a model of Stable-Baselines3 such as PPO or DQN, got "
            f"{type(model).__name__}; give the model itself, not its policy or class (others, such "
            f"as ARS, play as a function of the observation that calls their predict)"
        )
    if any(hasattr(model.policy, name) for name in _NEEDS_STATE):
        raise TypeError(
            f"{wanted_for}: expected a model without a recurrent state, got "
            f"{type(model).__name__}; train one with a recurrent policy by its own learn()"
        )
    predicts = model.predict, model.policy.predict
    if any("action_masks" in inspect.signature(each).parameters for each in predicts):
        raise TypeError(
            f"{wanted_for}: expected a model that chooses from all actions, got "
            f"{type(model).__name__}, which needs a mask of the valid ones at each step; train it "
            f"by its own learn(), or give a Collector a function of the observation that knows the "
            f"mask and calls its predict(observation, action_masks=mask)"
        )
    return isinstance(model, on_policy)


def check_on_policy(model: Any, wanted_for: str) -> None:
    """Raise TypeError unless the model learns from rollouts that it did not collect itself."""
    if not is_on_policy(model, wanted_for):
        raise TypeError(
            f"{wanted_for}: expected a model that learns from rollouts, such as PPO or A2C, got "
            f"{type(model).__name__}; feed it with as_sb3_replay"
        )
    check_not_normalised(model, wanted_for)


def check_not_normalised(model: Any, wanted_for: str) -> None:
    """Raise ValueError for a model with VecNormalize."""
    if model.get_vec_normalize_env() is not None:
        raise ValueError(
            f"{wanted_for}: expected a model without VecNormalize, as only SB3's own "
            f"steps update its statistics, got one with it; give the Collector envs in gymnasium's "
            f"NormalizeObservation and NormalizeReward instead"
        )


def check_off_policy(model: Any, wanted_for: str) -> None:
    """Raise unless the model learns from a replay buffer that can be replaced."""
    if is_on_policy(model, wanted_for):
        raise TypeError(
            f"{wanted_for}: expected a model that learns from a replay, such as DQN or SAC, got "
            f"{type(model).__name__}; feed it with to_sb3_rollout"
        )
    if model.optimize_memory_usage:
        raise ValueError(
            f"{wanted_for}: expected a model without optimize_memory_usage, got one with it; make "
            f"it without: a Stepwell replay keeps each frame once anyway"
        )
    hindsight = load_sb3("her.her_replay_buffer", wanted_for).HerReplayBuffer
    if isinstance(model.replay_buffer_class, type) and issubclass(
        model.replay_buffer_class, hindsight
    ):
        raise TypeError(
            f"{wanted_for}: expected a model without HerReplayBuffer, as goals are not relabelled "
            f"here, got one with it; make the model without replay_buffer_class"
        )


class DeviceTensors:
    """Turns arrays, and dicts of them, into tensors; on the CPU they share the arrays' memory."""

    # That is what `ToTensors` does for batches of any form, in a tenth of the time.

    def __init__(self, device: Any) -> None:
        self._from_numpy: Any = load_sb3("common.buffers", "a bridge").th.from_numpy
        # On other devices it moves frames that two stacks share only once.
        self._moved = None if device.type == "cpu" else ToTensors(device)

    def __call__(self, tree: Any) -> Any:
        """An array as a tensor, or a dict of them as a dict of tensors."""
        return self._shared(tree) if self._moved is None else self._moved(tree)

    def _shared(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self._shared(part) for key, part in tree.items()}
        array: np.ndarray = tree
        # torch warns about arrays that are not writeable.
        return self._from_numpy(array if array.flags.writeable else array.copy())


class ObservationForm:
    """The observations of a model: an array, or a dict of arrays."""

    # Images [H, W, C] are passed as [C, H, W], where the model was made with an env that
    # `VecTransposeImage` stands before, as a view.

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space: Any = space
        self._is_dict = isinstance(space, spaces.Dict)
        preprocessing = load_sb3("common.preprocessing", "a bridge to Stable-Baselines3")
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._parts = {
            key: _Part(
                np.dtype(part.dtype),
                tuple(part.shape or ()),
                is_image=bool(preprocessing.is_image_space(part)),
                is_discrete=isinstance(part, spaces.Discrete),
            )
            for key, part in parts.items()
        }

    def fit(self, observation: object, lead: int, *, for_buffer: bool = False) -> Any:
        """Observations ``[..., *]`` with ``lead`` axes before ``*`` as the model takes them."""
        # They are views where they can be. Numbers of a Discrete space have an axis more in SB3's
        # buffers.
        if not self._is_dict:
            return self._fit("", observation, lead, for_buffer)
        if not isinstance(observation, Mapping) or observation.keys() != self._space.spaces.keys():
            raise ValueError(
                f"observation: expected a dict with the keys {sorted(self._space.spaces)} of the "
                f"model's observation space, got {_kind(observation)}; make the model with an env "
                f"that gives the same observations"
            )
        return {key: self._fit(key, observation[key], lead, for_buffer) for key in self._parts}

    def _fit(self, key: str, given: object, lead: int, for_buffer: bool) -> np.ndarray:
        name = f"observation/{key}" if key else "observation"
        if type(given) is not np.ndarray and isinstance(given, Mapping | tuple):
            raise ValueError(
                f"{name}: expected an array, as the model's observation space is {self._space}, "
                f"got {_kind(given)}; make the model with an env that gives the same observations, "
                f"without a space in a space"
            )
        array, part = plain_array(name, given, ValueError), self._parts[key]
        found = array.shape[lead:]
        if part.is_image and len(found) == 3 and found != part.shape:
            if (found[2], *found[:2]) == part.shape:
                array, found = np.moveaxis(array, -1, lead), part.shape
        if array.dtype != part.dtype or found != part.shape:
            raise ValueError(
                f"{name}: expected {part.dtype} {part.shape} as in the model's observation space, "
                f"got {array.dtype} {found}; make the model with an env that gives the same "
                f"observations, or convert them with a wrapper before they are collected"
            )
        return array[..., None] if for_buffer and part.is_discrete else array


class _Part(NamedTuple):
    """Dtype and shape of one array of an observation, looked up once."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_image: bool
    is_discrete: bool


class ActionForm:
    """The actions of a model; no model of SB3 chooses in a space that does not begin with 0."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
            raise ValueError(
                f"action: expected a space that begins with 0, as Stable-Baselines3 chooses from 0 "
                f"on, got {space}; wrap the env so that it does"
            )
        self._space = space
        self.shape = tuple(space.shape or ())
        self.dtype = np.dtype(space.dtype)
        self.is_box = isinstance(space, spaces.Box)  # vectors of real numbers
        self._size = math.prod(self.shape)
        self._count: Any = None
        self._unsigned: np.dtype[Any] | None = None
        if isinstance(space, spaces.Discrete):
            self._count = int(space.n)
            self._unsigned = np.dtype(f"u{self.dtype.itemsize}")
        elif isinstance(space, spaces.MultiDiscrete):
            self._count = space.nvec

    def fit(self, action: object, lead: int, *, name: str = "action") -> np.ndarray:
        """Actions ``[..., *]`` as SB3's buffers keep them: one axis, A, behind the lead."""
        if type(action) is not np.ndarray and isinstance(action, Mapping | tuple):
            raise ValueError(self._refusal(name, _kind(action)))
        array = plain_array(name, action, ValueError)
        if array.dtype != self.dtype or array.shape[lead:] != self.shape:
            raise ValueError(self._refusal(name, f"{array.dtype} {array.shape[lead:]}"))
        if self._count is not None and not self._are_in_range(array):
            is_wrong = (array < 0) | (array >= self._count)
            raise ValueError(self._refusal(name, f"the number {array[is_wrong].flat[0]}"))
        return array.reshape(*array.shape[:lead], self._size)

    def for_envs(self, action: np.ndarray) -> np.ndarray:
        """Convert a policy's actions ``[N, ...]`` to the dtype and shape that envs take."""
        found: np.ndarray = action.reshape(len(action), *self.shape).astype(self.dtype, copy=False)
        return found

    def _are_in_range(self, array: np.ndarray) -> bool:
        """True if all numbers of actions are from 0 to below the space's counts."""
        if self._unsigned is None:
            return not np.count_nonzero((array < 0) | (array >= self._count))
        if not array.size:
            return True
        numbers = array.view(self._unsigned)  # in which negative ones are the largest
        largest: int = numbers.item(numbers.argmax())
        return bool(largest < self._count)

    def _refusal(self, name: str, got: str) -> str:
        return (
            f"{name}: expected actions of the model's space {self._space}, got {got}; make the "
            f"model with an env that takes the same actions"
        )


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))}"
    return f"a {type(value).__name__}"


def sb3_env(replay: SequenceReplayBuffer) -> gym.Env[Any, Any]:
    """An env with the spaces of a replay, for a model that learns from the replay alone.

    SB3 makes its networks after an env's spaces, and ``model.train`` never steps it: ``reset`` and
    ``step`` raise RuntimeError. Other libraries may have it too: SB3 is not imported.

    Args:
        replay: A replay whose newest session with spaces counts.

    Raises:
        ValueError: The replay has no spaces, as rows that were added without an env.

    Example:
        >>> import stepwell as sw
        >>> from stable_baselines3 import DQN
        >>> replay = sw.load_dataset("cartpole/random", seed=0)
        >>> model = DQN("MlpPolicy", sb3_env(replay), buffer_size=1, seed=0)
        >>> model.replay_buffer = sw.bridges.as_sb3_replay(replay, model)
        >>> count_sb3_steps(model, 100, total_steps=100)
        >>> model.train(gradient_steps=100, batch_size=64)
        >>> model.action_space, model._n_updates
        (Discrete(2), 100)
    """
    return _OnlySpaces(*recorded_spaces(replay, "sb3_env"))


class _OnlySpaces(gym.Env[Any, Any]):
    """An env that a model may ask for its spaces, and nothing else."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, **options: Any) -> NoReturn:
        self._refuse("reset")

    def step(self, action: Any) -> NoReturn:
        self._refuse("step")

    def _refuse(self, call: str) -> NoReturn:
        raise RuntimeError(
            f"sb3_env: expected a model that learns by train(), as this env has no more than the "
            f"spaces of a store, got a call of {call}; to play, give sw.evaluate or model.set_env "
            f"the real env"
        )


def count_sb3_steps(model: Any, steps: int, *, total_steps: int | None = None) -> None:
    """Count env steps for a model, as its own ``learn`` would.

    ``num_timesteps`` grows, and with it the progress that schedules of the learning rate, the
    clip range and the exploration rate follow. DQN's exploration rate and target network are
    updated as often as if SB3 had taken the steps; `to_sb3_rollout` calls this itself.

    Args:
        model: A model of Stable-Baselines3.
        steps: Env steps that were taken since the last call, over all envs: ``report.steps``.
        total_steps: Env steps of the whole training, which progress is measured by. None leaves
            the progress, and all schedules that depend on it, unchanged.

    Raises:
        TypeError: It is not a model of Stable-Baselines3.
        ValueError: A number is out of range, or ``total_steps`` is missing for DQN, whose
            exploration rate depends on it.

    Example:
        >>> from stable_baselines3 import DQN
        >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, exploration_fraction=0.5)
        >>> count_sb3_steps(model, 250, total_steps=1_000)
        >>> model.num_timesteps, round(model.exploration_rate, 3)
        (250, 0.525)
    """
    is_on_policy(model, "count_sb3_steps")
    steps = whole_number("steps", steps, 0)
    if total_steps is not None:
        total_steps = whole_number("total_steps", total_steps, 1)
    if total_steps is None and hasattr(model, "exploration_schedule"):
        raise ValueError(
            "total_steps: expected the number of env steps by which the exploration rate falls, "
            "got None; give that of the whole training"
        )
    # As `learn` begins, unless it has been called.
    if not hasattr(model, "_logger"):
        utils = load_sb3("common.utils", "a bridge to Stable-Baselines3")
        # Not set_logger: learn() would not replace a logger that the user has set.
        model._logger = utils.configure_logger(model.verbose, model.tensorboard_log, "run", True)
    if model.ep_info_buffer is None:
        model.ep_info_buffer = deque(maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    if not model.start_time:
        model.start_time = time.time_ns()
    before = model.num_timesteps
    model.num_timesteps = before + int(steps)
    if total_steps is not None:
        model._total_timesteps = int(total_steps)
        model._update_current_progress_remaining(model.num_timesteps, total_steps)
    on_step = getattr(model, "_on_step", None)  # of off-policy models
    if on_step is not None:
        # SB3 calls it once for a step of all of the model's envs.
        for _ in range(model.num_timesteps // model.n_envs - before // model.n_envs):
            on_step()
