"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

from typing import TYPE_CHECKING

from stepwell.buffers import (
    Batch,
    Episode,
    Episodes,
    NotEnoughData,
    SequenceReplayBuffer,
    Sequences,
    Spec,
    StepwellError,
    TransitionBatch,
    Transitions,
)
from stepwell.collectors import Collector, CollectReport, RandomPolicy
from stepwell.wrappers import check_vector_env, make_atari, make_vec

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.buffers import ReplayRatio, SampleLimiter

__all__ = [
    "Batch",
    "CollectReport",
    "Collector",
    "Episode",
    "Episodes",
    "NotEnoughData",
    "RandomPolicy",
    "ReplayRatio",
    "SampleLimiter",
    "SequenceReplayBuffer",
    "Sequences",
    "Spec",
    "StepwellError",
    "TransitionBatch",
    "Transitions",
    "check_vector_env",
    "make_atari",
    "make_vec",
]

__version__ = "0.1.0"

_LATER = ("ReplayRatio", "SampleLimiter")


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepwell import buffers

    found: object = getattr(buffers, name)
    return found
