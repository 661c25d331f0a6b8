"""Buffers: the Spec of a row, open episodes, storages, and batches drawn from them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.buffers":  # would hold every class a second time
    raise ImportError(f"import stepwell.buffers, not {__name__}, in a checkout as elsewhere")

from .base.package import lazy_names

if TYPE_CHECKING:  # imported on first use; `as`: for type checkers, too, they are public
    from . import bridges as bridges
    from .agents.per_agent import AgentReplay as AgentReplay
    from .agents.per_agent import per_agent as per_agent
    from .base.errors import LimiterClosed as LimiterClosed
    from .base.errors import NotEnoughData as NotEnoughData
    from .base.errors import RowsDiffer as RowsDiffer
    from .base.errors import SpecMismatch as SpecMismatch
    from .base.errors import StepwellError as StepwellError
    from .base.errors import StoreCorrupt as StoreCorrupt
    from .base.errors import StoreFailed as StoreFailed
    from .base.errors import StoreLocked as StoreLocked
    from .base.errors import StoreNotFound as StoreNotFound
    from .base.errors import StoreTooNew as StoreTooNew
    from .base.errors import Unprovable as Unprovable
    from .curation.copy import CopyReport as CopyReport
    from .curation.copy import copy_episodes as copy_episodes
    from .curation.episode_writer import EpisodeWriter as EpisodeWriter
    from .curation.episode_writer import TransitionColumns as TransitionColumns
    from .curation.selection import EpisodeSelection as EpisodeSelection
    from .pictures.film_strip import FilmStrip as FilmStrip
    from .replay.minibatches import Minibatch as Minibatch
    from .replay.replay import SequenceReplayBuffer as SequenceReplayBuffer
    from .replay.rollout import Bootstrap as Bootstrap
    from .replay.rollout import Rollout as Rollout
    from .replay.writer import ReplayWriter as ReplayWriter
    from .rows.digest import Digest as Digest
    from .rows.episode import Chunk as Chunk
    from .rows.episode import End as End
    from .rows.episode import Episode as Episode
    from .rows.episode_buffer import OBSERVED as OBSERVED
    from .rows.episode_buffer import EpisodeBuffer as EpisodeBuffer
    from .sampling.batch import Batch as Batch
    from .sampling.batch import TransitionBatch as TransitionBatch
    from .sampling.epoch import Epoch as Epoch
    from .sampling.loader import Loader as Loader
    from .sampling.rate import ReplayRatio as ReplayRatio
    from .sampling.rate import SampleLimiter as SampleLimiter
    from .sampling.requests import Episodes as Episodes
    from .sampling.requests import Hindsight as Hindsight
    from .sampling.requests import Sequences as Sequences
    from .sampling.requests import Transitions as Transitions
    from .spec.spec import Codec as Codec
    from .spec.spec import Field as Field
    from .spec.spec import Layout as Layout
    from .spec.spec import Spec as Spec
    from .spec.spec import Tree as Tree
    from .storage.disk.repair import RepairReport as RepairReport
    from .storage.disk.repair import repair as repair
    from .storage.disk.storage import DiskStorage as DiskStorage
    from .storage.disk.verify import VerifyReport as VerifyReport
    from .storage.disk.verify import verify as verify
    from .storage.encoded_chunk import EncodedChunk as EncodedChunk
    from .storage.joined import JoinedStorage as JoinedStorage
    from .storage.protocol import Storage as Storage
    from .storage.ram import MemoryStorage as MemoryStorage


if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    _HOMES = {
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
    }
    __all__ = sorted(
        (name for names in _HOMES.values() for name in names),
        key=lambda name: (not name.isupper(), name),  # constants first
    )
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
