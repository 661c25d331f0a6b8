"""Repeat an action over several frames and show the last two of them as one."""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType, ObsType

__all__ = ["FrameSkip"]


class FrameSkip(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """Repeat each action for `skip` frames; sum the rewards, show the last two frames as one.

    Old consoles draw some sprites only every second frame, hence the pixel-wise maximum of the
    last two frames (Mnih et al. 2015, "Human-level control through deep reinforcement learning",
    Methods). Only frames of the same step are ever pooled. When the episode ends inside a step,
    the step stops there and its observation shows that very frame, pooled with the one before it
    if the step had one. `gymnasium.wrappers.MaxAndSkipObservation` and `AtariPreprocessing`
    (gymnasium 1.4.0) and ale-py's vector env show an older frame instead.

    The info is that of the last frame.

    Args:
        env: An env that advances one frame a step; its observation is an array if `pool` is "max".
        skip: Frames per step, at least 1.
        pool: "max" for the maximum of the last two frames, "none" for the last frame alone.

    Raises:
        ValueError: `skip` is below 1, or `pool` is unknown, or "max" without a Box observation.

    Example:
        >>> import gymnasium
        >>> env = FrameSkip(gymnasium.make("CartPole-v1"), skip=2, pool="none")
        >>> _ = env.reset(seed=0)
        >>> env.step(0)[1]
        2.0
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsType, ActType],
        skip: int = 4,
        *,
        pool: Literal["max", "none"] = "max",
    ) -> None:
        _check(env, skip, pool)
        gymnasium.utils.RecordConstructorArgs.__init__(self, skip=skip, pool=pool)
        super().__init__(env)
        self.skip = skip
        space = env.observation_space
        pools = pool == "max" and skip > 1
        self._before: npt.NDArray[Any] | None = (
            np.empty(cast("tuple[int, ...]", space.shape), space.dtype) if pools else None
        )

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Repeat `action`; the reward is the sum over the frames that were played."""
        before = self._before
        observation, reward, terminated, truncated, info = self.env.step(action)
        total, frames = _scalar(reward), 1
        while frames < self.skip and not (terminated or truncated):
            if before is not None:  # a copy: the env may draw the next frame into the same array
                np.copyto(before, cast("npt.NDArray[Any]", observation))
            observation, reward, terminated, truncated, info = self.env.step(action)
            total, frames = total + _scalar(reward), frames + 1
        if before is not None and frames > 1:
            observation = cast("ObsType", np.maximum(cast("npt.NDArray[Any]", observation), before))
        return observation, total, terminated, truncated, info


def _scalar(reward: SupportsFloat) -> float:
    return float(np.asarray(reward).item())  # some envs give arrays of shape (1,)


def _check(env: gymnasium.Env[ObsType, ActType], skip: int, pool: str) -> None:
    if skip < 1:
        raise ValueError(f"skip: expected at least 1 frame a step, got {skip}; 1 skips nothing")
    if pool not in ("max", "none"):
        raise ValueError(f"pool: expected 'max' or 'none', got {pool!r}")
    if pool == "max" and not isinstance(env.observation_space, gymnasium.spaces.Box):
        raise ValueError(
            "FrameSkip pools arrays: expected a Box observation space, "
            f"got {env.observation_space}; use pool='none'"
        )
