"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

from typing import TYPE_CHECKING

from stepwell.buffers import (
    Episode,
    Episodes,
    NotEnoughData,
    SequenceReplayBuffer,
    Sequences,
    Spec,
    StepwellError,
    Transitions,
)
from stepwell.collectors import Collector, CollectReport, RandomPolicy
from stepwell.wrappers import make_atari, make_vec

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.buffers import (
        Batch,
        ReplayRatio,
        Rollout,
        SampleLimiter,
        TransitionBatch,
        bridges,
    )
    from stepwell.collectors import EpsilonGreedy, Evaluation, GaussianNoise, WarmUp, evaluate
    from stepwell.wrappers import NesEnv, check_vector_env, from_gym, make_nes

__all__ = [
    "Batch",
    "CollectReport",
    "Collector",
    "Episode",
    "Episodes",
    "EpsilonGreedy",
    "Evaluation",
    "GaussianNoise",
    "NesEnv",
    "NotEnoughData",
    "RandomPolicy",
    "ReplayRatio",
    "Rollout",
    "SampleLimiter",
    "SequenceReplayBuffer",
    "Sequences",
    "Spec",
    "StepwellError",
    "TransitionBatch",
    "Transitions",
    "WarmUp",
    "bridges",
    "check_vector_env",
    "evaluate",
    "from_gym",
    "make_atari",
    "make_nes",
    "make_vec",
]

__version__ = "0.1.0"

_LATER = {
    "Batch": "buffers",
    "EpsilonGreedy": "collectors",
    "Evaluation": "collectors",
    "GaussianNoise": "collectors",
    "NesEnv": "wrappers",
    "ReplayRatio": "buffers",
    "Rollout": "buffers",
    "SampleLimiter": "buffers",
    "TransitionBatch": "buffers",
    "WarmUp": "collectors",
    "bridges": "buffers",
    "check_vector_env": "wrappers",
    "evaluate": "collectors",
    "from_gym": "wrappers",
    "make_nes": "wrappers",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
