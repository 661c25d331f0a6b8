"""A slow, obvious model of what a storage holds, for the chunks of `stepwell.buffers.testing`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepwell.buffers import Chunk, End
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import EpisodeTails, Windows

KINDS = (Windows(2), Windows(3, 1, 2, is_across=True), EpisodeTails(2, 1))
"""Kinds of items that are counted in different ways."""


@dataclass
class Kept:
    """One stored chunk."""

    segment: int
    chunk: Chunk
    is_lost: bool = False


@dataclass(frozen=True)
class Run:
    """Consecutive rows of an episode that are held without a gap, from ``head`` on."""

    episode: int
    head: int
    stop: int
    is_settled: bool  # its last row has its action

    def windows(self, length: int, context: int = 0) -> list[tuple[int, int]]:
        """Windows of ``length`` rows, with stored context or at the begin of the episode."""
        return [
            (self.episode, start)
            for start in range(self.head, self.stop - length + 1)
            if self.head == 0 or start - context >= self.head
        ]


def runs_of(kept: Iterable[Kept]) -> list[Run]:
    """The runs of rows that these chunks hold, chunk by chunk."""
    runs: dict[int, Run] = {}
    done: list[Run] = []
    for each in kept:
        chunk = each.chunk
        run = runs.pop(chunk.episode, None)
        if each.is_lost:
            done += [run] if run else []
            continue
        head = chunk.first_row
        if run and chunk.first_row == run.stop - (not run.is_settled):
            head = run.head
        elif run:
            done.append(run)
        stop, is_settled = chunk.first_row + chunk.rows, not chunk.end & End.PENDING
        runs[chunk.episode] = Run(chunk.episode, head, stop, is_settled)
    return done + list(runs.values())


def same_records(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal except for the first row number of a stream: a new table begins with 0."""
    mine, theirs = one.copy(), other.copy()
    for each in (mine, theirs):
        each["stream_row"] -= each["stream_head"]
        each["stream_head"] = 0
    return bool(np.array_equal(mine, theirs))


def assert_same_index(one: ChunkIndex, other: ChunkIndex) -> None:
    """The same records, counters and items."""
    assert np.array_equal(one.records, other.records)
    assert (one.base, one.counters) == (other.base, other.counters)
    assert (one.steps, one.episodes) == (other.steps, other.episodes)
    for kind in KINDS:
        mine, others = one.items(kind), other.items(kind)
        numbers = np.arange(mine.total)
        assert mine.total == others.total
        assert np.array_equal(mine.locate(numbers), others.locate(numbers))
