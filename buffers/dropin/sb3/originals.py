"""SB3's own classes, which ours stand for where SB3 is installed."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.buffers import DictReplayBuffer as SB3DictReplayBuffer
    from stable_baselines3.common.buffers import DictRolloutBuffer as SB3DictRolloutBuffer
    from stable_baselines3.common.buffers import NStepReplayBuffer as SB3NStepReplayBuffer
    from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
    from stable_baselines3.common.buffers import RolloutBuffer as SB3RolloutBuffer
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3HerReplayBuffer
else:  # for type checkers ours are subclasses; really they inherit nothing, and are registered
    SB3DictReplayBuffer = SB3DictRolloutBuffer = SB3HerReplayBuffer = object
    SB3NStepReplayBuffer = SB3ReplayBuffer = SB3RolloutBuffer = object

__all__ = [
    "DictReplayBufferSamples",
    "DictRolloutBufferSamples",
    "ReplayBufferSamples",
    "RolloutBufferSamples",
    "SB3DictReplayBuffer",
    "SB3DictRolloutBuffer",
    "SB3HerReplayBuffer",
    "SB3NStepReplayBuffer",
    "SB3ReplayBuffer",
    "SB3RolloutBuffer",
    "registered",
    "samples_class",
]

ClassT = TypeVar("ClassT", bound=type)
_MODULES = "common.buffers", "her.her_replay_buffer"


class ReplayBufferSamples(NamedTuple):
    """A batch of transitions, as SB3's class of this name, which is used where SB3 is installed."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None = None


class DictReplayBufferSamples(NamedTuple):
    """The same with dicts of observations."""

    observations: dict[str, torch.Tensor]
    actions: torch.Tensor
    next_observations: dict[str, torch.Tensor]
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None = None


class RolloutBufferSamples(NamedTuple):
    """A minibatch of a rollout, as SB3's class of this name, which is used where it is there."""

    observations: torch.Tensor
    actions: torch.Tensor
    old_values: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class DictRolloutBufferSamples(NamedTuple):
    """The same with dicts of observations."""

    observations: dict[str, torch.Tensor]
    actions: torch.Tensor
    old_values: torch.Tensor
    old_log_prob: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


@cache
def _original(name: str) -> Any:
    """SB3's class of a name; None where SB3 is not installed."""
    for part in _MODULES:
        try:
            module = importlib.import_module(f"stable_baselines3.{part}")
        except ModuleNotFoundError as error:
            if error.name != "stable_baselines3":
                raise
            return None
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"stable_baselines3: expected {name} in {_MODULES}, got none; install 2.9")


def registered(ours: ClassT) -> ClassT:
    """Make ``isinstance`` take a class for SB3's one of its name."""
    original = _original(ours.__name__)
    if original is not None:
        # Abstract base classes take classes that inherit nothing of them.
        original.register(ours)
    return ours


def samples_class(samples: type[Any]) -> Any:
    """SB3's class of the same name, where SB3 is installed."""
    return _original(samples.__name__) or samples
