"""Chunks made of a formula, and a slow, obvious model of what a storage holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepwell.buffers import Chunk, End, Field, Spec, Storage
from stepwell.buffers.storage.chunk_codec import ChunkDecoder

SPEC = Spec(
    (
        Field("observation", "uint8", (12, 8), "zstd"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("extra/memory", "float32", (3,), "raw"),
    ),
    observation="observation",
    action="action",
)

Rows = dict[str, np.ndarray]


def rows_of(episode: int, first: int, count: int, *, pending: bool = False) -> Rows:
    """Rows that tell which they are; the action of a pending last row is still 0."""
    row = np.arange(first, first + count)
    action = (row * 37 + episode) % 1000 + 1
    if pending:
        action[-1] = 0
    frames = np.full((count, 12, 8), episode % 251, np.uint8)
    frames[:, 0, :4] = np.asarray(row, "<u4").reshape(-1, 1).view(np.uint8)
    # Every seventh row is noise, which zstd cannot compress.
    noise = np.random.default_rng(episode)
    for place in np.flatnonzero(row % 7 == 0):
        frames[place, 1:] = noise.integers(0, 256, (11, 8))
    memory = np.stack([row, row * 0.5, np.full(count, -0.0)], axis=1)
    return {
        "observation": frames,
        "action": action,
        "reward": row / 3 if episode % 2 else row.astype(np.float64),
        "extra/memory": memory.astype(np.float32),
    }


def chunk_of(
    episode: int, first: int = 0, count: int = 5, end: End = End.NONE, stream: int = 0
) -> Chunk:
    fields = rows_of(episode, first, count, pending=bool(end & End.PENDING))
    metadata = {"seed": episode} if first == 0 else {}
    return Chunk(episode, stream, first, end, fields, metadata)


@dataclass
class Recording:
    """Makes chunks as a collector would: every stream plays one episode after the other."""

    next_episode: int = 0
    open: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def chunk(self, stream: int, new_rows: int, end: End) -> Chunk:
        """The next chunk of a stream, with ``new_rows >= 1`` rows that were not there before."""
        if stream not in self.open:
            self.open[stream] = (self.next_episode, 0)
            self.next_episode += 1
        episode, first = self.open[stream]
        chunk = chunk_of(episode, first, new_rows, end, stream)
        self.open[stream] = (episode, first + new_rows - bool(end & End.PENDING))
        if end.is_final:
            del self.open[stream]
        return chunk


@dataclass(frozen=True)
class Held:
    """The rows of one episode that are held, from ``head`` on."""

    head: int
    rows: int
    end: End
    is_settled: bool  # its last row has its action


def held_by(chunks: Iterable[Chunk]) -> dict[int, Held]:
    """What is held of each episode when these chunks are, the oldest first."""
    held: dict[int, Held] = {}
    for chunk in chunks:
        head = held[chunk.episode].head if chunk.episode in held else chunk.first_row
        rows = chunk.first_row + chunk.rows - head
        settled = not chunk.end & End.PENDING
        held[chunk.episode] = Held(head, rows, chunk.end & ~End.PENDING, settled)
    return held


def windows_of(chunks: Iterable[Chunk], length: int) -> list[tuple[int, int]]:
    """All windows of ``length`` rows: episode and first row."""
    return [
        (episode, start)
        for episode, held in held_by(chunks).items()
        for start in range(held.head, held.head + held.rows - length + 1)
    ]


def read_episode(storage: Storage, tail: int) -> Rows:
    """The held rows of the episode whose last chunk stands at a position."""
    reader = ChunkDecoder(storage.spec)
    parts: list[Rows] = []
    position = tail
    while position >= 0:
        record = storage.table.record(position)
        buffer, origin = storage.payload(position)
        part: Rows = {}
        for place, each in enumerate(storage.spec.fields):
            part[each.name] = np.empty((record.rows, *each.shape), each.numpy_dtype)
            if record.rows:
                reader.read(buffer, origin, record.stored_rows, place, 0, part[each.name])
        parts.insert(0, part)
        position = record.previous
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tails(storage: Storage) -> dict[int, int]:
    """Position of the last chunk of every episode."""
    table = storage.table
    at = np.flatnonzero(table.records["is_tail"])
    return dict(zip(table.records["episode"][at].tolist(), (at + table.base).tolist(), strict=True))


def assert_holds(storage: Storage, chunks: Sequence[Chunk]) -> None:
    """A storage holds exactly the rows of these chunks, bit by bit."""
    expected = held_by(chunks)
    found = tails(storage)
    assert found.keys() == expected.keys()
    for episode, held in expected.items():
        record = storage.table.record(found[episode])
        assert record.head == held.head
        assert End(record.end) & ~End.PENDING == held.end
        true = rows_of(episode, held.head, held.rows, pending=not held.is_settled)
        # Noise depends on all rows of a chunk, so what was really stored is compared.
        assert_same_rows(read_episode(storage, found[episode]), stored_rows(chunks, episode), true)


def stored_rows(chunks: Sequence[Chunk], episode: int) -> Rows:
    """The rows of an episode, joined by hand: a pending row gives way to the row that follows."""
    joined: dict[int, Rows] = {}
    for chunk in chunks:
        if chunk.episode == episode:
            for place in range(chunk.rows):
                row = {name: rows[place] for name, rows in chunk.fields.items()}
                joined[chunk.first_row + place] = row
    return {name: np.array([row[name] for row in joined.values()]) for name in chunk_names(chunks)}


def chunk_names(chunks: Sequence[Chunk]) -> list[str]:
    return list(chunks[0].fields)


def assert_same_rows(got: Mapping[str, np.ndarray], want: Rows, formula: Rows) -> None:
    for name, rows in want.items():
        assert got[name].dtype == rows.dtype
        assert got[name].shape == rows.shape
        assert got[name].tobytes() == rows.tobytes(), name
    assert got["action"].tolist() == formula["action"].tolist()
    assert got["reward"].tolist() == formula["reward"].tolist()


def read_metadata(storage: Storage, position: int) -> Mapping[str, object]:
    return ChunkDecoder(storage.spec).metadata(*storage.payload(position))


def same_records(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal but for where a stream's rows are counted from: a table made anew begins with 0."""
    mine, theirs = one.copy(), other.copy()
    for each in (mine, theirs):
        each["stream_row"] -= each["stream_head"]
        each["stream_head"] = 0
    return bool(np.array_equal(mine, theirs))
