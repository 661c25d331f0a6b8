"""Envs that log what really happened in them, step by step, and collectors that play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from support.envs.fakes import TraceEnv

ENDS = ("terminated", "truncated", "both")
PLAN: tuple[tuple[int, str], ...] = (
    (1, "terminated"),
    (3, "truncated"),
    (2, "both"),
    (1, "truncated"),
    (5, "terminated"),
    (1, "both"),
    (7, "truncated"),
)
_SHIFT = np.array([1, 1, 1, 1, 0])  # a byte is not negative, and padding must be distinct
_WEIGHTS = np.array([3, 5, 0.25, 1, 0.125])
Kind = Literal["vector", "dict", "stack-zero", "stack-repeat"]


class Logged(NamedTuple):
    """One step that an env took."""

    observation: Any
    action: Any
    reward: float
    following: Any
    terminated: bool
    truncated: bool


class Log(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps every step, by episode."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[list[Logged]] = []
        self.newest: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.newest, info = self.env.reset(seed=seed, options=options)
        self.episodes.append([])
        return self.newest, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        before = self.newest
        self.newest, reward, terminated, truncated, info = self.env.step(action)
        logged = Logged(before, action, float(reward), self.newest, terminated, truncated)
        self.episodes[-1].append(logged)
        return self.newest, reward, terminated, truncated, {**info, "lives": len(self.episodes[-1])}


class AsDict(gym.ObservationWrapper[Any, Any, Any]):
    """The same numbers, a part of them as an image, nested."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        image = spaces.Box(0, 255, (2, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-np.inf, np.inf, (5,), np.float64), "eye": spaces.Dict(left=image)}
        )

    def observation(self, observation: Any) -> Any:
        number = int(observation[1] * 40 + observation[2])
        image = (number * 7 + np.arange(6)).astype(np.uint8).reshape(2, 3)
        return {"place": observation, "eye": {"left": image}}


class Frames(gym.ObservationWrapper[Any, Any, Any]):
    """The same numbers as a frame of bytes; `place_of` reads them."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (5,), np.uint8)

    def observation(self, observation: Any) -> Any:
        return (observation + _SHIFT).astype(np.int64).astype(np.uint8)


def place_of(observation: Any) -> tuple[int, int, int]:
    """Return the env, episode and step of an observation of any kind."""
    if isinstance(observation, dict):
        observation = observation["place"]
    if observation.dtype == np.uint8:
        newest = observation[-1] if observation.ndim > 1 else observation
        return int(newest[0]) - 1, int(newest[1]) - 1, int(newest[2]) - 1
    return int(observation[0]), int(observation[1]), int(observation[2])


def numbers(observation: Any) -> np.ndarray:
    """[N, 5] floats of observations [N, ...]."""
    if isinstance(observation, dict):
        observation = observation["place"]
    if observation.dtype == np.uint8:
        newest = observation[:, -1] if observation.ndim > 2 else observation
        shifted: np.ndarray = newest.astype(np.float64) - _SHIFT
        return shifted
    found: np.ndarray = observation
    return found


class TracePolicy:
    """Returns actions and values that depend on the observation alone."""

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        seen = numbers(observation)
        extras = {"log_prob": log_prob_of(seen), "value": value_of(seen)}
        return TraceEnv.choose(seen), extras

    def value(self, observation: Any) -> np.ndarray:
        return value_of(numbers(observation))


def value_of(seen: np.ndarray) -> np.ndarray:
    """[N] float32."""
    return np.asarray(seen @ _WEIGHTS, np.float32)


def log_prob_of(seen: np.ndarray) -> np.ndarray:
    """[N] float32."""
    return np.asarray(-seen[:, 4] / 700 - seen[:, 2] / 8, np.float32)


class Play:
    """Plays some envs with a Collector, and logs what happened in them."""

    def __init__(
        self,
        kind: Kind = "vector",  # what the observations are
        num_envs: int = 3,  # number of envs
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,  # how the vector env resets
        plan: Sequence[tuple[int, str]] = PLAN,  # lengths and ends; env n begins with its n-th
    ) -> None:
        self.kind: Kind = kind
        self.logs = [Log(self._env(n, [*plan[n:], *plan[:n]])) for n in range(num_envs)]
        self.envs = SyncVectorEnv(
            [lambda log=log: log for log in self.logs],  # type: ignore[misc]
            autoreset_mode=mode,
        )
        if kind.startswith("stack"):
            stacks = {"frame_stack": 3, "stack_padding": kind.removeprefix("stack-")}
            self.envs.metadata = {**self.envs.metadata, "stepwell": stacks}

    def _env(self, tag: int, plan: Sequence[tuple[int, str]]) -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = TraceEnv(plan, tag)
        if self.kind == "dict":
            return AsDict(env)
        if self.kind.startswith("stack"):
            padding = "zero" if self.kind == "stack-zero" else "reset"
            return gym.wrappers.FrameStackObservation(Frames(env), 3, padding_type=padding)
        return env

    @property
    def episodes(self) -> list[tuple[int, list[Logged]]]:
        """Env and steps of every episode in which a step was taken."""
        return [(n, steps) for n, log in enumerate(self.logs) for steps in log.episodes if steps]

    @property
    def steps(self) -> dict[tuple[int, int, int], Logged]:
        """Return every step by the `place_of` its observation."""
        every = [step for _, steps in self.episodes for step in steps]
        found = {place_of(step.observation): step for step in every}
        assert len(found) == len(every)
        return found

    def replay(self, steps: int = 71, **options: Any) -> sw.SequenceReplayBuffer:
        """Return the rows that a Collector stores for these steps; open episodes are cut."""
        replay = sw.SequenceReplayBuffer(seed=0, **options)
        with sw.Collector(self.envs, TracePolicy(), replay, seed=0, info={"lives": -1}) as mine:
            mine.collect(steps=steps)
        return replay

    @property
    def cuts(self) -> int:
        """Episodes that were left open."""
        lasts = [steps[-1] for _, steps in self.episodes]
        return sum(not (last.terminated or last.truncated) for last in lasts)

    def collector(self) -> Any:
        """A Collector without a replay, for rollouts."""
        return sw.Collector(self.envs, TracePolicy(), seed=0, info={"lives": -1})


def same_tree(some: Any, other: Any) -> bool:
    """Nested arrays are equal, dtypes included."""
    if isinstance(other, dict):
        return set(some) == set(other) and all(same_tree(some[key], other[key]) for key in other)
    mine, theirs = np.asarray(some), np.asarray(other)
    return (
        mine.dtype == theirs.dtype and mine.shape == theirs.shape and bool((mine == theirs).all())
    )
