"""Advantages of collected rollouts are those of the env's episodes, in each autoreset mode."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from support.rows.rollout_rows import Ending, Part, advantages_by_sums

ENDINGS: tuple[Ending, ...] = ("terminated", "truncated", "both")
GAMMA, LAM = 0.9, 0.8


def length_of(env: int, episode: int) -> int:
    return 1 + (7 * episode + 3 * env) % 5


def ending_of(env: int, episode: int) -> Ending:
    return ENDINGS[(env + episode) % 3]


def worth(observation: np.ndarray) -> np.ndarray:
    """Values [n], different for all observations, so that a wrong observation is noticed."""
    value: np.ndarray = 5 * np.sin(observation @ [100.0, 10.0, 1.0])
    return value


class LabelledEnv(gym.Env[np.ndarray, Any]):
    """Observes [env, episode, step]; the episodes end in all ways after one to five steps."""

    observation_space = gym.spaces.Box(0, 1e6, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.t = number, -1, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.number, self.episode, 0.0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        is_over = self.t >= length_of(self.number, self.episode)
        ending = ending_of(self.number, self.episode)
        flags = is_over and ending != "truncated", is_over and ending != "terminated"
        return np.array([self.number, self.episode, self.t]), self.t / 8, *flags, {}


class Policy:
    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> Any:
        return np.zeros(len(observation), np.int64), {"value": worth(observation)}

    def value(self, observation: np.ndarray) -> np.ndarray:
        return worth(observation)


def true_advantages(env: int, episode: int, first: int, stop: int | None) -> list[float]:
    """Advantages of an episode's steps from ``first`` on; the rollout ends before ``stop``."""
    length = length_of(env, episode)
    last = length if stop is None else stop
    values = worth(np.array([[env, episode, t] for t in range(first, last + 1)], np.float64))
    rewards = tuple((t + 1) / 8 for t in range(first, last))
    ending: Ending = ending_of(env, episode) if last == length else "open"
    part = Part(first, rewards, tuple(values[:-1]), ending, values[-1], True)
    return advantages_by_sums(part, GAMMA, LAM)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("rows", [[1] * 12, [40], [7, 13, 20]])
def test_the_advantage_of_each_step_is_that_of_its_episode(
    mode: AutoresetMode, rows: list[int]
) -> None:
    envs = SyncVectorEnv([partial(LabelledEnv, n) for n in range(3)], autoreset_mode=mode)
    seen = 0
    with sw.Collector(envs, Policy(), seed=0) as collector:
        for steps in rows:
            rollout = collector.rollout(steps)
            advantages, _ = rollout.advantages(GAMMA, LAM)
            found: dict[tuple[int, int], dict[int, float]] = {}
            for at in np.argwhere(rollout.mask):
                env, episode, t = rollout.observation[tuple(at)].astype(int).tolist()
                found.setdefault((env, episode), {})[t] = float(advantages[tuple(at)])
            for (env, episode), by_step in found.items():
                first, stop = min(by_step), max(by_step) + 1
                assert list(by_step) == list(range(first, stop))
                expected = true_advantages(env, episode, first, stop)
                np.testing.assert_allclose(list(by_step.values()), expected, rtol=1e-12)
            seen += rollout.steps
    assert seen > 2 * sum(rows)
