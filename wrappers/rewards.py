"""Wrappers that make another reward and keep the env's own in the info."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType, ObsType

from ..buffers.spec.exact_values import BadValue, numbers_in, one_number
from .env_results import RecordedWrapper


class ClipReward(RecordedWrapper[ObsType, ActType]):
    """Clip the reward to -limit .. limit, and store the raw reward in `info["raw_reward"]`.

    Unlike `gymnasium.wrappers.ClipReward` it keeps the raw reward. See `SignReward` for the sign.
    Put it outside `FrameSkip`, so that the sum of a step is clipped.

    Args:
        env: Any env.
        limit: Maximum reward, above 0; the minimum is its negative.

    Raises:
        ValueError: `limit` is not a number above 0.

    Example:
        >>> import gymnasium
        >>> env = ClipReward(gymnasium.make("Pendulum-v1"), 0.5)
        >>> _ = env.reset(seed=0)
        >>> _, reward, _, _, info = env.step(env.action_space.sample())
        >>> reward, info["raw_reward"] < -0.5
        (-0.5, True)
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType], limit: float) -> None:
        if not limit > 0:
            raise ValueError(f"limit: expected a number above 0, got {limit}")
        super().__init__(env, {"limit": limit})
        self.limit = float(limit)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step, and return the clipped reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw = one_number(reward, "reward")
        clipped = min(max(raw, -self.limit), self.limit)
        return observation, clipped, terminated, truncated, {**info, "raw_reward": raw}


class SignReward(RecordedWrapper[ObsType, ActType]):
    """Replace the reward by its sign, -1, 0 or 1; `info["raw_reward"]` has the raw reward.

    Put it outside `FrameSkip`, so that the sign is that of a step's sum. Source: Mnih et al. 2015,
    "Human-level control through deep reinforcement learning", Methods.

    Args:
        env: Any env.

    Example:
        >>> import gymnasium
        >>> env = SignReward(gymnasium.make("Pendulum-v1"))
        >>> _ = env.reset(seed=0)
        >>> _, reward, _, _, info = env.step(env.action_space.sample())
        >>> reward, info["raw_reward"] < 0
        (-1.0, True)
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        super().__init__(env)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step, and return the sign of the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw = one_number(reward, "reward")
        sign = float((raw > 0) - (raw < 0))
        return observation, sign, terminated, truncated, {**info, "raw_reward": raw}


class VectorReward(RecordedWrapper[ObsType, ActType]):
    """Give one number for several rewards, and keep them all in `info["rewards"]`.

    For envs with a reward for each objective (MO-Gymnasium) or for each agent (lbforaging, rware).
    The rewards are stored if they are declared: ``info={"rewards": np.zeros(2)}`` in `Collector`
    and `record`.

    Args:
        env: An env whose reward is a list or an array of k numbers.
        weights: k numbers, by which the rewards are weighted in their sum; or a function that gets
            them as float64 [k] and returns a number, such as `numpy.min`.

    Raises:
        ValueError: The weights are no numbers. In `step`: there are more or fewer rewards.

    Example:
        >>> class Trade(gymnasium.Env):
        ...     observation_space = action_space = gymnasium.spaces.Discrete(2)
        ...     def step(self, action):
        ...         return 0, np.array([1.0, -0.5]), False, False, {}
        >>> _, reward, _, _, info = VectorReward(Trade(), [1, 2]).step(0)
        >>> reward, info["rewards"]
        (0.0, array([ 1. , -0.5]))
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsType, ActType],
        weights: Sequence[float] | Callable[[npt.NDArray[np.float64]], float],
    ) -> None:
        super().__init__(env, {"weights": weights})
        self.weights: Any = weights
        if not callable(weights):
            self.weights = np.array(numbers_in(weights, "weights"), np.float64)
            if self.weights.ndim != 1:
                raise BadValue(f"weights: expected a list of numbers or a function, got {weights}")

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step, and return one number for the rewards."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        rewards = np.array(numbers_in(reward, "reward"), np.float64)
        if callable(self.weights):
            one = one_number(self.weights(rewards.copy()), "weights(rewards)")
        elif rewards.shape == self.weights.shape:
            one = float(rewards @ self.weights)
        else:
            raise BadValue(
                f"reward: expected {len(self.weights)} numbers, as there are weights, got shape "
                f"{rewards.shape}; give a weight for each"
            )
        return observation, one, terminated, truncated, {**info, "rewards": rewards}
