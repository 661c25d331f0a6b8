"""Stable-Baselines3 where it is needed, and models told apart."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from stepwell.buffers.bridges.optional_libraries import load_library

__all__ = ["check_off_policy", "check_on_policy", "is_on_policy", "load_sb3"]

_NEEDS_STATE = ("lstm_actor", "lstm_critic")


def load_sb3(part: str, wanted_for: str) -> ModuleType:
    """A module of Stable-Baselines3.

    Args:
        part: Its dotted name behind ``stable_baselines3``.
        wanted_for: What needs it.

    Raises:
        ImportError: It is not installed, or older than 2.9.
    """
    return load_library(
        f"stable_baselines3.{part}",
        wanted_for,
        install="'stepwell[sb3]'",
        package="stable-baselines3",
        at_least="2.9",
    )


def is_on_policy(model: Any, wanted_for: str) -> bool:
    """Whether a model learns from rollouts (PPO, A2C) rather than from a replay.

    Raises:
        TypeError: It is no model of Stable-Baselines3, or one with a recurrent state.
    """
    on_policy = load_sb3("common.on_policy_algorithm", wanted_for).OnPolicyAlgorithm
    off_policy = load_sb3("common.off_policy_algorithm", wanted_for).OffPolicyAlgorithm
    if not isinstance(model, (on_policy, off_policy)):
        raise TypeError(
            f"{wanted_for}: expected a model of Stable-Baselines3 such as PPO or DQN, got a "
            f"{type(model).__name__}; give the model itself, not its policy or class"
        )
    if any(hasattr(model.policy, name) for name in _NEEDS_STATE):
        raise TypeError(
            f"{wanted_for}: expected a model without a recurrent state, got "
            f"{type(model).__name__}; train one with a recurrent policy by its own learn()"
        )
    return isinstance(model, on_policy)


def check_on_policy(model: Any, wanted_for: str) -> None:
    """Raise TypeError unless the model learns from rollouts that can be handed to it."""
    if not is_on_policy(model, wanted_for):
        raise TypeError(
            f"{wanted_for}: expected a model that learns from rollouts, such as PPO or A2C, got "
            f"{type(model).__name__}; feed it with as_sb3_replay"
        )
    check_not_normalised(model, wanted_for)


def check_not_normalised(model: Any, wanted_for: str) -> None:
    """Raise ValueError where SB3 would normalise what it collects with statistics of its own."""
    if model.get_vec_normalize_env() is not None:
        raise ValueError(
            f"{wanted_for}: expected a model without VecNormalize, whose statistics only its own "
            f"steps bring up to date, got one with it; give the Collector envs in gymnasium's "
            f"NormalizeObservation and NormalizeReward instead"
        )


def check_off_policy(model: Any, wanted_for: str) -> None:
    """Refuse a model unless it learns from a replay that can be stood in for.

    Raises:
        TypeError: It learns from rollouts, or with hindsight.
        ValueError: It was made with ``optimize_memory_usage``.
    """
    if is_on_policy(model, wanted_for):
        raise TypeError(
            f"{wanted_for}: expected a model that learns from a replay, such as DQN or SAC, got "
            f"{type(model).__name__}; feed it with to_sb3_rollout"
        )
    if model.optimize_memory_usage:
        raise ValueError(
            f"{wanted_for}: expected a model without optimize_memory_usage, got one with it; make "
            f"it without: a Stepwell replay keeps each frame once anyway"
        )
    hindsight = load_sb3("her.her_replay_buffer", wanted_for).HerReplayBuffer
    if isinstance(model.replay_buffer_class, type) and issubclass(
        model.replay_buffer_class, hindsight
    ):
        raise TypeError(
            f"{wanted_for}: expected a model without HerReplayBuffer, as goals are not relabelled "
            f"here, got one with it; make the model without replay_buffer_class"
        )
