"""Envs as they were written for the old `gym`, one behaviour each, without `gym` itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]
Step = Callable[["OldEnv", Frame], Any]
HEIGHT, WIDTH = 6, 5


class OldSpace:
    """Common base of the fake gym spaces."""

    def __init__(self, shape: tuple[int, ...] | None = None, dtype: Any = None) -> None:
        self.shape, self.dtype = shape, None if dtype is None else np.dtype(dtype)
        self.seeds: list[int | None] = []

    def seed(self, seed: int | None = None) -> list[int | None]:
        if seed is not None and type(seed) is not int:  # gym 0.21 takes no numpy number
            raise TypeError(f"Seed must be a non-negative integer, not {seed!r}")
        self.seeds.append(seed)
        return [seed]


class Box(OldSpace):
    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(shape, dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete(OldSpace):
    def __init__(self, n: int) -> None:
        super().__init__((), np.int64)
        self.n = n


class StartingDiscrete(Discrete):
    """gym 0.22 and newer."""

    def __init__(self, n: int, start: int) -> None:
        super().__init__(n)
        self.start = start


class MultiDiscrete(OldSpace):
    def __init__(self, nvec: Sequence[int], dtype: Any = np.int64) -> None:
        super().__init__((len(nvec),), dtype)
        self.nvec = np.array(nvec, dtype)


class MultiBinary(OldSpace):
    def __init__(self, n: int | Sequence[int]) -> None:
        super().__init__((n,) if isinstance(n, int) else tuple(n), np.int8)
        self.n = n


class Dict(OldSpace):
    def __init__(self, spaces: Mapping[str, OldSpace]) -> None:
        super().__init__()
        self.spaces = dict(spaces)


class Tuple(OldSpace):
    def __init__(self, spaces: Sequence[OldSpace]) -> None:
        super().__init__()
        self.spaces = tuple(spaces)


class Graph(OldSpace):
    """A space that has no counterpart."""


class OldEnv:
    """As nes-py 8: a live screen with turned channels, a reset that takes nothing, 4 values.

    The screen shows the number of steps in its first pixel, and what was drawn at the reset in
    its second one. The episode ends after `length` steps.
    """

    metadata: Mapping[str, Any] = {
        "render.modes": ["human", "rgb_array"],
        "video.frames_per_second": 60,
    }

    def __init__(self, length: int = 4, step: Step | None = None) -> None:
        self.length, self.answer = length, step
        self.observation_space: Any = Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        self.action_space: Any = Discrete(3)
        self.memory = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
        self.screen = self.memory[:, :, ::-1][:, :, 1:]  # negative strides
        self.rng = np.random.RandomState()
        self.seeds: list[int] = []
        self.actions: list[Any] = []
        self.t, self.is_over, self.is_open = 0, True, True

    def seed(self, seed: int | None = None) -> list[int | None]:
        if seed is not None:
            self.seeds.append(seed)
            self.rng.seed(seed)
        return [seed]

    def reset(self) -> Any:
        self.t, self.is_over = 0, False
        self.screen[...] = 0
        self.screen[0, 1] = self.rng.randint(256)
        return self.screen

    def step(self, action: Any) -> Any:
        if self.is_over:
            raise ValueError("cannot step in a done environment! call `reset`")
        self.actions.append(action)
        self.t += 1
        self.screen[0, 0] = self.t, action, 7
        self.is_over = self.t >= self.length
        if self.answer is not None:
            return self.answer(self, self.screen)
        return self.screen, 1.0, self.is_over, {"t": self.t}

    def render(self, mode: str = "human") -> Any:
        if mode == "human":
            raise RuntimeError("no display")
        return self.screen

    def close(self) -> None:
        if not self.is_open:
            raise ValueError("env has already been closed.")
        self.is_open = False


class Wrapper:
    """As gym 0.26's: any keywords are handed on, and unknown attributes are the env's."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"accessing private attribute '{name}' is prohibited")
        return getattr(self.env, name)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self.env.reset(*args, **kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        return self.env.render(*args, **kwargs)


class JoypadSpace(Wrapper):
    """As nes-py 8's: its reset has no parameters, its actions are looked up in a dict."""

    def __init__(self, env: Any, buttons: Sequence[int]) -> None:
        super().__init__(env)
        self.action_space = Discrete(len(buttons))
        self.buttons = dict(enumerate(buttons))

    def reset(self) -> Any:
        return self.env.reset()

    def step(self, action: Any) -> Any:
        return self.env.step(self.buttons[action])


class PassiveEnvChecker(Wrapper):
    """As gym 0.26's: it looks for a type that numpy 2 does not have."""

    def step(self, action: Any) -> Any:
        raise AttributeError("module 'numpy' has no attribute 'bool8'")


class NewerEnv(OldEnv):
    """As gym 0.26: `reset` takes seed and options and returns a pair, `step` returns 5 values."""

    metadata: Mapping[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 30}

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode
        self.options: list[Any] = []

    seed: Any = None  # gone in 0.26

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
            self.rng.seed(seed)
        self.options.append(options)
        return super().reset(), {"level": 1}

    def step(self, action: Any) -> Any:
        screen, reward, over, info = super().step(action)
        return screen, reward, False, over, info

    def render(self) -> Any:  # type: ignore[override]
        return True if self.render_mode == "human" else self.screen


class MixedEnv:
    """Live buffers inside a Dict and a Tuple, and in the info, which is the same dict each time."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            {
                "screen": Box(0, 255, (2, 2), np.uint8),
                "inner": Tuple([Box(-1, 1, (3,), np.float32), StartingDiscrete(5, 1)]),
                "keys": MultiBinary(4),
                "gears": MultiDiscrete([3, 200]),
            }
        )
        self.action_space = Dict({"turn": Discrete(3), "pull": Box(-1, 1, (1,), np.float32)})
        self.screen, self.arm = np.zeros((2, 2), np.uint8), np.zeros(3, np.float32)
        self.keys, self.gears = np.zeros(4, np.int8), np.zeros(2, np.int64)
        self.map = np.zeros(2)
        self.info = {"map": self.map, "deep": {"maps": [self.map]}}
        self.t = 0

    def observation(self) -> Any:
        inner = (self.arm, np.int64(1 + self.t % 5))
        return {"inner": inner, "screen": self.screen, "keys": self.keys, "gears": self.gears}

    def reset(self) -> Any:
        self.t = -1
        return self.step(None)[0]

    def step(self, action: Any) -> Any:
        self.t += 1
        self.screen[...] = self.t
        self.arm[...] = self.t / 100
        self.keys[...] = self.t % 2
        self.gears[...] = self.t % 3
        self.map[...] = self.t
        return self.observation(), 0.5, self.t >= 20, self.info
