"""A sound env, and envs with one fault each, by the name of the fault."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

END = 20  # of the sound env's episodes, in steps
LATE = 7  # the step in which late faults appear
PARTS: dict[str, Any] = {
    "goal": spaces.Box(-1, 1, (2,), np.float32),
    "place": spaces.Box(-9, 9, (2,), np.float32),
}


class Sound(gym.Env[Any, Any]):
    """A point that walks; each fault replaces one of its methods."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Dict(PARTS)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.place = np.zeros(2, np.float32)
        self.goal = self.drawn()
        return self.seen(), {"steps": 0}

    def drawn(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def seen(self) -> Any:
        return {"goal": self.goal.copy(), "place": self.place.copy()}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = np.clip(self.place + np.float32(0.5) * action, -9, 9)
        return self.seen(), self.reward(), False, self.steps >= END, {"steps": self.steps}

    def reward(self) -> Any:
        return float(-np.abs(self.goal - self.place).sum())

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


def faulty(**methods: Callable[..., Any]) -> type[Sound]:
    """A sound env but for these methods."""
    return type("Faulty", (Sound,), methods)


def seen_late(change: Callable[[Any], Any]) -> type[Sound]:
    """Other parts of the observation in one step."""
    return faulty(seen=lambda self: Sound.seen(self) | (change(self) if self.steps == LATE else {}))


def rewards(change: Callable[[Any, float], Any]) -> type[Sound]:
    return faulty(reward=lambda self: change(self, Sound.reward(self)))


def late_rewards(value: Callable[[float], Any]) -> type[Sound]:
    return rewards(lambda self, reward: value(reward) if self.steps == LATE else reward)


def results(change: Callable[..., Any]) -> type[Sound]:
    """Other results of a step."""
    return faulty(step=lambda self, action: change(*Sound.step(self, action)))


def global_draw(self: Any) -> Any:
    return np.random.uniform(-1, 1, 2).astype(np.float32)  # noqa: NPY002


FourValues = results(lambda seen, reward, end, cut, info: (seen, reward, end or cut, info))
NaN = seen_late(lambda self: {"goal": self.goal * np.nan})


class NoSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class MissingKey(Sound):
    def seen(self) -> Any:
        return {k: v for k, v in super().seen().items() if k == "goal" or self.steps != LATE}


class ReusedArray(Sound):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.array = np.zeros(2, np.float32)

    def seen(self) -> Any:
        self.array[:] = self.place
        return super().seen() | {"place": self.array}


class LastPictureBlack(Sound):
    """As ViZDoom, which has no picture of what ended an episode."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)  # type: ignore[assignment]

    def seen(self) -> Any:
        return np.full((36, 36, 1), 0 if self.steps == END else 1, np.uint8)

    def reward(self) -> Any:
        return float(self.place[0] + self.goal[0])


class SeedsGlobal(Sound):
    """Seeds NumPy's global generator itself: it repeats, and spoils others' numbers."""

    drawn = global_draw

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)


class SeedOfItsOwn(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=0 if seed is None else seed)


class Leftover(Sound):
    """A reset leaves a trace of the episode before."""

    total = 0

    def reward(self) -> Any:
        self.total += 1
        return super().reward() + self.total


class SharedState(Sound):
    """All envs of a process have one place."""

    common: list[Any] = [None]  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.common[0] = self.place
        return observation, info

    def step(self, action: Any) -> Any:
        self.place = self.common[0]
        result = super().step(action)
        self.common[0] = self.place
        return result


class WritesAction(Sound):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class RaisesLate(Sound):
    def step(self, action: Any) -> Any:
        if self.steps == LATE:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class NoResetInside(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if 0 < self.steps < END:
            raise RuntimeError("the episode has not ended")
        return super().reset(seed=seed)


class OtherSpaces(Sound):
    """Each env has a larger space than the one before."""

    size = 2

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        OtherSpaces.size += 1
        self.shape = (OtherSpaces.size,)
        self.observation_space = spaces.Dict({**PARTS, "more": spaces.Box(-1, 1, self.shape)})

    def seen(self) -> Any:
        return super().seen() | {"more": np.zeros(self.shape, np.float32)}


class EndlessActions(Sound):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


CLOCK = itertools.count()
FAULTS: dict[str, type[Sound]] = {
    "reset returns the observation alone": faulty(
        reset=lambda self, *, seed=None, options=None: Sound.reset(self, seed=seed)[0]
    ),
    "reset takes no seed": NoSeed,
    "step returns four values": FourValues,
    "info is no dict": results(lambda *four: (*four[:4], [1])),
    "reward is None in step 7": late_rewards(lambda reward: None),
    "reward is NaN in step 7": late_rewards(lambda reward: float("nan")),
    "terminated is a list": results(
        lambda seen, reward, end, cut, info: (seen, reward, [False, False], cut, info)
    ),
    "another shape in step 7": seen_late(lambda self: {"place": np.zeros(3, np.float32)}),
    "float64 where float32 is declared": faulty(
        seen=lambda self: Sound.seen(self) | {"place": self.place.astype(np.float64)}
    ),
    "out of bounds in step 7": seen_late(lambda self: {"goal": self.goal + 9}),
    "NaN in step 7": NaN,
    "a key is missing in step 7": MissingKey,
    "a key too many in step 7": seen_late(lambda self: {"more": np.zeros(2)}),
    "the observation's array is used again": ReusedArray,
    "a generator of its own, at reset": faulty(
        drawn=lambda self: np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
    ),
    "a generator of its own, in step 7": late_rewards(
        lambda reward: reward + np.random.default_rng().random()
    ),
    "draws from np.random": faulty(drawn=global_draw),
    "draws from the module random in step 7": late_rewards(lambda reward: reward + random.random()),
    "seeds np.random": SeedsGlobal,
    "all seeds give one episode": faulty(drawn=lambda self: np.zeros(2, np.float32)),
    "without a seed, always the same episode": SeedOfItsOwn,
    "a reset leaves something of the episode before": Leftover,
    "envs of a process share their state": SharedState,
    "the reward depends on the clock": rewards(lambda self, reward: reward + next(CLOCK)),
    "step writes into the action": WritesAction,
    "no end": results(lambda seen, reward, end, cut, info: (seen, reward, False, False, info)),
    "the last picture of an episode is black": LastPictureBlack,
    "an error in step 8": RaisesLate,
    "reset inside an episode is an error": NoResetInside,
    "another space in each env": OtherSpaces,
    "actions without bounds": EndlessActions,
    "render returns None": faulty(render=lambda self: None),
    "info changes its form": results(
        lambda *five: (*five[:4], {"steps": np.zeros(five[4]["steps"])})
    ),
}
