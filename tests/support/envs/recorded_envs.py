"""Envs that write down what they do, as a plain list of episodes, and are collected from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FrameStackObservation

from stepwell import Collector, RandomPolicy, SequenceReplayBuffer
from support.envs.fakes import FrameEnv, TraceEnv

__all__ = ["Listed", "ListedEnv", "frames", "recorded", "traces"]

PLANS = (
    ((1, "terminated"), (4, "truncated"), (3, "both"), (2, "terminated")),
    ((3, "both"), (1, "truncated"), (5, "terminated")),
    ((6, "truncated"), (2, "both"), (1, "terminated")),
)


@dataclass
class Listed:
    """An episode of T steps: T + 1 observations, T of all else."""

    observations: list[Any] = field(default_factory=list[Any])
    actions: list[Any] = field(default_factory=list[Any])
    rewards: list[float] = field(default_factory=list[float])
    terminated: list[bool] = field(default_factory=list[bool])
    truncated: list[bool] = field(default_factory=list[bool])

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def is_cut(self) -> bool:
        return not any(self.terminated[-1:] + self.truncated[-1:])


class ListedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Writes down all that its env gives and takes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[Listed] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.episodes.append(Listed([np.array(observation)]))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        listed = self.episodes[-1]
        listed.observations.append(np.array(observation))
        listed.actions.append(np.array(action))
        listed.rewards.append(float(reward))
        listed.terminated.append(terminated)
        listed.truncated.append(truncated)
        return observation, reward, terminated, truncated, info


def traces() -> list[Callable[[], gym.Env[Any, Any]]]:
    """Three envs whose observations contain env, episode, step and action; they end in all ways."""
    return [partial(TraceEnv, plan, tag) for tag, plan in enumerate(PLANS)]


def frames(stack: int = 1) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Two envs of frames, each another; in stacks that are padded by the first one."""

    def one() -> gym.Env[Any, Any]:
        env = FrameEnv([1, 6, 3])
        return env if stack == 1 else FrameStackObservation(env, stack)

    return [one, one]


def recorded(
    makers: Sequence[Callable[[], gym.Env[Any, Any]]], steps: int = 57
) -> tuple[SequenceReplayBuffer, list[Listed]]:
    """Collect from envs, and close the collector inside episodes.

    Returns:
        The replay, and its episodes as logged by the envs, in the replay's order.
    """
    listed: list[ListedEnv] = []

    def wrapped(make: Callable[[], gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
        listed.append(ListedEnv(make()))
        return listed[-1]

    envs = gym.vector.SyncVectorEnv([partial(wrapped, make) for make in makers])
    inner, space = listed[0].env, envs.single_observation_space
    stack = (space.shape or (1,))[0] if isinstance(inner, FrameStackObservation) else 1
    replay = SequenceReplayBuffer()
    with Collector(envs, RandomPolicy(), replay, seed=3, frame_stack=stack) as collector:
        collector.collect(steps=steps)
    logged = [
        listed[episode.stream].episodes[int(str(episode.metadata["stream_episode"]))]
        for episode in replay.iter_episodes()
    ]
    return replay, logged
