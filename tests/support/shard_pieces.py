"""Rows of groups, as they send them, with their episodes as the slow model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stepwell.buffers import Chunk, EncodedChunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.storage.chunk_codec import ChunkEncoder
from stepwell.buffers.storage.encoded_chunk import pack_chunks, unpack_chunks
from stepwell.collectors.distributed.delivery import GroupStreams
from stepwell.collectors.distributed.messages import Payload
from stepwell.collectors.distributed.shards import ShardedReplay

__all__ = ["SPEC", "Episode", "Rows", "Sent", "labels_of", "mirror_of"]

SPEC = Spec(
    (
        Field("observation", "int64", (3,), "narrow"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "raw"),
    ),
    "observation",
    "action",
)


class Episode(NamedTuple):
    """An episode of the model: rows 0 to ``rows - 1`` are stored."""

    stream: int
    number: int
    rows: int
    end: End


class Sent(NamedTuple):
    """A piece of a group."""

    group: int
    payload: Payload


@dataclass
class Rows:
    """Makes rows of groups of envs; each row's observation is (stream, episode, row).

    Args:
        groups: Number of groups.
        num_envs: Envs of a group.
        seed: Seed of the lengths of episodes and chunks.
        longest: Rows of the longest episode.
        session: Session of the rows.
    """

    groups: int
    num_envs: int
    seed: int = 0
    longest: int = 12
    session: int = 0
    episodes: dict[tuple[int, int], Episode] = field(default_factory=dict[tuple[int, int], Episode])
    """All episodes so far, by stream and number."""

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._encoder = ChunkEncoder(SPEC)
        self._next_own = [0] * self.groups
        streams = self.groups * self.num_envs
        self._open: dict[int, tuple[int, int, int]] = {}  # own id, first row, length
        self._numbers = [0] * streams

    def pieces(self, count: int) -> Iterator[Sent]:
        """Pieces of random groups, each in the group's order."""
        for _ in range(count):
            group = int(self._rng.integers(self.groups))
            chunks: list[EncodedChunk] = []
            for env in range(self.num_envs):
                for _ in range(int(self._rng.integers(0, 3))):
                    chunks.append(self._chunk(group, env))
            yield Sent(group, Payload(pack_chunks(chunks)))

    def _chunk(self, group: int, env: int) -> EncodedChunk:
        rng, stream = self._rng, group * self.num_envs + env
        if stream not in self._open:
            length = int(rng.integers(2, self.longest + 1))
            self._open[stream] = self._next_own[group], 0, length
            self._next_own[group] += 1
        own, first, length = self._open[stream]
        number = self._numbers[stream]
        # A chunk that ends inside of the episode has a pending last row, which comes again.
        stop = int(rng.integers(first + 2, length + 2)) if first + 2 <= length else length
        stop = min(stop, length)
        rows = np.arange(first, stop)
        if stop == length:
            end = End.TERMINATED if rng.random() < 0.7 else End.TRUNCATED
            del self._open[stream]
            self._numbers[stream] += 1
        else:
            end = End.PENDING
            self._open[stream] = own, stop - 1, length
        fields = {
            "observation": np.stack(
                [np.full(len(rows), stream), np.full(len(rows), number), rows], 1
            ).astype(np.int64),
            "action": rows % 4,
            "reward": rows / 8,
        }
        self.episodes[stream, number] = Episode(stream, number, stop, end)
        facts: dict[str, object] = {
            "session": self.session,
            "stream_episode": number,
            "is_even": number % 2 == 0,
        }
        return EncodedChunk.of(self._encoder, Chunk(own, env, first, end, fields, facts))

    def send(self, replay: ShardedReplay, count: int, *, as_reference: bool = False) -> list[Sent]:
        """Send pieces to the shards."""
        sent = list(self.pieces(count))
        for group, payload in sent:
            rows = replay._engine.share(payload) if as_reference else payload
            replay.add(group, self.num_envs, rows)
        return sent

    @property
    def steps(self) -> int:
        """Env steps so far."""
        return sum(episode.rows - 1 for episode in self.episodes.values())


def mirror_of(sent: list[Sent], num_envs: int) -> SequenceReplayBuffer:
    """One replay of the same rows."""
    mirror = SequenceReplayBuffer(seed=0)
    mirror.bind(SPEC, {})
    streams = GroupStreams(num_envs)
    for group, payload in sent:
        chunks = unpack_chunks(payload.chunks, SPEC)
        if chunks:
            free = mirror.storage.index.next_episode
            mirror.add_encoded(streams.placed(chunks, group, free))
    return mirror


def labels_of(observation: Any) -> list[tuple[int, int, int]]:
    """(stream, episode, row) of each observation [B, 3]."""
    return [(stream, episode, row) for stream, episode, row in observation.tolist()]
