"""Buffers: what a row is, the open episodes, the storages, and the batches drawn from them."""

from stepwell.buffers.batch import Batch
from stepwell.buffers.digest import Digest
from stepwell.buffers.disk.repair import RepairReport, repair
from stepwell.buffers.disk.storage import DiskStorage
from stepwell.buffers.disk.verify import VerifyReport, verify
from stepwell.buffers.episode import End, Episode, Piece
from stepwell.buffers.episode_buffer import EpisodeBuffer
from stepwell.buffers.errors import (
    NotEnoughData,
    SpecMismatch,
    StepwellError,
    StoreCorrupt,
    StoreFailed,
    StoreLocked,
    StoreNotFound,
    StoreTooNew,
)
from stepwell.buffers.memory_storage import MemoryStorage
from stepwell.buffers.sequence_replay_buffer import SequenceReplayBuffer
from stepwell.buffers.spec import Codec, Field, Layout, Spec, Tree
from stepwell.buffers.storage import Storage

__all__ = [
    "Batch",
    "Codec",
    "Digest",
    "DiskStorage",
    "End",
    "Episode",
    "EpisodeBuffer",
    "Field",
    "Layout",
    "MemoryStorage",
    "NotEnoughData",
    "Piece",
    "RepairReport",
    "SequenceReplayBuffer",
    "Spec",
    "SpecMismatch",
    "StepwellError",
    "Storage",
    "StoreCorrupt",
    "StoreFailed",
    "StoreLocked",
    "StoreNotFound",
    "StoreTooNew",
    "Tree",
    "VerifyReport",
    "repair",
    "verify",
]
