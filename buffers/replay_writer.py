"""Gathers rows into chunks of episodes and adds these to a replay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from stepwell.buffers.digest import Digest
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.episode_buffer import EpisodeBuffer
from stepwell.buffers.errors import StepwellError
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.protocol import Storage

__all__ = ["ReplayWriter", "WrittenReplay", "kept_since"]


class WrittenReplay(Protocol):
    """The part of a `SequenceReplayBuffer` that its writers use.

    That class has a method that makes a writer, and no two files import each other.
    """

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM."""
        ...

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most; None keeps everything."""
        ...

    @property
    def storage(self) -> Storage:
        """The storage of the chunks."""
        ...

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        ...

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here."""
        ...

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks of episodes; when it returns they are durable."""
        ...


class ReplayWriter:
    """Gathers the rows of one Collector into chunks of episodes and adds these to the replay.

    Args:
        replay: Stores the chunks; it is bound to the rows' Spec, and its newest session is that of
            these rows.
        num_envs: Number of envs N.
        flush_seconds: No row waits longer than this to be stored.
        known_stacks: The envs are known to stack frames right.
    """

    def __init__(
        self,
        replay: WrittenReplay,
        num_envs: int,
        flush_seconds: float,
        *,
        known_stacks: bool = False,
    ) -> None:
        self._replay = replay
        self._known_stacks = known_stacks
        self._num_envs = num_envs
        self._digest = Digest()
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._first_episode = replay.storage.index.next_episode
        self._session = len(replay.sessions) - 1
        self._start([0] * num_envs)

    @property
    def digest(self) -> str:
        """Fingerprint of all rows stored so far."""
        return self._digest.hexdigest()

    @property
    def kept(self) -> str:
        """A summary of what this Collector has stored."""
        return kept_since(self._replay, self._first_episode)

    @property
    def is_outdated(self) -> bool:
        """Another writer has stored episodes since: the open ones here cannot be continued."""
        return self._replay.storage.index.next_episode != self._known_episodes

    def start_over(self) -> None:
        """Leave the open episodes as stored, which cuts them; each env's next row is a first."""
        self._start(self._buffer.stream_episodes)

    def _start(self, stream_episodes: Sequence[int]) -> None:
        self._known_episodes = self._replay.storage.index.next_episode
        self._buffer = EpisodeBuffer(
            self._replay.spec,
            self._num_envs,
            capacity=self._replay.capacity,
            next_episode=self._known_episodes,
            stream_episodes=stream_episodes,
            known_stacks=self._known_stacks,
        )

    def observe(
        self,
        leaves: Mapping[str, np.ndarray],
        reward: np.ndarray,
        *,
        is_first: np.ndarray | None = None,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        env_ids: np.ndarray | None = None,
        metadata: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        """Begin rows with what the envs returned; metadata of episodes get the session's index.

        Arguments are those of `EpisodeBuffer.observe`; the caller does not write into them again.
        """
        if metadata:
            session = self._session
            metadata = {env: {"session": session, **facts} for env, facts in metadata.items()}
        self._buffer.observe(
            {**leaves, "reward": reward},
            is_first=is_first,
            terminated=terminated,
            truncated=truncated,
            env_ids=env_ids,
            metadata=metadata,
            owned=True,
        )

    def act(self, leaves: Mapping[str, np.ndarray], env_ids: np.ndarray | None) -> None:
        """Complete the newest rows with actions, and store the chunks that are due."""
        self._buffer.act(leaves, env_ids=env_ids)
        if self._buffer.is_due:
            self._store(everything=False)
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self.flush()

    def cut(self, env_ids: Sequence[int] | None = None) -> None:
        """Cut the open episodes of some envs, all when None; the next row of each is a first."""
        self._buffer.cut(env_ids)

    def flush(self) -> None:
        """Store all rows."""
        self._store(everything=True)
        self._flushed = time.monotonic()

    def _store(self, *, everything: bool) -> None:
        chunks = self._buffer.take(everything=everything)
        if not chunks:
            return
        self._replay.add(chunks)
        self._known_episodes = self._replay.storage.index.next_episode
        for chunk in chunks:
            self._digest.update(chunk)


def kept_since(replay: WrittenReplay, first_episode: int) -> str:
    """A summary of the episodes in a replay from an id on.

    A folder is read again: a write that was interrupted may be stored though it did not return.
    """
    storage = replay.storage
    index = storage.index
    if isinstance(storage, DiskStorage):
        with (
            contextlib.suppress(StepwellError, OSError),
            DiskStorage.open(storage.path, read_only=True) as stored,
        ):
            index = stored.index
    records = index.records
    is_tail = (records["is_tail"] == 1) & (records["end"] & End.LOST == 0)
    tails = records[is_tail & (records["episode"] >= first_episode)]
    rows = tails["first_row"] + tails["rows"] - tails["head"]
    steps = int(np.maximum(0, rows - (tails["head"] == 0)).sum())
    ended = int((tails["end"] & (End.TERMINATED | End.TRUNCATED) != 0).sum())
    where = "in RAM" if replay.path is None else f"in {replay.path}"
    return f"{steps:,} steps, {ended:,} ended episodes, {where}"
