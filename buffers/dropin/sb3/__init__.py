"""The replay buffers of Stable-Baselines3, over a Stepwell replay.

They have the constructors, methods, attributes and random draws of the originals, and models take
them as ``replay_buffer_class``. In addition `ReplayBuffer.replay` keeps the same rows as episodes.
"""

from .hindsight import HerReplayBuffer
from .replay import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from .rollout import DictRolloutBuffer, RolloutBuffer
from .step_ring import (
    DictReplayBufferSamples,
    DictRolloutBufferSamples,
    ReplayBufferSamples,
    RolloutBufferSamples,
)

__all__ = [
    "DictReplayBuffer",
    "DictReplayBufferSamples",
    "DictRolloutBuffer",
    "DictRolloutBufferSamples",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferSamples",
    "RolloutBuffer",
    "RolloutBufferSamples",
]
