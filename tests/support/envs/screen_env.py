"""An env that renders: each frame shows its env, episode and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from support.envs.fakes import EpisodesEnv


class ScreenEnv(EpisodesEnv):
    """Renders (tag, episode, t) as a colour, always into the same array, and counts the renders."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 24}  # noqa: RUF012  # as gymnasium's

    def __init__(
        self,
        length: int | list[int] = 3,
        tag: int = 0,
        render_mode: str | None = "rgb_array",
        size: tuple[int, int] = (6, 9),
    ) -> None:
        super().__init__(length)
        self.tag, self.render_mode = tag, render_mode
        self.observation_space = spaces.Box(0, 2**40, (3,), np.int64)
        self.renders = 0
        self.screen = np.zeros((*size, 3), np.uint8)

    def observation(self) -> npt.NDArray[np.int64]:
        return np.array([self.tag, self.episode, self.t], np.int64)

    def render(self) -> Any:
        self.renders += 1
        self.screen[...] = self.tag, self.episode, self.t
        return self.screen
