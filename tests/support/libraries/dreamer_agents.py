"""A DreamerV3 of a handful of numbers, which learns nothing but does all that a large one does."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import stepwell as sw
from dreamer.agent import Models, construct_models
from dreamer.config import Config
from dreamer.train import get_environments_and_actions

COUNTER = "stepwell/Counter-v0"
TINY = replace(
    Config.small(),
    num_envs=2,
    steps=120,
    pretrain_steps=40,
    collect_steps=4,
    eval_every=30,
    eval_episodes=2,
    save_every=20,
    replay_ratio=0.25,
    batch_size=2,
    length=4,
    embedded=4,
    channels=2,
    dense=8,
    agent_blocks=1,
    deterministic=8,
    stochastic=2,
    categories=3,
    bins=9,
    horizon=2,
    starts=4,
)


class Counter(gym.Env[np.ndarray, np.int64]):
    """Observes a number drawn at the reset, and the steps since; ends after 25 of them."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 25

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = np.array([self.np_random.integers(1_000), 0], np.float32)
        return self._seen, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._seen = self._seen + np.array([0, 1], np.float32)
        return self._seen, float(action), bool(self._seen[1] >= self.length), False, {}


if COUNTER not in gym.registry:
    gym.register(COUNTER, entry_point="support.libraries.dreamer_agents:Counter")


def agent(
    folder: Path, config: Config = TINY, env: str = COUNTER, seed: int = 0
) -> tuple[Any, Models]:
    """Envs, and an agent for them whose replay lies in the folder."""
    envs, _ = get_environments_and_actions(env, config.num_envs)
    replay = sw.SequenceReplayBuffer(folder, capacity=config.capacity, seed=seed)
    spaces = envs.single_observation_space, envs.single_action_space
    return envs, construct_models(*spaces, replay, config)


def as_assignments(config: Config) -> list[str]:
    """The assignments for `--set` that make this config from `Config.small()`."""
    usual = asdict(Config.small())
    return [f"{name}={value}" for name, value in asdict(config).items() if value != usual[name]]
