"""A shard of a replay: the object in an actor that holds the rows of some groups."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepwell.buffers import SequenceReplayBuffer, Spec
from stepwell.buffers.digest import Digest, DigestState
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import StoreLocked
from stepwell.buffers.sampling.batch import Part
from stepwell.buffers.sampling.requests import Request
from stepwell.buffers.sampling.sampler import Sampler
from stepwell.buffers.spec import Codec
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.encoded_chunk import EncodedChunk, unpack_chunks
from stepwell.collectors.distributed.delivery import GroupStreams
from stepwell.collectors.distributed.messages import Payload

__all__ = ["ShardHost", "ShardOptions", "ShardState", "shard_folder"]

_LOCK_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_MOST_REQUESTS = 16


class ShardOptions(NamedTuple):
    """The options of a shard; those of all shards of a replay differ in the number alone.

    Args:
        number: Number of the shard, from 0.
        shards: Number of shards.
        path: Folder of all shards; None keeps the rows in RAM.
        capacity: Steps to keep at most, over all shards.
        capacity_bytes: Bytes to use at most, over all shards.
        codecs: Codecs of fields by name.
        threads: Threads that copy and decompress a large batch.
    """

    number: int
    shards: int
    path: str | None
    capacity: int | None
    capacity_bytes: int | None
    codecs: Mapping[str, Codec]
    threads: int | None = 1


class ShardState(NamedTuple):
    """The contents of a shard, in numbers.

    Args:
        steps: Env steps stored now.
        total_steps: Env steps ever stored, including evicted ones.
        episodes: Stored episodes, including unfinished and cut ones.
        nbytes: Bytes of RAM or disk that they take.
        pid: Process of the actor, on its machine.
        sessions: Facts about the runs that wrote here, the oldest first.
        spec: The fields of every row; None as long as they are not known.
    """

    steps: int
    total_steps: int
    episodes: int
    nbytes: int
    pid: int
    sessions: tuple[Mapping[str, object], ...]
    spec: Spec | None


class _Newest(NamedTuple):
    """The newest stored rows of a stream, where an earlier process has stored them.

    Args:
        episode: Id of their episode in the store.
        name: Session and number of the episode in its stream, which no other one there has.
        stop: Row after the last one.
        end: Flags of the last one.
    """

    episode: int
    name: tuple[int, int]
    stop: int
    end: End


class ShardHost:
    """Holds the rows of some groups, in RAM or in a folder, and draws parts of batches.

    It lives in an actor; its methods are called one after the other.

    Args:
        options: Its options.

    Raises:
        StoreLocked: Another process writes into the folder, and has not ended within 30 s.
        ValueError: The folder is that of another number of shards.
    """

    def __init__(self, options: ShardOptions) -> None:
        self._options = options
        path = None if options.path is None else shard_folder(options.path, options.number)
        parts = (
            None if most is None else math.ceil(most / options.shards)
            for most in (options.capacity, options.capacity_bytes)
        )
        capacity, capacity_bytes = parts
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._replay = SequenceReplayBuffer(
                    path, capacity=capacity, capacity_bytes=capacity_bytes, codecs=options.codecs
                )
                break
            except StoreLocked:  # by the process that this one replaces
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
        stored = [one["shards"] for one in self._replay.sessions if "shards" in one]
        if stored and stored[-1] != options.shards:
            self._replay.close()
            raise ValueError(
                f"{path}: expected a part of {options.shards} shards, got one of {stored[-1]}; "
                f"pass Shards({stored[-1]}), or choose another folder"
            )
        self._sampler: Sampler | None = None
        self._requests: dict[int, Request] = {}
        self._streams: GroupStreams | None = None
        self._found: dict[int, _Newest] = self._newest_rows()

    def state(self) -> ShardState:
        """The contents of the shard, in numbers."""
        replay = self._replay
        return ShardState(
            len(replay),
            replay.steps,
            replay.episodes,
            replay.nbytes,
            os.getpid(),
            tuple(replay.sessions),
            replay.spec if replay.is_bound else None,
        )

    def bind(self, spec: Spec, sessions: Sequence[Mapping[str, object]]) -> ShardState:
        """Set the fields of a row, and note sessions.

        Args:
            spec: The fields.
            sessions: Facts about all sessions, of which those that are noted already come first.

        Raises:
            SpecMismatch: The shard holds other rows, or rows of other envs.
        """
        for facts in sessions[len(self._replay.sessions) :]:
            self._replay.bind(spec, {**facts, "shards": self._options.shards})
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = Sampler(self._replay.storage, self._options.threads, 0.0)
        return self.state()

    def add(
        self, group: int, num_envs: int, session: int | None, payload: Payload
    ) -> tuple[int, int, int, int]:
        """Store the chunks of a piece; those that are stored already are left out.

        Args:
            group: Number of the group.
            num_envs: Number of envs N of a group.
            session: Number of their session here; None where it is that of the chunks.
            payload: The payload of the piece.

        Returns:
            The first four fields of the `state` afterwards.

        Raises:
            StoreCorrupt: The chunks are damaged, or hold other fields.
            StoreFailed: The disk is full or failed.
        """
        if self._streams is None:
            self._streams = GroupStreams(num_envs)
        chunks = unpack_chunks(payload.chunks, self._replay.spec)
        new = [chunk for chunk in chunks if not self._is_stored(chunk, group * num_envs, session)]
        if new:
            self._follow_episodes(new, group * num_envs, session)
            free = self._replay.storage.index.next_episode
            self._replay.add_encoded(self._streams.placed(new, group, free, session))
        for chunk in new:
            self._found.pop(group * num_envs + chunk.stream, None)
        return self.state()[:4]

    def remember(self, number: int, request: Request) -> None:
        """Keep a request under a number, so that functions in it are the same in each draw."""
        self._requests[number] = request
        if len(self._requests) > _MOST_REQUESTS:
            del self._requests[min(self._requests)]

    def mass(self, number: int) -> int:
        """See `Sampler.mass`; of a remembered request."""
        return self._bound_sampler().mass(self._requests[number])

    def sample(self, number: int, count: int, seed: int) -> Part:
        """Some items of a remembered request; see `Sampler.part`."""
        rng = np.random.default_rng(seed)
        return self._bound_sampler().part(self._requests[number], count, rng)

    def digest(self) -> DigestState:
        """State of the fingerprint of all rows stored now."""
        digest = Digest()
        for episode in self._replay.iter_episodes():
            place = episode.id, episode.stream, episode.first_row, episode.end
            digest.update(Chunk(*place, episode.fields))
        return digest.state

    def close(self) -> None:
        """Release files and locks."""
        if self._sampler is not None:
            self._sampler.close()
        self._replay.close()

    def _bound_sampler(self) -> Sampler:
        assert self._sampler is not None  # `bind` comes first
        return self._sampler

    def _newest_rows(self) -> dict[int, _Newest]:
        """The newest rows of each stream in the folder."""
        found: dict[int, _Newest] = {}
        if not self._replay.is_bound:
            return found
        storage = self._replay.storage
        if isinstance(storage, DiskStorage):
            storage.continue_episodes()
        records = storage.index.records
        streams, from_last = np.unique(records["stream"][::-1], return_index=True)
        for stream, place in zip(streams.tolist(), from_last.tolist(), strict=True):
            position = storage.index.base + len(records) - 1 - place
            record = storage.index.record(position)
            found[stream] = _Newest(
                record.episode,
                _name_in(storage.metadata(position), None),
                record.first_row + record.rows,
                End(record.end),
            )
        return found

    def _is_stored(self, chunk: EncodedChunk, first: int, session: int | None) -> bool:
        """Test whether an earlier process has stored a chunk, and died before it could say so.

        The chunks of a stream come in order, so it is enough to compare with the newest rows.
        """
        found = self._found.get(first + chunk.stream)
        if found is None:
            return False
        name, there = _name_in(chunk.metadata, session), found.name
        if name != there:
            # Of one session an earlier episode is stored; a session's number only grows.
            return name < there
        stop = chunk.first_row + chunk.rows
        return stop < found.stop or (
            stop == found.stop and (chunk.end == found.end or not found.end & End.PENDING)
        )

    def _follow_episodes(
        self, chunks: Sequence[EncodedChunk], first: int, session: int | None
    ) -> None:
        """Let chunks continue the open episodes that an earlier process has stored."""
        assert self._streams is not None
        for chunk in chunks:
            found = self._found.get(first + chunk.stream)
            if found is not None and _name_in(chunk.metadata, session) == found.name:
                self._streams.continue_episode(first + chunk.stream, chunk.episode, found.episode)


def shard_folder(path: str, number: int) -> Path:
    """Folder of a shard within that of all of them."""
    return Path(path) / f"shard-{number:05d}"


def _name_in(metadata: Mapping[str, object], session: int | None) -> tuple[int, int]:
    """Session, where it is not given, and number in its stream of an episode; -1 for none."""
    facts = metadata.get("session") if session is None else session, metadata.get("stream_episode")
    number, place = (fact if isinstance(fact, int) else -1 for fact in facts)
    return number, place
