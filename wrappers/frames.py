"""Wrappers that skip frames and stack them."""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType, ObsType

from ..buffers.base.number_checks import check_choice, check_whole
from ..buffers.spec.exact_values import one_number
from .env_results import RecordedWrapper

Array = npt.NDArray[Any]


class FrameSkip(RecordedWrapper[ObsType, ActType]):
    """Repeat each action for `skip` frames, sum the rewards and pool the last two frames.

    Old consoles draw some sprites only every second frame, hence the pixel-wise maximum of the
    last two frames (Mnih et al. 2015, "Human-level control through deep reinforcement learning",
    Methods). Only frames of the same step are pooled. When the episode ends inside a step, the
    step stops and its observation shows the last frame, pooled with the previous frame of the step
    if there is one. `gymnasium.wrappers.MaxAndSkipObservation` and `AtariPreprocessing`
    (Gymnasium 1.4.0) and ale-py's vector env show an older frame instead.

    The info is the info of the last frame.

    Args:
        env: An env that advances one frame per step; pool="max" needs a Box observation space.
        skip: Frames per step, at least 1.
        pool: "max" for the maximum of the last two frames, "none" for the last frame.

    Raises:
        ValueError: `skip` is below 1, or `pool` is unknown or does not fit the observations.

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
        check_skip(env, skip, pool)
        super().__init__(env, {"skip": skip, "pool": pool})
        self.skip = skip
        space = env.observation_space
        pools = pool == "max" and skip > 1
        self._before: npt.NDArray[Any] | None = (
            np.empty(cast("tuple[int, ...]", space.shape), space.dtype) if pools else None
        )

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Repeat `action`; the reward is the sum over the frames played."""
        before = self._before
        observation, reward, terminated, truncated, info = self.env.step(action)
        total, frames = one_number(reward, "reward"), 1
        while frames < self.skip and not (terminated or truncated):
            if before is not None:  # copy: the env may reuse its observation array
                np.copyto(before, cast("npt.NDArray[Any]", observation))
            observation, reward, terminated, truncated, info = self.env.step(action)
            total, frames = total + one_number(reward, "reward"), frames + 1
        if before is not None and frames > 1:
            observation = cast("ObsType", np.maximum(cast("npt.NDArray[Any]", observation), before))
        return observation, total, terminated, truncated, info


def check_skip(env: gymnasium.Env[ObsType, ActType], skip: int, pool: str) -> None:
    """Check the arguments of a wrapper that skips frames."""
    check_whole("skip", skip, 1, hint="; 1 skips nothing")
    check_choice("pool", pool, ("max", "none"))
    if pool == "max" and not isinstance(env.observation_space, gymnasium.spaces.Box):
        raise ValueError(
            "FrameSkip pools arrays: expected a Box observation space, "
            f"got {env.observation_space}; use pool='none'"
        )


class FrameStack(RecordedWrapper[Array, ActType]):
    """Stack the newest `size` observations in one array, the oldest first.

    Unlike `gymnasium.wrappers.FrameStackObservation` (1.4.0) it copies each observation directly,
    so envs that reuse their observation array are handled.

    Args:
        env: An env with a Box observation of shape S.
        size: Observations in a stack, at least 1; the new shape is `(size, *S)`.
        padding: Padding before the first observation of an episode: "zero" (like ale-py's vector
            env) or "repeat" (the first observation, like Gymnasium).

    Raises:
        ValueError: `size` is below 1, `padding` is unknown, or the observation space is not a Box.

    Example:
        >>> import gymnasium
        >>> env = FrameStack(gymnasium.make("CartPole-v1"), 3, padding="zero")
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape, bool(observation[:2].any())
        ((3, 4), False)
    """

    def __init__(
        self,
        env: gymnasium.Env[Array, ActType],
        size: int = 4,
        *,
        padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        check_whole("size", size, 1, hint="; 1 stacks nothing")
        check_choice("padding", padding, ("zero", "repeat"))
        space: gymnasium.Space[Any] = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise ValueError(f"FrameStack: expected a Box observation space, got {space}")
        super().__init__(env, {"size": size, "padding": padding})
        self.padding = padding
        low, high = (np.repeat(bound[None], size, axis=0) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        self._stack: Array = np.zeros(low.shape, space.dtype)

    def step(self, action: ActType) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and return the stack that ends with the new observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = observation
        return self._stack.copy(), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset, and return the first observation after its padding."""
        observation, info = self.env.reset(seed=seed, options=options)
        saved = (options or {}).get("snapshot")
        if saved is not None:
            observation = saved.observation  # emulators do not save their screens
        self._stack[:-1] = 0 if self.padding == "zero" else observation
        self._stack[-1] = observation
        return self._stack.copy(), info
