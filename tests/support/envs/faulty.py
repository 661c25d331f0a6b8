"""A sound env, and envs with one fault each, by the name of the fault."""

from __future__ import annotations

import itertools
import random
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


class OldReset(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class NoSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class FourValues(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class InfoIsNoDict(Sound):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], [1]


class RewardIsNone(Sound):
    def reward(self) -> Any:
        return None if self.steps == LATE else super().reward()


class RewardIsNaN(Sound):
    def reward(self) -> Any:
        return float("nan") if self.steps == LATE else super().reward()


class TwoFlags(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, [False, False], truncated, info


class Shape(Sound):
    def seen(self) -> Any:
        return super().seen() | ({"place": np.zeros(3, np.float32)} if self.steps == LATE else {})


class Dtype(Sound):
    def seen(self) -> Any:
        return super().seen() | {"place": self.place.astype(np.float64)}


class OutOfBounds(Sound):
    def seen(self) -> Any:
        return super().seen() | ({"goal": self.goal + 9} if self.steps == LATE else {})


class NaN(Sound):
    def seen(self) -> Any:
        return super().seen() | ({"goal": self.goal * np.nan} if self.steps == LATE else {})


class MissingKey(Sound):
    def seen(self) -> Any:
        return {k: v for k, v in super().seen().items() if k == "goal" or self.steps != LATE}


class MoreKeys(Sound):
    def seen(self) -> Any:
        return super().seen() | ({"more": np.zeros(2)} if self.steps == LATE else {})


class ReusedArray(Sound):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.array = np.zeros(2, np.float32)

    def seen(self) -> Any:
        self.array[:] = self.place
        return super().seen() | {"place": self.array}


class OwnGenerator(Sound):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.rng = np.random.default_rng()

    def drawn(self) -> Any:
        return self.rng.uniform(-1, 1, 2).astype(np.float32)


class LateGenerator(Sound):
    """Draws from a generator without a seed, but not at once."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.rng = np.random.default_rng()

    def reward(self) -> Any:
        return super().reward() + (self.rng.random() if self.steps == LATE else 0.0)


class GlobalNumpy(Sound):
    def drawn(self) -> Any:
        return np.random.uniform(-1, 1, 2).astype(np.float32)  # noqa: NPY002


class GlobalPython(Sound):
    def reward(self) -> Any:
        return super().reward() + (random.random() if self.steps == LATE else 0.0)


class SeedsGlobal(Sound):
    """Seeds NumPy's global generator itself: it repeats, and spoils others' numbers."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)

    def drawn(self) -> Any:
        return np.random.uniform(-1, 1, 2).astype(np.float32)  # noqa: NPY002


class IgnoredSeed(Sound):
    """The same episode for every seed."""

    def drawn(self) -> Any:
        return np.zeros(2, np.float32)


class SeedOfItsOwn(Sound):
    """Without a seed, always the same episode."""

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


class Clock(Sound):
    clock = itertools.count()

    def reward(self) -> Any:
        return super().reward() + next(self.clock)


class WritesAction(Sound):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class NeverEnds(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info


class RaisesLate(Sound):
    def step(self, action: Any) -> Any:
        if self.steps == LATE:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class NoResetInside(Sound):
    """A reset in the middle of an episode is refused."""

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


class NoPicture(Sound):
    def render(self) -> Any:
        return None


class InfoOfOtherForms(Sound):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"steps": np.zeros(self.steps)}


FAULTS: dict[str, type[Sound]] = {
    "reset returns the observation alone": OldReset,
    "reset takes no seed": NoSeed,
    "step returns four values": FourValues,
    "info is no dict": InfoIsNoDict,
    "reward is None in step 7": RewardIsNone,
    "reward is NaN in step 7": RewardIsNaN,
    "terminated is a list": TwoFlags,
    "another shape in step 7": Shape,
    "float64 where float32 is declared": Dtype,
    "out of bounds in step 7": OutOfBounds,
    "NaN in step 7": NaN,
    "a key is missing in step 7": MissingKey,
    "a key too many in step 7": MoreKeys,
    "the observation's array is used again": ReusedArray,
    "a generator of its own, at reset": OwnGenerator,
    "a generator of its own, in step 7": LateGenerator,
    "draws from np.random": GlobalNumpy,
    "draws from the module random in step 7": GlobalPython,
    "seeds np.random": SeedsGlobal,
    "all seeds give one episode": IgnoredSeed,
    "without a seed, always the same episode": SeedOfItsOwn,
    "a reset leaves something of the episode before": Leftover,
    "envs of a process share their state": SharedState,
    "the reward depends on the clock": Clock,
    "step writes into the action": WritesAction,
    "no end": NeverEnds,
    "an error in step 8": RaisesLate,
    "reset inside an episode is an error": NoResetInside,
    "another space in each env": OtherSpaces,
    "actions without bounds": EndlessActions,
    "render returns None": NoPicture,
    "info changes its form": InfoOfOtherForms,
}
