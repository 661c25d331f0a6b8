"""Envs whose images contain env, episode and step, and the list of what was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw

__all__ = ["PLAN", "PixelTagEnv", "PlayedEpisode", "play", "tag_of"]

PLAN: tuple[tuple[int, str], ...] = (
    (1, "terminated"),
    (3, "truncated"),
    (2, "both"),
    (1, "truncated"),
    (5, "terminated"),
    (1, "both"),
    (4, "truncated"),
)


@dataclass(eq=False)
class PlayedEpisode:
    """T + 1 observations and T of all else, as the env gave them."""

    env: int
    number: int
    observations: list[np.ndarray] = field(default_factory=list[np.ndarray])
    actions: list[int] = field(default_factory=list[int])
    rewards: list[float] = field(default_factory=list[float])
    terminated: bool = False
    truncated: bool = False

    @property
    def steps(self) -> int:
        return len(self.actions)


class PixelTagEnv(gym.Env[Any, np.int64]):
    """A picture's first bytes are env, episode and step; rewards are no float32s.

    Args:
        env: Which env it is.
        shape: Of a picture.
        is_dict: The observation is a Dict of ``screen``, and ``clock`` of float64.
        plan: Length and end of one episode after the other, gone through again and again.
    """

    def __init__(
        self,
        env: int = 0,
        shape: tuple[int, ...] = (64, 64, 3),
        is_dict: bool = False,
        plan: Sequence[tuple[int, str]] = PLAN,
    ) -> None:
        self.number, self.is_dict, self.plan = env, is_dict, plan
        screen = spaces.Box(0, 255, shape, np.uint8)
        clock = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space: Any = (
            spaces.Dict({"screen": screen, "clock": clock}) if is_dict else screen
        )
        self.action_space = spaces.Discrete(6)
        self.shape = shape
        self.played: list[PlayedEpisode] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.played.append(PlayedEpisode(self.number, len(self.played)))
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        now = self.played[-1]
        reward = 0.1 * (now.steps + 1) - now.number
        now.actions.append(int(action))
        now.rewards.append(reward)
        length, end = self.plan[now.number % len(self.plan)]
        if now.steps >= length:
            now.terminated, now.truncated = end != "truncated", end != "terminated"
        return self._observe(), reward, now.terminated, now.truncated, {}

    def _observe(self) -> Any:
        now = self.played[-1]
        step = now.steps
        picture = np.arange(np.prod(self.shape), dtype=np.uint8).reshape(self.shape)
        picture = picture + np.uint8(31 * step + 7 * now.number)
        picture.reshape(-1)[:3] = now.env, now.number, step
        now.observations.append(picture)
        if not self.is_dict:
            return picture
        return {"screen": picture, "clock": np.array([now.number / 3, step / 7])}


def tag_of(picture: np.ndarray) -> tuple[int, int, int]:
    """Env, episode and step of a picture as the env gave it."""
    env, number, step = picture.reshape(-1)[:3].tolist()
    return env, number, step


def play(
    envs: int = 3,
    steps: int = 60,
    *,
    shape: tuple[int, ...] = (64, 64, 3),
    is_dict: bool = False,
    stack: int = 1,
) -> tuple[sw.SequenceReplayBuffer, list[PlayedEpisode]]:
    """Collect, close in the middle of episodes, and return what was played; a reset is no step."""
    tagged = [PixelTagEnv(env, shape, is_dict, PLAN[env:] + PLAN[:env]) for env in range(envs)]

    def made(env: PixelTagEnv) -> gym.Env[Any, Any]:
        if stack > 1:
            return gym.wrappers.FrameStackObservation(env, stack, padding_type="zero")
        return env

    replay = sw.SequenceReplayBuffer()
    vector = SyncVectorEnv(
        [partial(made, env) for env in tagged], autoreset_mode=AutoresetMode.NEXT_STEP
    )
    if stack > 1:
        stacks = {"frame_stack": stack, "stack_padding": "zero"}
        vector.metadata = {**vector.metadata, "stepwell": stacks}
    with sw.Collector(vector, sw.RandomPolicy(), replay, seed=3) as collector:
        collector.collect(steps=steps)
    return replay, [episode for env in tagged for episode in env.played if episode.steps]
