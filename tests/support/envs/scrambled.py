"""An env whose every row depends on all actions before it, with any action space."""

from __future__ import annotations

import zlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(6),
    "from three": spaces.Discrete(3, start=-1),
    "one": spaces.Discrete(1),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "double": spaces.Box(-1, 1, (), np.float64),
    "multi": spaces.MultiDiscrete([2, 300, 5]),
    "binary": spaces.MultiBinary(5),
    "dict": spaces.Dict(
        {
            "move": spaces.Discrete(4),
            "aim": spaces.Box(-1, 1, (2,), np.float32),
            "both": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([7, 2]))),
        }
    ),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(9))),
}


def bytes_of(action: Any) -> bytes:
    """The bytes of an action, also of a nested one."""
    if isinstance(action, dict):
        return b"".join(bytes_of(action[key]) for key in sorted(action))
    if isinstance(action, tuple):
        return b"".join(map(bytes_of, action))
    return np.asarray(action).tobytes()


class ScrambledEnv(gym.Env[Any, Any]):
    """Observation, reward, info and ends come from a hash of the seed and of all actions.

    Args:
        actions: A name in `ACTION_SPACES`.
        length: Mean length of an episode.
        offset: Added to the first number of each observation: another version of the game.
    """

    def __init__(self, actions: str = "discrete", length: int = 7, offset: int = 0) -> None:
        self.actions, self.length, self.offset = actions, length, offset
        self.action_space = ACTION_SPACES[actions]
        self.observation_space = spaces.Dict(
            {"hash": spaces.Box(0, 255, (4,), np.uint8), "real": spaces.Box(-9, 9, (), np.float32)}
        )
        self.state = 0

    def results(self) -> tuple[Any, dict[str, Any]]:
        digits = np.frombuffer(np.uint32(self.state).tobytes(), np.uint8).copy()
        digits[0] += self.offset
        real = np.float32(self.state % 1000 / 1000)
        return {"hash": digits, "real": real}, {"level": self.state % 5}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(1 << 32))
        return self.results()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = zlib.crc32(bytes_of(action), self.state)
        observation, info = self.results()
        is_over = self.state % self.length == 0
        is_terminated = is_over and self.state % 2 == 0
        return observation, self.state % 7 / 4, is_terminated, is_over and not is_terminated, info
