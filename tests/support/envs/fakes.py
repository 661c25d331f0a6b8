"""Small Gymnasium envs, each of which shows one trap; shared by all tests."""

import importlib
import os
import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

Info = dict[str, Any]
IntArray = npt.NDArray[np.int64]


def length_of(lengths: int | Sequence[int], episode: int) -> int:
    """Length of the given episode; a sequence of lengths is gone through again and again."""
    return lengths if isinstance(lengths, int) else lengths[episode % len(lengths)]


class EpisodesEnv(gym.Env[Any, Any]):
    """Counts episodes and steps, and ends at `length` (one, or a sequence of them)."""

    def __init__(self, length: int | Sequence[int] = 5) -> None:
        self.length = length
        self.action_space = spaces.Discrete(4)
        self.episode, self.t = -1, 0

    def observation(self) -> Any:
        raise NotImplementedError

    def begin(self) -> None:
        """Called in each reset."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.begin()
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.t += 1
        return self.observation(), 1.0, self.t >= length_of(self.length, self.episode), False, {}


class CounterEnv(EpisodesEnv):
    """Observation (episode, t, tag), reward t, ends at `length` (one, or a sequence of them)."""

    observation_space: spaces.Space[IntArray]
    action_space: spaces.Space[np.int64]

    def __init__(
        self,
        length: int | Sequence[int] = 5,
        tag: int = 0,
        ends: Literal["terminated", "truncated", "both"] = "terminated",
    ) -> None:
        super().__init__(length)
        self.tag, self.ends = tag, ends
        self.observation_space = spaces.Box(0, 2**40, (3,), np.int64)

    def observation(self) -> IntArray:
        return np.array([self.episode, self.t, self.tag], np.int64)

    def step(self, action: np.int64) -> tuple[IntArray, float, bool, bool, Info]:
        observation, _, over, *_ = super().step(action)
        terminated = over and self.ends != "truncated"
        truncated = over and self.ends != "terminated"
        return observation, float(self.t), terminated, truncated, {}


def counters(
    *lengths: int | Sequence[int],
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    kind: Any = SyncVectorEnv,
    first: int = 0,
) -> Any:
    """A vector env of counters of these lengths; two of length 5 if there are none."""
    make = [partial(CounterEnv, own, first + tag) for tag, own in enumerate(lengths or (5, 5))]
    return kind(make, autoreset_mode=mode)


def zeros(observation: Any, is_first: Any) -> Any:
    """A policy that always takes action 0."""
    return np.zeros(len(is_first), np.int64)


class LiveBufferEnv(EpisodesEnv):
    """Writes its step count into one reused uint8 array and hands that array out (trap 1)."""

    def __init__(self, length: int | Sequence[int] = 3, shape: tuple[int, ...] = (2, 2)) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self.buffer = np.zeros(shape, np.uint8)

    def observation(self) -> npt.NDArray[np.uint8]:
        self.buffer[...] = self.t % 256
        return self.buffer


class DictEnv(EpisodesEnv):
    """Observations and actions mix Dict, Tuple, Box, Discrete, MultiDiscrete and MultiBinary.

    Every part of an observation is (seed-dependent `base` + t); `actions_seen` keeps the actions.
    """

    def __init__(self, length: int | Sequence[int] = 5) -> None:
        super().__init__(length)
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (3, 4), np.uint8),
                "pair": spaces.Tuple((spaces.Discrete(1000), spaces.Box(-1e6, 1e6, (2,)))),
                "many": spaces.MultiDiscrete([1000, 7]),
                "bits": spaces.MultiBinary(5),
            }
        )
        self.action_space = spaces.Dict(
            {
                "button": spaces.Discrete(3),
                "stick": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3))),
                "dial": spaces.MultiDiscrete([3, 4]),
            }
        )
        self.base = 0
        self.actions_seen: list[dict[str, Any]] = []

    def observation(self) -> dict[str, Any]:
        value = self.base + self.t
        return {
            "image": np.full((3, 4), value % 256, np.uint8),
            "pair": (np.int64(value % 1000), np.full(2, value, np.float32)),
            "many": np.array([value % 1000, value % 7]),
            "bits": np.array([value >> bit & 1 for bit in range(5)], np.int8),
        }

    def begin(self) -> None:
        self.base = int(self.np_random.integers(100))

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, Info]:
        observation, _, over, *_ = super().step(action)
        self.actions_seen.append(action)
        # The reward depends on every part of the action, so a part that is lost on the way shows.
        stick, bits = action["stick"]
        total = float(action["button"]) + float(np.sum(stick)) + float(np.sum(bits))
        total += float(np.sum(action["dial"]))
        return observation, total, over, False, {}


def nested_action(observation: Any) -> Any:
    """An action for one observation of `DictEnv`, or for many: every part of it changes."""
    value = np.asarray(observation["many"])[..., 0]
    stick = np.stack([(value % 3 - 1) / 2, (value % 2) / 4], -1).astype(np.float32)
    bits = np.stack([value & 1, value >> 1 & 1, value >> 2 & 1], -1).astype(np.int8)
    dial = np.stack([value % 3, value % 4], -1)
    return {"button": value % 3, "stick": (stick, bits), "dial": dial}


class InfoEnv(CounterEnv):
    """Info keys change each step: `t`, `even` or `odd`, nested, an array, a text (trap 28)."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[IntArray, Info]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"only_reset": self.episode}

    def step(self, action: np.int64) -> tuple[IntArray, float, bool, bool, Info]:
        observation, reward, terminated, truncated, _ = super().step(action)
        parity = "even" if self.t % 2 == 0 else "odd"
        info: Info = {
            "t": self.t,
            parity: self.t * 1.5,
            "nested": {parity: self.t, "flag": self.t > 2},
            "array": np.full(2, self.t, np.int16),
            "text": f"step {self.t}",
        }
        return observation, reward, terminated, truncated, info


class CrashEnv(CounterEnv):
    """Raises ZeroDivisionError at step `at_step` of its life (resets do not count)."""

    def __init__(self, at_step: int = 3, length: int | Sequence[int] = 100, tag: int = 0) -> None:
        super().__init__(length, tag)
        self.at_step, self.life_steps = at_step, 0

    def step(self, action: np.int64) -> tuple[IntArray, float, bool, bool, Info]:
        self.life_steps += 1
        if self.life_steps == self.at_step:
            raise ZeroDivisionError(f"planted at step {self.at_step}")
        return super().step(action)


class DieEnv(CrashEnv):
    """Ends its process with os._exit(7) at step `at_step` of its life; so does a rebuilt one."""

    def step(self, action: np.int64) -> tuple[IntArray, float, bool, bool, Info]:
        if self.life_steps + 1 == self.at_step:
            os._exit(7)
        return super().step(action)


class SeededEnv(EpisodesEnv):
    """First observation comes from the reset seed, later ones add the action and a draw."""

    def __init__(self, length: int | Sequence[int] = 5) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.state = np.zeros(2)

    def begin(self) -> None:
        self.state = self.np_random.random(2)

    def observation(self) -> npt.NDArray[np.float64]:
        return self.state.copy()

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float64], float, bool, bool, Info]:
        self.state = self.state + float(action) + self.np_random.random(2)
        observation, _, over, *_ = super().step(action)
        return observation, float(self.state[0]), over, False, {}


class GlobalRandomEnv(SeededEnv):
    """Shows a draw from the global generator of "python", "numpy" or "torch"; knows its process."""

    def __init__(self, library: str = "numpy", length: int | Sequence[int] = 4) -> None:
        super().__init__(length)
        self.library = library
        if library == "torch":
            importlib.import_module("torch")

    def worker_pid(self) -> int:
        return os.getpid()

    def _drawn(self) -> npt.NDArray[np.float64]:
        if self.library == "torch":
            return np.asarray(sys.modules["torch"].rand(2).numpy(), np.float64)
        if self.library == "numpy":
            return np.random.rand(2)  # noqa: NPY002
        return np.array([random.random(), random.random()])

    def reset(self, **options: Any) -> tuple[npt.NDArray[np.float64], Info]:
        super().reset(**options)
        return self._drawn(), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float64], float, bool, bool, Info]:
        return self._drawn(), *super().step(action)[1:]


class FrameEnv(EpisodesEnv):
    """Gives a (4, 4) uint8 frame with a new value each step of its life: for frame stacks."""

    def __init__(self, length: int | Sequence[int] = 6) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(0, 255, (4, 4), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.frames = 0

    def observation(self) -> npt.NDArray[np.uint8]:
        return self.frame()

    def frame(self) -> npt.NDArray[np.uint8]:
        self.frames += 1
        return np.full((4, 4), 1 + self.frames % 255, np.uint8)


class TraceEnv(EpisodesEnv):
    """Observation (tag, episode, t, last action, a seeded draw); episodes follow `plan`.

    `plan` lists length and end of one episode after the other, gone through again and again.
    """

    def __init__(
        self, plan: Sequence[tuple[int, str]] = ((5, "terminated"),), tag: int = 0
    ) -> None:
        super().__init__()
        self.plan, self.tag = plan, tag
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float64)

    def observation(self, action: int = -1) -> npt.NDArray[np.float64]:
        draw = float(self.np_random.integers(1000))
        return np.array([self.tag, self.episode, self.t, action, draw], np.float64)

    @staticmethod
    def choose(observation: npt.NDArray[np.float64]) -> Any:
        """The action that the tests choose from one observation or from many."""
        return (observation @ np.array([3, 5, 7, 11, 1])).astype(np.int64) % 4

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float64], float, bool, bool, Info]:
        self.t += 1
        length, end = self.plan[self.episode % len(self.plan)]
        over = self.t >= length
        observation = self.observation(int(action))
        terminated, truncated = over and end != "truncated", over and end != "terminated"
        return observation, float(observation[4] - 500), terminated, truncated, {}


class Lost(RuntimeError):
    """What a `FlakyEnv` raises."""


class FlakyEnv(TraceEnv):
    """Its episodes last 9 steps; that of a step that it draws from its seed raises."""

    def __init__(self, tag: int = 0, share: float = 0.06) -> None:
        super().__init__([(9, "terminated")], tag)
        self.share = share

    def step(self, action: np.int64) -> Any:
        result = super().step(action)
        if self.np_random.random() < self.share:
            raise Lost("simulator")
        return result


Memory = Literal["fresh", "live", "views", "two", "two, both reset", "constant"]


class ReusingEnv(EpisodesEnv):
    """Observations, and arrays in info, in memory that is used again in the ways that envs do.

    - "fresh": a new array each time
    - "live": one array, written again by each step and reset
    - "views": the two halves of one array in turns, overlapping
    - "two": two arrays in turns
    - "two, both reset": two arrays in turns, and a reset writes into both
    - "constant": one array, never written

    `row_of` makes the observation. The numbers of a "ring" come again in each episode, so that its
    last observation may equal its first.
    """

    def __init__(
        self,
        memory: Sequence[Memory],
        length: int | Sequence[int] = 3,
        tag: int = 0,
        ring: int = 0,
        nan: bool = False,
    ) -> None:
        super().__init__(length)
        self.memory, self.tag, self.ring, self.nan = memory, tag, ring, nan
        one = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        parts = [spaces.Tuple((one, one)) if k % 2 else one for k in range(len(memory))]
        self.observation_space = spaces.Dict({f"part {k}": one for k, one in enumerate(parts)})
        self.action_space = spaces.Discrete(2)
        self.calls = 0
        self.held = [np.zeros((2, 3, 2)) for _ in range(2 * len(memory))]
        self.list: list[float] = []

    @staticmethod
    def row_of(tag: int, ring: int, nan: bool, episode: int, t: int) -> npt.NDArray[np.float64]:
        """Return the value of each part of an observation."""
        value = 100 * tag + (t % ring if ring else 10 * episode + t)
        return np.array([[value, np.nan if nan else 0], [value, -value]], np.float64)

    @staticmethod
    def prob_of(t: int) -> float:
        """As FrozenLake: 1, an int, at a reset, and fractions after."""
        return 1 if t == 0 else 1 / (t + 1)

    def _shown(self, row: npt.NDArray[Any], memory: Memory, held: npt.NDArray[Any]) -> Any:
        turn = self.calls % 2
        if memory == "fresh":
            return row.copy()
        if memory == "constant":
            held = held[0, :2]
            if self.calls == 1:
                held[...] = row
            return held
        if memory == "two, both reset" and self.t == 0:
            held[:, :2] = row
        array = {"live": held[0, :2], "views": held[0, turn : turn + 2]}.get(memory, held[turn, :2])
        array[...] = row
        return array

    def observation(self) -> Any:
        self.calls += 1
        row = self.row_of(self.tag, self.ring, self.nan, self.episode, self.t)
        first = self.row_of(self.tag, self.ring, self.nan, 0, 0)
        shown: dict[str, Any] = {}
        for k, memory in enumerate(self.memory):
            given = first if memory == "constant" else row
            pair = tuple(self._shown(given, memory, self.held[2 * k + j]) for j in (0, 1))
            shown[f"part {k}"] = pair if k % 2 else pair[0]
        return shown

    def info(self) -> Info:
        self.list[:] = [self.episode, self.t]
        return {"prob": self.prob_of(self.t), "where": self.list}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Info]:
        return super().reset(seed=seed)[0], self.info()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, Info]:
        observation, _, over, *_ = super().step(action)
        return observation, float(self.t), over, False, self.info()


class RestartVectorEnv(SyncVectorEnv):
    """Reports a restart of env `env` at vector step `at_step`, as if its worker had died."""

    def __init__(self, env_fns: Sequence[Any], at_step: int, env: int = 0, **options: Any) -> None:
        super().__init__(env_fns, **options)
        self.at_step, self.env_that_dies, self.vector_steps = at_step, env, 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.vector_steps += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.vector_steps == self.at_step:
            dead = self.env_that_dies
            observation[dead], reward[dead] = self.envs[dead].reset()[0], 0.0
            terminated[dead] = truncated[dead] = self._autoreset_envs[dead] = False
            info = {**info, "worker_restarted": np.arange(self.num_envs) == dead}
        return observation, reward, terminated, truncated, info


class Declared(VectorWrapper[Any, Any, Any, Any, Any]):
    """Declares another autoreset mode than the vector env inside, which it hides."""

    def __init__(self, envs: Any, mode: object) -> None:
        super().__init__(envs)
        self.metadata = {**envs.metadata, "autoreset_mode": mode}

    @property
    def unwrapped(self) -> Any:
        """The wrapper itself."""
        return self
