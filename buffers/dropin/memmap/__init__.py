"""Drop-in for memmap-replay-buffer: episodes of declared fields, kept in a folder.

The names are those of the original, and so is what they do; what is different is told by
docs/migrate.md.
"""

from stepwell.buffers.dropin.memmap.collector import EpisodeCollector
from stepwell.buffers.dropin.memmap.concat import ConcatReplayBuffer
from stepwell.buffers.dropin.memmap.datasets import (
    ReplayDataset,
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTimeWindow,
    ReplayDatasetTrajectory,
)
from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer

__all__ = [
    "ConcatReplayBuffer",
    "EpisodeCollector",
    "ReplayBuffer",
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
]
