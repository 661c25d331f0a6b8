"""Wrappers that clip the reward and store the raw reward in the info."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.core import ActType, ObsType


class ClipReward(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
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
        gymnasium.utils.RecordConstructorArgs.__init__(self, limit=limit)
        super().__init__(env)
        self.limit = float(limit)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step, and return the clipped reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw = float(np.asarray(reward).item())  # also of shape (1,)
        clipped = min(max(raw, -self.limit), self.limit)
        return observation, clipped, terminated, truncated, {**info, "raw_reward": raw}


class SignReward(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
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
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step, and return the sign of the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        raw = float(np.asarray(reward).item())  # also of shape (1,)
        sign = float((raw > 0) - (raw < 0))
        return observation, sign, terminated, truncated, {**info, "raw_reward": raw}
