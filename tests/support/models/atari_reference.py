"""Plain ways to play Atari, against which the wrappers are checked; shared by all tests."""

from collections.abc import Callable
from typing import Any, SupportsFloat, cast

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py import roms

from stepwell.wrappers.ale_env import quiet_emulators
from stepwell.wrappers.atari_settings import AtariSettings

Image = npt.NDArray[np.uint8]
Env = gymnasium.Env[Any, Any]
Policy = Callable[[Env], int]

gymnasium.register_envs(ale_py)

DEFAULTS: dict[str, Any] = {
    "game": "breakout",
    "frame_skip": 4,
    "pool": "max",
    "noop_max": 0,
    "fire_reset": False,
    "size": (84, 84),
    "grayscale": True,
    "frame_stack": 4,
    "sticky": 0.25,
    "max_frames": 108_000,
    "clip_rewards": False,
    "life_loss": "ignore",
    "full_actions": False,
    "mode": None,
    "difficulty": None,
}


def settings(**changes: Any) -> AtariSettings:
    """make_atari's defaults, on Breakout and without no-ops, with the given changes."""
    return AtariSettings(**(DEFAULTS | changes))


def bare(game: str = "Breakout", **changes: Any) -> Env:
    """ale-py's own env, one frame a step, gray, not sticky."""
    defaults: dict[str, Any] = {
        "frameskip": 1,
        "obs_type": "grayscale",
        "repeat_action_probability": 0.0,
    }
    return gymnasium.make(f"ALE/{game}-v5", **(defaults | changes))


def screen(env: Env) -> Image:
    """The emulator's screen at this moment, in gray levels."""
    return cast(Image, cast(Any, env.unwrapped).ale.getScreenGrayscale())


class Emulator:
    """A plain emulator, set up as that of an env."""

    def __init__(self, chosen: AtariSettings) -> None:
        quiet_emulators()
        self.chosen = chosen
        self.ale: Any = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", chosen.sticky)

    def load(self) -> None:
        """Load the game, in its mode and difficulty."""
        self.ale.loadROM(roms.get_rom_path(self.chosen.game))
        if self.chosen.mode is not None:
            self.ale.setMode(self.chosen.mode)
        if self.chosen.difficulty is not None:
            self.ale.setDifficulty(self.chosen.difficulty)

    def load_from_file(self, seed: int) -> None:
        self.ale.setInt("random_seed", seed)
        self.load()


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the emulator's screen after every frame since the last `clear`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.screens: list[Image] = []
        self.rewards: list[float] = []

    def clear(self) -> None:
        self.screens, self.rewards = [], []

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.screens.append(screen(self))
        self.rewards.append(float(result[1]))
        return result


class Script(gymnasium.Env[Image, Any]):
    """Shows the given gray levels one after the other; frame k gives the reward 2**k.

    Each inner list is an episode, the first level is shown by reset; the last one ends it.
    `live` hands out one array again and again.
    """

    def __init__(self, episodes: list[list[int]], live: bool = False, ends: str = "term") -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)
        self.action_space = cast(Any, gymnasium.spaces.Discrete(3))
        self.episodes, self.live, self.ends = episodes, live, ends
        self.episode, self.t, self.actions = -1, 0, list[Any]()
        self.buffer = np.zeros((2, 3), np.uint8)

    def show(self) -> Image:
        self.buffer[...] = self.episodes[self.episode][self.t]
        return self.buffer if self.live else self.buffer.copy()

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Image, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.show(), {"t": 0}

    def step(self, action: Any) -> tuple[Image, SupportsFloat, bool, bool, dict[str, Any]]:
        self.t += 1
        self.actions.append(action)
        over = self.t == len(self.episodes[self.episode]) - 1
        term, trunc = over and self.ends == "term", over and self.ends == "trunc"
        return self.show(), float(2**self.t), term, trunc, {"t": self.t}
