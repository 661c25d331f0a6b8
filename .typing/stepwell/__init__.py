"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

from stepwell.buffers import (
    Batch,
    Episode,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
    StepwellError,
)
from stepwell.collectors import Collector, CollectReport, RandomPolicy
from stepwell.wrappers import check_vector_env, make_atari, make_vec

__all__ = [
    "Batch",
    "CollectReport",
    "Collector",
    "Episode",
    "NotEnoughData",
    "RandomPolicy",
    "SequenceReplayBuffer",
    "Spec",
    "StepwellError",
    "check_vector_env",
    "make_atari",
    "make_vec",
]

__version__ = "0.1.0"
