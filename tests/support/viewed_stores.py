"""Small stores to look at: games, cameras, vectors, policies to compare, damage, hostile names."""

from __future__ import annotations

import math
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
from support.forged.stores import slots_of

Pixels = npt.NDArray[np.uint8]
Policy = Callable[[Any, Any], Any]


class ArmEnv(gym.Env[dict[str, Any], npt.NDArray[np.float32]]):
    """An arm of two joints reaches for a ball; a camera in front of it, one at its hand.

    The front camera's pixels are [H, W, 3]; those of the hand's are [3, H, W].

    Args:
        size: Height of the front camera's picture in pixels, a multiple of 8.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, size: int = 72) -> None:
        self.height, self.width, self.hand = size, size * 4 // 3, size // 2
        self.observation_space = spaces.Dict(
            {
                "front": spaces.Box(0, 255, (self.height, self.width, 3), np.uint8),
                "hand": spaces.Box(0, 255, (3, self.hand, self.hand), np.uint8),
                "joints": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.angles, self.speeds = np.zeros(2), np.zeros(2)
        self.ball, self.t = np.zeros(2), 0

    def places(self) -> npt.NDArray[np.float64]:
        """Shoulder, elbow and hand [3, 2], in arm's lengths."""
        one, both = self.angles[0], self.angles.sum()
        elbow = np.array([math.cos(one), math.sin(one)]) / 2
        return np.stack(
            [np.zeros(2), elbow, elbow + np.array([math.cos(both), math.sin(both)]) / 2]
        )

    def drawn(self) -> Pixels:
        """The scene, at the front camera's size."""
        picture = np.full((self.height, self.width, 3), (34, 40, 52), np.uint8)
        scale, middle = self.height * 0.45, np.array([self.width / 2, self.height / 2])

        def pixel(place: npt.NDArray[np.float64]) -> tuple[int, int]:
            x, y = middle + scale * place * (1, -1)
            return int(x), int(y)

        cv2.circle(picture, pixel(self.ball), self.height // 14, (235, 120, 60), -1)
        points = [pixel(place) for place in self.places()]
        cv2.line(picture, points[0], points[1], (90, 160, 235), self.height // 14)
        cv2.line(picture, points[1], points[2], (130, 210, 160), self.height // 14)
        for point in points:
            cv2.circle(picture, point, self.height // 18, (240, 240, 240), -1)
        return picture

    def observation(self) -> dict[str, Any]:
        front = self.drawn()
        x, y = np.array([self.width, self.height]) / 2 + self.height * 0.45 * (
            self.places()[2] * (1, -1)
        )
        half = self.hand // 2
        wide = cv2.copyMakeBorder(front, half, half, half, half, cv2.BORDER_REPLICATE)
        near = wide[int(y) : int(y) + self.hand, int(x) : int(x) + self.hand]
        return {
            "front": front,
            "hand": np.ascontiguousarray(near.transpose(2, 0, 1)),
            "joints": np.concatenate([self.angles, self.speeds]).astype(np.float32),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.speeds = 0, np.zeros(2)
        self.angles = self.np_random.uniform(-math.pi, math.pi, 2)
        angle, far = self.np_random.uniform(-math.pi, math.pi), self.np_random.uniform(0.4, 0.9)
        self.ball = far * np.array([math.cos(angle), math.sin(angle)])
        return self.observation(), {"distance": self.distance()}

    def distance(self) -> float:
        return float(np.linalg.norm(self.places()[2] - self.ball))

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.speeds = 0.8 * self.speeds + 0.08 * action
        self.angles = self.angles + self.speeds
        distance = self.distance()
        caught = distance < 0.12
        reward = 1.0 if caught else -0.02 * distance
        return self.observation(), reward, caught, self.t >= 60, {"distance": distance}


def reach(env: ArmEnv) -> Callable[[Any, Any], Any]:
    """A policy that moves the hand of the env's arm towards the ball, with noise."""
    generator = np.random.default_rng(0)

    def policy(observation: Mapping[str, Any], is_first: Any) -> Any:
        before, best = env.angles, np.zeros(2)
        tried = {}
        for first in (-1, 0, 1):
            for second in (-1, 0, 1):
                env.angles = before + 0.2 * np.array([first, second])
                tried[env.distance()] = np.array([first, second])
        env.angles = before
        best = tried[min(tried)]
        noise = generator.normal(0, 0.3, 2)
        return np.clip(best + noise, -1, 1).astype(np.float32)[None]

    return policy


def pong(folder: Path, episodes: int = 1, steps: int = 60) -> Path:
    """Pong of a random policy, in stacks of four frames; the last episode was cut."""
    envs = sw.make_atari("Pong", 1)
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, info={"lives": -1}) as collector,
    ):
        collector.collect(episodes=episodes)
        collector.collect(steps=steps)
    return folder


def nes(folder: Path, steps: int = 120) -> Path:
    """The demo cartridge in color, with score and lives as infos."""
    from demo_rom import write_demo  # here: a process that writes has no path to examples/

    rom, game = write_demo(folder.with_name(folder.name + "-rom"))
    settings: dict[str, Any] = {"size": (120, 128), "grayscale": False, "frame_stack": 1}
    envs = sw.make_nes(rom, 1, game=game, noop_max=30, max_frames=600, num_workers=0, **settings)
    policy = sw.RandomPolicy()
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(envs, policy, replay, seed=0, info={"score": -1, "lives": -1}) as collector,
    ):
        collector.collect(steps=steps)
    return folder


def cameras(folder: Path, episodes: int = 3, size: int = 72) -> Path:
    """The arm with its two cameras and its joints."""
    env = ArmEnv(size)
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(env, reach(env), replay, seed=0, info={"distance": -1.0}) as collector,
    ):
        collector.collect(episodes=episodes)
    return folder


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
    policy = policy or pushing(0.7)
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(envs, policy, replay, seed=seed, metadata=metadata) as collector,
    ):
        collector.collect(episodes=episodes)
    return folder


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
    with (
        sw.SequenceReplayBuffer(folder, capacity=400) as replay,
        sw.Collector(LongEnv(), sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        for _ in range(12):
            collector.collect(steps=70)
    return folder


class LongEnv(gym.Env[Pixels, np.int64]):
    """A bar that moves over a grey picture of 24 x 32; its episodes have 300 steps."""

    def __init__(self, length: int = 300) -> None:
        self.length, self.t = length, 0
        self.observation_space = spaces.Box(0, 255, (24, 32), np.uint8)
        self.action_space = spaces.Discrete(3)

    def picture(self) -> Pixels:
        found = np.full((24, 32), 40 + self.t % 100, np.uint8)
        found[:, self.t % 32] = 250
        found[self.t // 32 % 24] = 200
        return found

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Pixels, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.picture(), {}

    def step(self, action: np.int64) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.picture(), float(action) - 1, self.t >= self.length, False, {}


def damaged(folder: Path) -> Path:
    """Long episodes; one chunk in the middle of the first has wrong bytes."""
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(LongEnv(), sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        for _ in range(9):
            collector.collect(steps=70)
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
