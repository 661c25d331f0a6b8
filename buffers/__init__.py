"""Buffers: the Spec of a row, open episodes, storages, and batches drawn from them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.buffers":  # would hold every class a second time
    raise ImportError(f"import stepwell.buffers, not {__name__}, in a checkout as elsewhere")

from .. import lazy_names
from .digest import Digest
from .episode import Chunk, End, Episode
from .episode_buffer import OBSERVED, EpisodeBuffer
from .errors import (
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
from .replay import SequenceReplayBuffer
from .replay_writer import ReplayWriter
from .sampling.requests import Episodes, Hindsight, Sequences, Transitions
from .spec import Codec, Field, Layout, Spec, Tree
from .storage.disk.storage import DiskStorage
from .storage.encoded_chunk import EncodedChunk
from .storage.joined import JoinedStorage
from .storage.memory import MemoryStorage
from .storage.protocol import Storage

if TYPE_CHECKING:  # loaded when it is first used, as few programs need it
    from . import bridges
    from .agents.per_agent import AgentReplay, per_agent
    from .curation.copy import CopyReport, copy_episodes
    from .curation.episode_writer import EpisodeWriter, TransitionColumns
    from .curation.selection import EpisodeSelection
    from .pictures.film_strip import FilmStrip
    from .rollout.minibatches import Minibatch
    from .rollout.rollout import Bootstrap, Rollout
    from .sampling.batch import Batch, TransitionBatch
    from .sampling.epoch import Epoch
    from .sampling.loader import Loader
    from .sampling.rate import ReplayRatio, SampleLimiter
    from .storage.disk.repair import RepairReport, repair
    from .storage.disk.verify import VerifyReport, verify

__all__ = [
    "OBSERVED",
    "AgentReplay",
    "Batch",
    "Bootstrap",
    "Chunk",
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
