"""A DreamerV3 of a handful of numbers, and an env for it whose observations count its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import stepwell as sw
from dreamer.agent import Models, construct_models
from dreamer.config import Config

Net = TypeVar("Net", bound=nn.Module)
COUNTER = "stepwell/Counter-v0"
SIZES: dict[str, Any] = {
    **{"num_envs": 2, "steps": 120, "pretrain_steps": 40, "collect_steps": 4, "replay_ratio": 0.25},
    **{"eval_every": 30, "eval_episodes": 2, "save_every": 20, "batch_size": 4, "length": 6},
    **{"embedded": 12, "channels": 2, "dense": 16, "agent_blocks": 1, "deterministic": 10},
    **{"stochastic": 3, "categories": 4, "bins": 15, "bin_limit": 5.0, "horizon": 4, "starts": 4},
}
TINY = replace(Config.small(), **SIZES)


def tiny(**numbers: Any) -> Config:
    """A config of which an agent has some thousand parameters."""
    return replace(TINY, **numbers)


def stir(net: Net, seed: int = 0) -> Net:
    """Noise on all parameters, in place: heads and states that begin at 0 could hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net


@contextmanager
def no_noise() -> Iterator[None]:
    """Each sample is the likeliest choice; that of several equal ones, the first."""

    def zeros(shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(tuple(shape), device=device)

    with patch("dreamer.maths.gumbel", zeros), patch("dreamer.world_model.gumbel", zeros):
        yield


def snapshot(net: nn.Module) -> dict[str, Tensor]:
    """All parameters as they are now."""
    return {name: part.detach().clone() for name, part in net.named_parameters()}


def changed(net: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of the parameters that are no longer what they were."""
    return {name for name, part in net.named_parameters() if not torch.equal(part, before[name])}


class Counter(gym.Env[np.ndarray, np.int64]):
    """Observes a number drawn at the reset, and the steps since; ends after 25 of them."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = np.array([self.np_random.integers(1_000), 0], np.float32)
        return self._seen, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._seen = self._seen + np.array([0, 1], np.float32)
        return self._seen, float(action), bool(self._seen[1] >= 25), False, {}


if COUNTER not in gym.registry:
    gym.register(COUNTER, entry_point="support.libraries.tiny_dreamers:Counter")


def agent(envs: Any, folder: Path | None = None, config: Config = TINY, seed: int = 0) -> Models:
    """An agent for the envs, stirred; its replay lies in the folder, or in RAM."""
    torch.manual_seed(seed)
    replay = sw.SequenceReplayBuffer(folder, capacity=config.capacity, seed=seed)
    spaces = envs.single_observation_space, envs.single_action_space
    models = construct_models(*spaces, replay, config)
    for net in models[:2]:
        stir(net, seed)
    return models
