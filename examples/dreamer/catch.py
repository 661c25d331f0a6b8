"""Catch: a game of 32 x 32 gray pixels, small enough to be learned on two CPU cores.

    envs = sw.make_vec("stepwell/Catch-v0", 8)  # once this module is imported

A ball falls a row and drifts a column each step, left or right, and bounces off the walls; a single
image does not show its direction. A curtain hides it before it lands, so the agent needs memory.
Based on Mnih et al. 2014, "Recurrent Models of Visual Attention", arXiv:1406.6247, whose game has
no curtain.
"""

from typing import Any

import gymnasium as gym
import numpy as np

ID = "stepwell/Catch-v0"
COLUMNS, ROWS = 10, 10  # cells of 3 x 3 pixels, and a wall of one pixel around them
REACH = 1  # cells of the paddle to either side of its middle
WALL, PADDLE, BALL = 60, 150, 255  # gray levels on black
Info = dict[str, Any]


class Catch(gym.Env[np.ndarray, np.int64]):
    """A game of five balls (49 steps): +1 for each ball caught, -1 for each one missed.

    Observations are images [32, 32, 1] uint8; render_mode "rgb_array" enlarges them. Action 0
    moves the paddle a column to the left, 1 leaves it in place, 2 moves it to the right. The mean
    return is -2 for random actions, -3 for following the visible ball, 5 for perfect play.

    Args:
        balls: Balls in an episode, 1 or more.
        hidden: Rows of the curtain, 0 to 7; with 0, following the ball is perfect play.
        render_mode: "rgb_array" or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, balls: int = 5, hidden: int = 2, render_mode: str | None = None) -> None:
        if balls < 1 or not 0 <= hidden <= ROWS - 3:  # each ball is visible in at least two rows
            raise ValueError(
                f"Catch: expected balls of 1 or more and hidden from 0 to {ROWS - 3}, got "
                f"balls={balls} and hidden={hidden}"
            )
        self.observation_space = gym.spaces.Box(0, 255, (32, 32, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self.balls, self.hidden, self.render_mode = balls, hidden, render_mode
        self._row, self._column, self._drift = 0, 0, 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Info]:
        """Begin an episode, with the paddle in the middle and the first ball at the top."""
        super().reset(seed=seed)
        self._paddle, self._left = COLUMNS // 2, self.balls
        self._throw()
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move the paddle and the ball; after a ball has landed, the next one starts at the top."""
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected 0, 1 or 2, got {action!r}")
        self._paddle = min(max(self._paddle + int(action) - 1, REACH), COLUMNS - 1 - REACH)
        if self._row == ROWS - 1:
            self._throw()
        else:
            if not 0 <= self._column + self._drift < COLUMNS:
                self._drift = -self._drift
            self._row, self._column = self._row + 1, self._column + self._drift
        if self._row < ROWS - 1:
            return self._picture(), 0.0, False, False, {}
        self._left -= 1
        reward = 1.0 if abs(self._column - self._paddle) <= REACH else -1.0
        return self._picture(), reward, self._left == 0, False, {}

    def render(self) -> Any:
        """Return the current image, [256, 256, 3] uint8, or None without a render mode."""
        return self._picture().repeat(8, 0).repeat(8, 1).repeat(3, 2) if self.render_mode else None

    def _throw(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(COLUMNS))
        self._drift = int(self.np_random.choice((-1, 1)))

    def _picture(self) -> np.ndarray:
        picture = np.full((32, 32, 1), WALL, np.uint8)
        picture[1:-1, 1:-1] = 0
        first, last = self._paddle - REACH, self._paddle + REACH
        picture[-4:-1, 1 + 3 * first : 4 + 3 * last] = PADDLE
        top, left = 1 + 3 * self._row, 1 + 3 * self._column
        picture[top : top + 3, left : left + 3] = BALL
        picture[-4 - 3 * self.hidden : -4] = WALL  # the curtain, above the lowest row
        return picture


if ID not in gym.registry:  # this module may be imported under two names
    gym.register(ID, entry_point=Catch)  # type: ignore[arg-type]  # any class of envs will do
