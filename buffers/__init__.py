"""Buffers: the Spec of a row, open episodes, storages, and batches drawn from them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.buffers":  # would hold every class a second time
    raise ImportError(f"import stepwell.buffers, not {__name__}, in a checkout as elsewhere")

from stepwell import lazy_names
from stepwell.buffers.digest import Digest
from stepwell.buffers.episode import Chunk, End, Episode
from stepwell.buffers.episode_buffer import OBSERVED, EpisodeBuffer
from stepwell.buffers.errors import (
    LimiterClosed,
    NotEnoughData,
    RowsDiffer,
    SpecMismatch,
    StepwellError,
    StoreCorrupt,
    StoreFailed,
    StoreLocked,
    StoreNotFound,
    StoreTooNew,
    Unprovable,
)
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.replay_writer import ReplayWriter
from stepwell.buffers.sampling.requests import Episodes, Hindsight, Sequences, Transitions
from stepwell.buffers.spec import Codec, Field, Layout, Spec, Tree
from stepwell.buffers.storage.cloud.storage import CloudStorage
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.encoded_chunk import EncodedChunk
from stepwell.buffers.storage.joined import JoinedStorage
from stepwell.buffers.storage.memory import MemoryStorage
from stepwell.buffers.storage.protocol import Storage

if TYPE_CHECKING:  # loaded when it is first used, as few programs need it
    from stepwell.buffers import bridges
    from stepwell.buffers.agents.per_agent import AgentReplay, per_agent
    from stepwell.buffers.curation.copy import CopyReport, copy_episodes
    from stepwell.buffers.curation.episode_writer import EpisodeWriter, TransitionColumns
    from stepwell.buffers.curation.selection import EpisodeSelection
    from stepwell.buffers.pictures.film_strip import FilmStrip
    from stepwell.buffers.rollout.minibatches import Minibatch
    from stepwell.buffers.rollout.rollout import Bootstrap, Rollout
    from stepwell.buffers.sampling.batch import Batch, TransitionBatch
    from stepwell.buffers.sampling.epoch import Epoch
    from stepwell.buffers.sampling.loader import Loader
    from stepwell.buffers.sampling.rate import ReplayRatio, SampleLimiter
    from stepwell.buffers.storage.disk.repair import RepairReport, repair
    from stepwell.buffers.storage.disk.verify import VerifyReport, verify

__all__ = [
    "OBSERVED",
    "AgentReplay",
    "Batch",
    "Bootstrap",
    "Chunk",
    "CloudStorage",
    "Codec",
    "CopyReport",
    "Digest",
    "DiskStorage",
    "EncodedChunk",
    "End",
    "Episode",
    "EpisodeBuffer",
    "EpisodeSelection",
    "EpisodeWriter",
    "Episodes",
    "Epoch",
    "Field",
    "FilmStrip",
    "Hindsight",
    "JoinedStorage",
    "Layout",
    "LimiterClosed",
    "Loader",
    "MemoryStorage",
    "Minibatch",
    "NotEnoughData",
    "RepairReport",
    "ReplayRatio",
    "ReplayWriter",
    "Rollout",
    "RowsDiffer",
    "SampleLimiter",
    "SequenceReplayBuffer",
    "Sequences",
    "Spec",
    "SpecMismatch",
    "StepwellError",
    "Storage",
    "StoreCorrupt",
    "StoreFailed",
    "StoreLocked",
    "StoreNotFound",
    "StoreTooNew",
    "TransitionBatch",
    "TransitionColumns",
    "Transitions",
    "Tree",
    "Unprovable",
    "VerifyReport",
    "bridges",
    "copy_episodes",
    "per_agent",
    "repair",
    "verify",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "agents.per_agent": ["AgentReplay", "per_agent"],
            "bridges": ["bridges"],
            "curation.copy": ["CopyReport", "copy_episodes"],
            "curation.episode_writer": ["EpisodeWriter", "TransitionColumns"],
            "storage.disk.repair": ["RepairReport", "repair"],
            "storage.disk.verify": ["VerifyReport", "verify"],
            "curation.selection": ["EpisodeSelection"],
            "pictures.film_strip": ["FilmStrip"],
            "rollout.minibatches": ["Minibatch"],
            "rollout.rollout": ["Bootstrap", "Rollout"],
            "sampling.batch": ["Batch", "TransitionBatch"],
            "sampling.epoch": ["Epoch"],
            "sampling.loader": ["Loader"],
            "sampling.rate": ["ReplayRatio", "SampleLimiter"],
        },
    )
