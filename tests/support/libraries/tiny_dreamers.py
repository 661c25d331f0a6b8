"""Tiny networks of the Dreamer example, an env whose observations contain its state, and rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import stepwell as sw
from dreamer.agent import Models, construct_models
from dreamer.config import Config

TINY = Config(
    num_envs=3,
    batch_size=4,
    length=6,
    embedded=12,
    channels=2,
    dense=16,
    blocks=1,
    agent_blocks=1,
    deterministic=10,
    stochastic=3,
    categories=4,
    bins=15,
    bin_limit=5.0,
    horizon=4,
)


def tiny(**numbers: Any) -> Config:
    """A config of which an agent has some thousand parameters."""
    return replace(TINY, **numbers)


def stir(net: nn.Module, seed: int = 0, much: float = 0.3) -> None:
    """Noise on all parameters: heads and states that begin at 0 could hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(much * noise.to(parameter.device))


def agent(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    config: Config = TINY,
    replay: sw.SequenceReplayBuffer | None = None,
    *,
    stirred: bool = True,
    device: str = "cpu",
) -> Models:
    """An agent for envs of these spaces."""
    torch.manual_seed(0)
    replay = sw.SequenceReplayBuffer(seed=0) if replay is None else replay
    models = construct_models(observation, action, replay, config, device)
    if stirred:
        for seed, net in enumerate(models[:2]):
            stir(net, seed)
    return models


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


class NumberedEnv(gym.Env[dict[str, Any], tuple[Any, ...]]):
    """Observes time, the action that led here and a draw; episodes as `plan` says, in turn.

    Two actions at once: a stick with two axes and one of three buttons, 1 to 3.
    """

    def __init__(self, plan: Sequence[tuple[int, str]], tag: int = 0) -> None:
        self.plan, self.tag = plan, tag
        self.observation_space = spaces.Dict(
            {
                "numbers": spaces.Box(-np.inf, np.inf, (6,)),
                "parity": spaces.Discrete(2, start=5),
                "screen": spaces.Box(0, 255, (9, 8, 1), np.uint8),
            }
        )
        self.action_space = spaces.Tuple((spaces.Box(-2, 3, (2,)), spaces.Discrete(3, start=1)))
        self.episode, self.t = -1, 0

    def observation(self, stick: Any = (0, 0), button: float = 0) -> dict[str, Any]:
        numbers = [self.tag, self.t, *stick, button, self.np_random.normal()]
        return {
            "numbers": np.array(numbers, np.float32),
            "parity": np.int64(5 + self.t % 2),
            "screen": self.np_random.integers(0, 256, (9, 8, 1), np.uint8),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(
        self, action: tuple[Any, ...]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        stick, button = action
        length, end = self.plan[self.episode % len(self.plan)]
        over = self.t >= length
        reward = float(stick.sum()) + float(button)
        seen = self.observation(stick, float(button))
        return seen, reward, over and end == "terminated", over and end == "truncated", {}


PLANS = [
    [(3, "terminated"), (5, "truncated"), (1, "terminated")],
    [(4, "truncated"), (2, "truncated")],
    [(60, "terminated")],
]


def labelled_envs(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    """Three of them, whose episodes end at different times."""
    make = [partial(NumberedEnv, plan, tag) for tag, plan in enumerate(PLANS)]
    return SyncVectorEnv(make, autoreset_mode=mode)


def random_rows(steps: int = 150) -> sw.SequenceReplayBuffer:
    """Rows of random actions in these envs."""
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(labelled_envs(), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)
    return replay
