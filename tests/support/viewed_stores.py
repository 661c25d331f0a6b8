"""Small stores to look at: games, cameras, vectors, policies to compare, damage, hostile names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

import stepwell as sw
from stepwell.buffers.storage.disk.repair import repair
from support.envs.fakes import EpisodesEnv
from support.forged.stores import slots_of

Pixels = npt.NDArray[np.uint8]
Policy = Callable[[Any, Any], Any]


class HandEnv(gym.Env[dict[str, Any], npt.NDArray[np.float32]]):
    """A hand reaches for a ball; a camera in front of it, one at the hand.

    The front camera's pixels are [H, W, 3]; those of the hand's are [3, H, W].

    Args:
        size: Height of the front camera's picture in pixels, a multiple of 8.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, size: int = 72) -> None:
        self.height, self.width, self.near = size, size * 4 // 3, size // 2
        self.observation_space = spaces.Dict(
            {
                "front": spaces.Box(0, 255, (self.height, self.width, 3), np.uint8),
                "hand": spaces.Box(0, 255, (3, self.near, self.near), np.uint8),
                "joints": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.t = 0

    def pixel(self, place: npt.NDArray[np.float64]) -> tuple[int, int]:
        x, y = np.array([self.width, self.height]) * (0.5 + 0.45 * place)
        return int(x), int(y)

    def observation(self) -> dict[str, Any]:
        front = np.full((self.height, self.width, 3), (34, 40, 52), np.uint8)
        cv2.circle(front, self.pixel(self.ball), self.height // 14, (235, 120, 60), -1)
        cv2.line(front, self.pixel(np.zeros(2)), self.pixel(self.place), (90, 160, 235), 4)
        x, y = self.pixel(self.place)
        half = self.near // 2
        wide = cv2.copyMakeBorder(front, half, half, half, half, cv2.BORDER_REPLICATE)
        hand = wide[y : y + self.near, x : x + self.near].transpose(2, 0, 1)
        joints = np.concatenate([self.place, self.ball]).astype(np.float32)
        return {"front": front, "hand": np.ascontiguousarray(hand), "joints": joints}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.place, self.ball = self.np_random.uniform(-1, 1, (2, 2))
        return self.observation(), {"distance": self.distance()}

    def distance(self) -> float:
        return float(np.linalg.norm(self.place - self.ball))

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.place = np.clip(self.place + 0.05 * action, -1, 1)
        distance = self.distance()
        caught = distance < 0.12
        reward = 1.0 if caught else -0.02 * distance
        return self.observation(), reward, caught, self.t >= 60, {"distance": distance}


def reach() -> Policy:
    """A policy that moves the hand towards the ball, with noise."""
    generator = np.random.default_rng(0)

    def policy(observation: Mapping[str, Any], is_first: Any) -> Any:
        place, ball = np.split(observation["joints"], 2, axis=1)
        noise = generator.normal(0, 0.6, place.shape)
        return np.clip(np.sign(ball - place) + noise, -1, 1).astype(np.float32)

    return policy


def stored(
    folder: Path,
    envs: Any,
    policy: Any,
    *goals: Mapping[str, int],
    capacity: int | None = None,
    **options: Any,
) -> Path:
    """A store of what the envs did in some calls of `collect`."""
    with (
        sw.SequenceReplayBuffer(folder, capacity=capacity) as replay,
        sw.Collector(envs, policy, replay, **{"seed": 0, **options}) as collector,
    ):
        for goal in goals:
            collector.collect(**goal)  # type: ignore[arg-type]
    return folder


def pong(folder: Path, episodes: int = 1, steps: int = 60) -> Path:
    """Pong of a random policy, in stacks of four frames; the last episode was cut."""
    envs, goals = sw.make_atari("Pong", 1), ({"episodes": episodes}, {"steps": steps})
    return stored(folder, envs, sw.RandomPolicy(), *goals, info={"lives": -1})


def nes(folder: Path, steps: int = 120) -> Path:
    """The demo cartridge in color, with score and lives as infos."""
    from demo_rom import write_demo  # here: a process that writes has no path to examples/

    rom, game = write_demo(folder.with_name(folder.name + "-rom"))
    settings: dict[str, Any] = {"size": (120, 128), "grayscale": False, "frame_stack": 1}
    envs = sw.make_nes(rom, 1, game=game, noop_max=30, max_frames=600, num_workers=0, **settings)
    info = {"score": -1, "lives": -1}
    return stored(folder, envs, sw.RandomPolicy(), {"steps": steps}, info=info)


def cameras(folder: Path, episodes: int = 3, size: int = 72) -> Path:
    """The hand with its two cameras and its joints."""
    return stored(folder, HandEnv(size), reach(), {"episodes": episodes}, info={"distance": -1.0})


def pushing(errors: float) -> Policy:
    """A policy for CartPole that mostly pushes to where the pole leans, with its extras."""
    generator = np.random.default_rng(0)

    def policy(observation: npt.NDArray[np.float32], is_first: Any) -> Any:
        right = 1 / (1 + np.exp(-20 * (observation[:, 2] + observation[:, 3] / 4)))
        right = errors / 2 + (1 - errors) * right
        action = (generator.random(len(right)) < right).astype(np.int64)
        value = 100 * (1 - np.abs(observation[:, 2]) / 0.21)
        log_prob = np.log(np.where(action == 1, right, 1 - right))
        return action, {"value": value.astype(np.float32), "log_prob": log_prob.astype(np.float32)}

    return policy


def cartpole(
    folder: Path,
    policy: Policy | sw.RandomPolicy | None = None,
    episodes: int = 6,
    metadata: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Whole episodes of CartPole, by default of a policy with extras."""
    envs = sw.make_vec("CartPole-v1", 4, num_workers=0)
    goal = {"episodes": episodes}
    return stored(folder, envs, policy or pushing(0.7), goal, seed=seed, metadata=metadata)


def levels(folder: Path, episodes: int = 12) -> Path:
    """Random CartPole, whose episodes have a level of 0, 1 or 2 and a task in their metadata."""
    with sw.SequenceReplayBuffer(folder) as replay:
        for level in range(3):
            envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
            facts = {"level": level, "task": "balance" if level else "warm up"}
            with sw.Collector(envs, sw.RandomPolicy(), replay, seed=level, metadata=facts) as one:
                one.collect(episodes=episodes // 3)
    return folder


def evicted(folder: Path) -> Path:
    """Long episodes: the first rows of one were evicted, the newest one was cut."""
    return stored(folder, LongEnv(), sw.RandomPolicy(), *[{"steps": 70}] * 12, capacity=400)


class LongEnv(EpisodesEnv):
    """A bar that moves over a grey picture of 24 x 32; its episodes have 300 steps."""

    def __init__(self, length: int = 300) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(0, 255, (24, 32), np.uint8)
        self.action_space = spaces.Discrete(3)

    def observation(self) -> Pixels:
        found = np.full((24, 32), 40 + self.t % 100, np.uint8)
        found[:, self.t % 32] = 250
        found[self.t // 32 % 24] = 200
        return found

    def step(self, action: np.int64) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action) - 1, terminated, truncated, info


def damaged(folder: Path) -> Path:
    """Long episodes; one chunk in the middle of the first has wrong bytes."""
    stored(folder, LongEnv(), sw.RandomPolicy(), *[{"steps": 70}] * 9)
    slot = slots_of(folder)[2]
    (file,) = folder.glob("segment-*.bin")
    data = bytearray(file.read_bytes())
    data[int(slot["offset"]) + int(slot["nbytes"]) - 9] ^= 0x20
    file.write_bytes(data)
    return folder


def repaired(folder: Path) -> Path:
    """The damaged store after a repair: the first episode lacks rows in its middle."""
    assert repair(damaged(folder), yes=True).is_done
    return folder


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u202egnp.exe\u202c",
    "a\x00b\x1b[31m\r\nSet-Cookie: a=b",
    "' onmouseover='alert(1)",
    '"; DROP TABLE episodes; --',
    "${7*7}{{7*7}}",
    "=cmd|' /C calc'!A0",
    "long " * 4_000,
)
"""Texts that break pages which take them for something else than text."""


def hostile(folder: Path) -> Path:
    """CartPole whose metadata, in keys and values, is hostile text."""
    texts = {
        f"key {number} {text}" if number < 3 else f"key {number}": text
        for number, text in enumerate(HOSTILE)
    }
    facts = {**texts, "__proto__": "polluted", "constructor": "polluted", "nested": {"a": [1] * 99}}

    def policy(observation: npt.NDArray[np.float32], is_first: Any) -> Any:
        zeros = np.zeros(len(observation), np.int64)
        nans = np.full(len(observation), np.nan, np.float32)
        return zeros, {"<b>bold</b>": nans, HOSTILE[1]: nans}

    return cartpole(folder, policy, episodes=3, metadata=facts)


class Writer:
    """A process that writes into a store, which it makes, while it is being looked at."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.episodes = int(self._process.stdout.readline())

    def collect(self, steps: int) -> None:
        """Write more steps, and count the episodes in the store, open ones included."""
        print(steps, file=self._process.stdin, flush=True)
        self.episodes = int(self._process.stdout.readline())


@contextmanager
def writer(folder: Path, env: str = "cartpole") -> Iterator[Writer]:
    """A process that writes into a new store, and has written 100 steps."""
    # The env is "cartpole" for two with short episodes, "bar" for one with long ones and pictures.
    command = [sys.executable, __file__, str(folder), env]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=path, stdin=pipe, stdout=pipe, text=True) as process:
        yield Writer(process)


def _write(folder: str, env: str) -> None:
    """Collect as many steps as each line of the standard input says."""
    envs = LongEnv() if env == "bar" else sw.make_vec("CartPole-v1", 2, num_workers=0)
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        collector.collect(steps=100)
        print(replay.episodes, flush=True)
        for line in sys.stdin:
            collector.collect(steps=int(line))
            print(replay.episodes, flush=True)


if __name__ == "__main__":
    _write(*sys.argv[1:])
