"""Buffers: the Spec of a row, open episodes, storages, and batches drawn from them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.buffers":  # would hold every class a second time
    raise ImportError(f"import stepwell.buffers, not {__name__}, in a checkout as elsewhere")

from .base.package import lazy_names

if TYPE_CHECKING:  # loaded on first use: processes start before most of it is needed
    from . import bridges
    from .agents.per_agent import AgentReplay, per_agent
    from .base.errors import (
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
    from .curation.copy import CopyReport, copy_episodes
    from .curation.episode_writer import EpisodeWriter, TransitionColumns
    from .curation.selection import EpisodeSelection
    from .pictures.film_strip import FilmStrip
    from .replay.minibatches import Minibatch
    from .replay.replay import SequenceReplayBuffer
    from .replay.rollout import Bootstrap, Rollout
    from .replay.writer import ReplayWriter
    from .rows.digest import Digest
    from .rows.episode import Chunk, End, Episode
    from .rows.episode_buffer import OBSERVED, EpisodeBuffer
    from .sampling.batch import Batch, TransitionBatch
    from .sampling.epoch import Epoch
    from .sampling.loader import Loader
    from .sampling.rate import ReplayRatio, SampleLimiter
    from .sampling.requests import Episodes, Hindsight, Sequences, Transitions
    from .spec.spec import Codec, Field, Layout, Spec, Tree
    from .storage.disk.repair import RepairReport, repair
    from .storage.disk.storage import DiskStorage
    from .storage.disk.verify import VerifyReport, verify
    from .storage.encoded_chunk import EncodedChunk
    from .storage.joined import JoinedStorage
    from .storage.protocol import Storage
    from .storage.ram import MemoryStorage

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
            "base.errors": [
                "LimiterClosed",
                "NotEnoughData",
                "RowsDiffer",
                "SpecMismatch",
                "StepwellError",
                "StoreCorrupt",
                "StoreFailed",
                "StoreLocked",
                "StoreNotFound",
                "StoreTooNew",
                "Unprovable",
            ],
            "bridges": ["bridges"],
            "curation.copy": ["CopyReport", "copy_episodes"],
            "curation.episode_writer": ["EpisodeWriter", "TransitionColumns"],
            "curation.selection": ["EpisodeSelection"],
            "pictures.film_strip": ["FilmStrip"],
            "replay.minibatches": ["Minibatch"],
            "replay.replay": ["SequenceReplayBuffer"],
            "replay.rollout": ["Bootstrap", "Rollout"],
            "replay.writer": ["ReplayWriter"],
            "rows.digest": ["Digest"],
            "rows.episode": ["Chunk", "End", "Episode"],
            "rows.episode_buffer": ["EpisodeBuffer", "OBSERVED"],
            "sampling.batch": ["Batch", "TransitionBatch"],
            "sampling.epoch": ["Epoch"],
            "sampling.loader": ["Loader"],
            "sampling.rate": ["ReplayRatio", "SampleLimiter"],
            "sampling.requests": ["Episodes", "Hindsight", "Sequences", "Transitions"],
            "spec.spec": ["Codec", "Field", "Layout", "Spec", "Tree"],
            "storage.disk.repair": ["RepairReport", "repair"],
            "storage.disk.storage": ["DiskStorage"],
            "storage.disk.verify": ["VerifyReport", "verify"],
            "storage.encoded_chunk": ["EncodedChunk"],
            "storage.joined": ["JoinedStorage"],
            "storage.protocol": ["Storage"],
            "storage.ram": ["MemoryStorage"],
        },
    )
