"""Skip frames of an Atari emulator without asking it for more than is needed."""

from __future__ import annotations

from typing import Any, Literal, cast

import gymnasium
import numpy as np
import numpy.typing as npt

from stepwell.wrappers.emulator import action_meanings, emulator_actions, emulator_info, emulator_of

__all__ = ["AleFrameSkip"]

Image = npt.NDArray[np.uint8]


class AleFrameSkip(
    gymnasium.Wrapper[Image, int, Image, int], gymnasium.utils.RecordConstructorArgs
):
    """`FrameSkip` over `TimeLimit`, made for ale-py: the same frames, rewards and ends, sooner.

    It drives the emulator itself, because `AtariEnv.step` makes a new screen and a new info for
    every single frame. A game that ends on its last allowed frame is terminated, not truncated.

    Args:
        env: An ale-py `AtariEnv` with `frameskip=1` and image observations, bare or wrapped.
        skip: Frames per step, at least 1.
        pool: "max" for the pixel-wise maximum of a step's last two frames, "none" for the last.
        max_frames: Frames after which an episode is truncated, counted from the observation that
            `reset` returned; None for no limit.

    Raises:
        ValueError: The env is not as described, or a number is below 1.

    Example:
        >>> import ale_py, gymnasium
        >>> env = gymnasium.make("ALE/Pong-v5", frameskip=1, obs_type="grayscale")
        >>> env = AleFrameSkip(env, skip=4, max_frames=108_000)
        >>> _ = env.reset(seed=0)
        >>> env.step(0)[4]["episode_frame_number"]
        4
    """

    def __init__(
        self,
        env: gymnasium.Env[Image, int],
        skip: int = 4,
        *,
        pool: Literal["max", "none"] = "max",
        max_frames: int | None = None,
    ) -> None:
        _check(env, skip, pool, max_frames)
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, skip=skip, pool=pool, max_frames=max_frames
        )
        super().__init__(env)
        self.skip = skip
        self.max_frames = max_frames
        self._ale = emulator_of(env)
        self._actions = emulator_actions(action_meanings(env))
        shape = cast("tuple[int, ...]", env.observation_space.shape)
        self._now = np.empty(shape, np.uint8)
        self._before = np.empty(shape, np.uint8) if pool == "max" and skip > 1 else None
        self._read = self._ale.getScreenRGB if len(shape) == 3 else self._ale.getScreenGrayscale
        self._frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Reset the env and the count of frames."""
        self._frames = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Play up to `skip` frames; the reward is the sum over those that were played."""
        ale, act, move = self._ale, self._ale.act, self._actions[action]
        before, frames, most = self._before, 1, self._frames_left()
        reward = act(move, 1.0)
        while frames < most and not ale.game_over(with_truncation=False):
            if before is not None:  # any frame may turn out to be the last but one
                self._read(before)
            reward += act(move, 1.0)
            frames += 1
        self._frames += frames
        terminated = ale.game_over(with_truncation=False)
        truncated = not terminated and self._frames_left() < 1
        image = self._image(before if frames > 1 else None)
        return image, float(reward), terminated, truncated, emulator_info(ale)

    def _frames_left(self) -> int:
        """How many frames this step may play."""
        if self.max_frames is None:
            return self.skip
        return min(self.skip, self.max_frames - self._frames)

    def _image(self, before: Image | None) -> Image:
        """The screen, pooled with the frame before it if there is one, in memory of its own."""
        self._read(self._now)
        return self._now.copy() if before is None else np.maximum(self._now, before)


def _check(env: gymnasium.Env[Image, int], skip: int, pool: str, max_frames: int | None) -> None:
    if skip < 1:
        raise ValueError(f"skip: expected at least 1 frame a step, got {skip}; 1 skips nothing")
    if pool not in ("max", "none"):
        raise ValueError(f"pool: expected 'max' or 'none', got {pool!r}")
    if max_frames is not None and max_frames < 1:
        raise ValueError(f"max_frames: expected at least 1, got {max_frames}; None sets no limit")
    if getattr(env.unwrapped, "_frameskip", None) != 1:
        raise ValueError(
            f"AleFrameSkip: expected an ale-py AtariEnv made with frameskip=1, got {env}; "
            "use FrameSkip for other envs"
        )
    shape = env.observation_space.shape or ()
    if len(shape) not in (2, 3):
        raise ValueError(
            f"AleFrameSkip: expected obs_type 'grayscale' or 'rgb', got observations {shape}"
        )
