"""The rows that a store must hold after a crash, as a plain list, and the comparison with them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pytest

from stepwell.buffers import Chunk, DiskStorage, End, StepwellError
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.provenance.chains import chains_of
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.disk import storage as disk_storage
from stepwell.buffers.storage.disk.appender import SEGMENTS
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.writer import SegmentWriter
from stepwell.buffers.storage.encoded_chunk import EncodedChunk
from stepwell.buffers.storage.ram import max_chunk_rows
from stepwell.buffers.testing import SPEC, Recording, rows_of


class Wrong(AssertionError):
    """The store holds wrong rows, or an operation failed. Other exceptions are errors of a test."""


def require(claim: bool, *facts: object) -> None:
    if not claim:
        raise Wrong(" ".join(map(str, facts)))


@contextmanager
def must_succeed(what: str) -> Iterator[None]:
    """Raise `Wrong` if the block raises: it must succeed."""
    try:
        yield
    except (StepwellError, OSError, ValueError) as error:
        raise Wrong(f"{what}: {type(error).__name__}: {error}") from error


class Shape(NamedTuple):
    """Settings with which a store is made."""

    segment_bytes: int
    capacity: int | None = None
    capacity_bytes: int | None = None

    def create(self, path: Path, files: Files) -> DiskStorage:
        with pytest.MonkeyPatch.context() as patch:
            # Else a ring of bytes would be full only after hundreds of chunks.
            patch.setattr(disk_storage, "_MIN_CAPACITY_BYTES", 1 << 16)
            return DiskStorage.create(path, SPEC, **self._asdict(), files=files)


APPEND, APPEND_LARGE = Shape(16_000), Shape(60_000)
RING, RING_BYTES = Shape(30_000, capacity=160), Shape(30_000, capacity_bytes=1 << 17)
SHAPES = (APPEND, RING, APPEND_LARGE, RING_BYTES)

_ENCODER = ChunkEncoder(SPEC)
_ENDS = (End.NONE, End.NONE, End.PENDING, End.PENDING, End.TERMINATED, End.TRUNCATED)


class Plan:
    """Random flushes of one session of a writer, the same for the same seed."""

    def __init__(self, seed: object, next_episode: int) -> None:
        self._random = random.Random(repr(seed))
        self._recording = Recording(next_episode)
        self._session = next_episode
        self._facts: dict[int, dict[str, object]] = {}
        self._numbers = Counter[int]()

    def flush(self) -> list[Chunk]:
        """One to three chunks, now and then so many that they fill more than one segment."""
        rng = self._random
        count = rng.choice((1, 1, 1, 2, 2, 3, 3, 7))
        chunks = [
            self._recording.chunk(rng.randrange(4), rng.randrange(1, 18), rng.choice(_ENDS))
            for _ in range(count)
        ]
        return [replace(chunk, metadata=self._facts_of(chunk)) for chunk in chunks]

    def _facts_of(self, chunk: Chunk) -> dict[str, object]:
        """The metadata of a chunk's episode, of which one in three has a seed."""
        if chunk.episode not in self._facts:
            number = self._numbers[chunk.stream]
            facts: dict[str, object] = {"session": self._session, "stream_episode": number}
            self._facts[chunk.episode] = facts | ({} if number % 3 else {"seed": number})
            self._numbers[chunk.stream] += 1
        return self._facts[chunk.episode]

    @property
    def next_episode(self) -> int:
        return self._recording.next_episode


class Known(NamedTuple):
    """A chunk and the bytes that it is stored as."""

    chunk: Chunk
    data: bytes


def store_flush(storage: DiskStorage, flush: Sequence[Chunk]) -> None:
    """Store a flush; every second one is encoded before, and stored as it is."""
    if flush[0].episode % 2:
        storage.add_encoded([EncodedChunk.of(_ENCODER, chunk) for chunk in flush])
    else:
        storage.add(flush)


@dataclass
class Truth:
    """The rows stored for certain, and the flush that may be there in part."""

    shape: Shape  # how the store was made
    # Every chunk that is stored, evicted ones too: their places are their positions.
    stored: list[Known] = field(default_factory=list[Known])
    # Chunks of the flush that did not return yet.
    under_way: list[Known] = field(default_factory=list[Known])
    # Numbers of these that were to be committed together, as far as known.
    parts: list[int] = field(default_factory=list[int])
    base: int = 0  # a position that eviction has reached for certain

    def begin(self, flush: Sequence[Chunk]) -> None:
        most = max_chunk_rows(self.shape.capacity)
        parts = [part for chunk in flush for part in chunk.split(most)]
        self.under_way = [Known(part, b"".join(_ENCODER.encode(part))) for part in parts]
        self.parts = []

    def end(self) -> None:
        self.stored += self.under_way
        self.under_way, self.parts = [], []

    def copy(self) -> Truth:
        return Truth(
            self.shape, list(self.stored), list(self.under_way), list(self.parts), self.base
        )

    @property
    def next_episode(self) -> int:
        return max((each.chunk.episode + 1 for each in self.stored), default=0)

    def compare(self, store: DiskStorage, *, decode: bool = False) -> None:
        """A store holds all that it must, at most the flush under way extra, bit by bit."""
        # With `decode` the rows are compared as well, as a reader gets them.
        table = store.index
        extra = table.base + len(table) - len(self.stored)
        allowed = (0, *accumulate(self.parts))
        require(extra in allowed, f"{extra} chunks more than stored, expected one of {allowed}")
        chunks = self.stored + self.under_way[:extra]
        self._compare_eviction(store)
        if table.base:
            _compare_chains(store, [each.chunk for each in chunks])
        _compare_records(table, [each.chunk for each in chunks])
        for position in range(table.base, len(chunks)):
            buffer, origin = store.payload(position)
            data = chunks[position].data
            found = memoryview(cast("bytes", buffer))[origin : origin + len(data)]
            require(found == data, f"the bytes of chunk {position} are wrong")
            if decode:
                _compare_rows(store, position, chunks[position].chunk)

    def settle(self, store: DiskStorage) -> None:
        """Compare with an open writer: what it found is stored for good from now on."""
        self.compare(store)
        self.stored += self.under_way[: store.index.base + len(store.index) - len(self.stored)]
        self.under_way, self.parts = [], []
        self.base = store.index.base

    def _compare_eviction(self, store: DiskStorage) -> None:
        """The oldest episodes are evicted, and no more of them than the capacity requires."""
        table, shape = store.index, self.shape
        require(table.base >= self.base, f"evicted chunks are back: {table.base} < {self.base}")
        if shape.capacity is None and shape.capacity_bytes is None:
            require(table.base == 0, f"{table.base} chunks are gone from a store without capacity")
        if table.base and shape.capacity is not None:
            # A segment is closed at a sixteenth of the capacity, and evicted as a whole.
            require(table.steps >= 0.8 * shape.capacity, f"only {table.steps} steps are left")
        if table.base and shape.capacity_bytes is not None:
            # One file more than needed may go, and one that was full length is cut off after that.
            least = shape.capacity_bytes - 3 * (shape.capacity_bytes // SEGMENTS + 16_384)
            require(store.nbytes >= least, f"only {store.nbytes} bytes are left")


def _compare_records(table: ChunkIndex, chunks: Sequence[Chunk]) -> None:
    """Order, ids and links; ids of rows count on through all sessions."""
    row_ids = [0, *accumulate(chunk.rows for chunk in chunks)]
    tails: dict[int, int] = {}
    for position in range(table.base, len(chunks)):
        chunk, record = chunks[position], table.record(position)
        before = tails.get(chunk.episode, -1)
        require(
            (record.episode, record.stream, record.first_row, record.stored_rows, record.end)
            == (chunk.episode, chunk.stream, chunk.first_row, chunk.rows, chunk.end),
            f"chunk {position} is {record}",
        )
        require(record.row_id == row_ids[position], f"row id of chunk {position}: {record}")
        require(record.previous == before, f"chunk {position} follows {before}: {record}")
        tails[chunk.episode] = position
    found = np.flatnonzero(table.records["is_tail"]) + table.base
    require(found.tolist() == sorted(tails.values()), f"last chunks: {found}")
    require(table.next_row_id == row_ids[-1], f"next row id {table.next_row_id}")
    steps = {chunk.episode: chunk.first_row + chunk.rows - 1 for chunk in chunks}
    require(table.total_steps == sum(steps.values()), f"total steps {table.total_steps}")
    used = max(steps, default=-1)
    require(table.next_episode == used + 1, f"next episode {table.next_episode}, used {used}")


def _compare_chains(store: DiskStorage, chunks: Sequence[Chunk]) -> None:
    """Every stored episode is reached by its chain, with the right actions, if that is stored."""
    # `chunks` are all that were ever stored.
    ends: dict[tuple[object, ...], Chunk] = {}  # the last chunk of each episode
    for chunk in chunks:
        ends[_key(chunk.stream, chunk.metadata)] = chunk
    chains, unreachable = chains_of(store)
    for chain in chains:
        for play in chain.plays:
            chunk = ends[_key(chain.stream, play.metadata)]
            found = np.concatenate([np.zeros(0, np.int64), *(p["action"] for p in play.actions())])
            expected = rows_of(chunk.episode, 0, play.steps)["action"]
            require(found.tolist() == expected.tolist(), f"actions of episode {chunk.episode}")
    heads = {_key(each.stream, each.metadata): each.first_row for each in stored_episodes(store)}
    for episode, why in unreachable:
        key = session, stream, number = _key(episode.stream, episode.metadata)
        while heads.get(key) == 0 and "seed" not in ends[key].metadata:
            number = cast("int", number) - 1
            key = session, stream, number
            if not ends[key].end.is_final:
                break  # it was cut
        else:
            require(heads.get(key) != 0, f"episode {episode.id} is not reached: {why}")


def _key(stream: int, metadata: Mapping[str, object]) -> tuple[object, ...]:
    return metadata["session"], stream, metadata["stream_episode"]


def _compare_rows(store: DiskStorage, position: int, chunk: Chunk) -> None:
    reader, (buffer, origin) = ChunkDecoder(store.spec), store.payload(position)
    for number, each in enumerate(store.spec.fields):
        rows = chunk.fields[each.name]
        got = np.empty_like(rows)
        reader.read(buffer, origin, chunk.rows, number, 0, got)
        require(got.tobytes() == rows.tobytes(), f"{each.name} of chunk {position} is wrong")
    require(store.metadata(position) == chunk.metadata, f"metadata of chunk {position} is wrong")


@contextmanager
def watched_commits(parts: list[int]) -> Iterator[None]:
    """List how many chunks of a flush are to be committed together, before they are."""
    commit = SegmentWriter.commit

    def watched(self: SegmentWriter, chunks: Sequence[EncodedChunk], table: ChunkIndex) -> None:
        parts.append(len(chunks))
        commit(self, chunks, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentWriter, "commit", watched)
        yield
