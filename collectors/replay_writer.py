"""Puts what arrived into episodes, and episodes into the replay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

import numpy as np

from stepwell.buffers import (
    DiskStorage,
    End,
    EpisodeBuffer,
    SequenceReplayBuffer,
    StepwellError,
)
from stepwell.buffers.digest import Digest
from stepwell.collectors.step_result import StepResult

__all__ = ["ReplayWriter", "kept_since"]


class ReplayWriter:
    """Writes the rows of one Collector.

    Args:
        replay: Takes up the chunks; its Spec is settled.
        num_envs: Number of envs N.
        flush_seconds: No row waits longer than this to be stored.
    """

    def __init__(self, replay: SequenceReplayBuffer, num_envs: int, flush_seconds: float) -> None:
        self._replay = replay
        self._num_envs = num_envs
        self._digest = Digest()
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._first_episode = replay.storage.table.next_episode
        self.begin_anew()

    @property
    def digest(self) -> str:
        """Fingerprint of all rows stored so far."""
        return self._digest.hexdigest()

    @property
    def kept(self) -> str:
        """What this Collector has stored, in words."""
        return kept_since(self._replay, self._first_episode)

    @property
    def is_overtaken(self) -> bool:
        """Somebody else has stored episodes since: those that are open here cannot go on."""
        return self._replay.storage.table.next_episode != self._known_episodes

    def begin_anew(self) -> None:
        """Leave the open episodes as they are stored, cut; the next row of each env is a first."""
        self._known_episodes = self._replay.storage.table.next_episode
        self._buffer = EpisodeBuffer(
            self._replay.spec,
            self._num_envs,
            capacity=self._replay.capacity,
            next_episode=self._known_episodes,
        )

    def observe(self, arrival: StepResult) -> None:
        """Begin the rows of what arrived."""
        self._buffer.observe(
            {**arrival.leaves, "reward": arrival.reward},
            is_first=arrival.is_first,
            terminated=arrival.terminated,
            truncated=arrival.truncated,
            env_ids=arrival.env_ids,
            metadata=arrival.metadata,
            owned=True,
        )

    def act(self, chosen: Mapping[str, np.ndarray], env_ids: np.ndarray | None) -> None:
        """Complete the newest rows, and store what is due."""
        self._buffer.act(chosen, env_ids=env_ids)
        if self._buffer.is_due:
            self._store(everything=False)
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self.flush()

    def cut(self, env_ids: Sequence[int] | None = None) -> None:
        """Some envs, all when None, begin anew, and their next episode may not be recorded."""
        self._buffer.cut(env_ids)

    def flush(self) -> None:
        """Store all rows there are."""
        self._store(everything=True)
        self._flushed = time.monotonic()

    def _store(self, *, everything: bool) -> None:
        chunks = self._buffer.take(everything=everything)
        if not chunks:
            return
        self._replay.add(chunks)
        self._known_episodes = self._replay.storage.table.next_episode
        for chunk in chunks:
            self._digest.update(chunk)


def kept_since(replay: SequenceReplayBuffer, first_episode: int) -> str:
    """What a replay holds of the episodes from an id on, in words.

    Of a folder it is what a reader finds there: a write that was interrupted may be stored, though
    it never returned.
    """
    storage = replay.storage
    table = storage.table
    if isinstance(storage, DiskStorage):
        with (
            contextlib.suppress(StepwellError, OSError),
            DiskStorage.open(storage.path, read_only=True) as found,
        ):
            table = found.table
    records = table.records
    is_tail = (records["is_tail"] == 1) & (records["end"] & End.LOST == 0)
    tails = records[is_tail & (records["episode"] >= first_episode)]
    rows = tails["first_row"] + tails["rows"] - tails["head"]
    steps = int(np.maximum(0, rows - (tails["head"] == 0)).sum())
    ended = int((tails["end"] & (End.TERMINATED | End.TRUNCATED) != 0).sum())
    where = "in RAM" if replay.path is None else f"in {replay.path}"
    return f"{steps:,} steps, {ended:,} ended episodes, {where}"
