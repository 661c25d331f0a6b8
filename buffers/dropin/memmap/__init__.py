"""Drop-in for memmap-replay-buffer: episodes of typed fields in a folder.

Names and behaviour are those of the original; docs/migrate.md lists the differences.
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
