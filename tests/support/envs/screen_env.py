"""An env that renders: each frame shows its env, episode and step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from support.envs.fakes import length_of

Image = npt.NDArray[np.uint8]


class ScreenEnv(gym.Env[npt.NDArray[np.int64], np.int64]):
    """Renders (tag, episode, t) as a colour, always into the same array, and counts the renders."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 24}  # noqa: RUF012  # as gymnasium's

    def __init__(
        self,
        length: int | list[int] = 3,
        tag: int = 0,
        render_mode: str | None = "rgb_array",
        size: tuple[int, int] = (6, 9),
    ) -> None:
        self.length, self.tag, self.render_mode = length, tag, render_mode
        self.observation_space = spaces.Box(0, 2**40, (3,), np.int64)
        self.action_space = spaces.Discrete(4)
        self.episode, self.t, self.renders = -1, 0, 0
        self.screen = np.zeros((*size, 3), np.uint8)

    def observation(self) -> npt.NDArray[np.int64]:
        return np.array([self.tag, self.episode, self.t], np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[npt.NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= length_of(self.length, self.episode)
        return self.observation(), 1.0, over, False, {}

    def render(self) -> Any:
        self.renders += 1
        self.screen[...] = self.tag, self.episode, self.t
        return self.screen
