"""A slow, obvious model of what a storage holds, for the chunks of `stepwell.buffers.testing`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepwell.buffers import Chunk, End, Storage


@dataclass(frozen=True)
class Held:
    """The rows of one episode that are held, from ``head`` on."""

    head: int
    rows: int
    end: End
    is_settled: bool  # its last row has its action


def held_by(chunks: Iterable[Chunk]) -> dict[int, Held]:
    """The parts of each episode that these chunks hold, the oldest first."""
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


def tails(storage: Storage) -> dict[int, int]:
    """Position of the last chunk of every episode."""
    index = storage.index
    at = np.flatnonzero(index.records["is_tail"])
    return dict(zip(index.records["episode"][at].tolist(), (at + index.base).tolist(), strict=True))


def same_records(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal except for the first row number of a stream: a new table begins with 0."""
    mine, theirs = one.copy(), other.copy()
    for each in (mine, theirs):
        each["stream_row"] -= each["stream_head"]
        each["stream_head"] = 0
    return bool(np.array_equal(mine, theirs))
