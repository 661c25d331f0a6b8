"""A large store is written and followed at the cost of a small one: work is counted, not timed."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import Chunk, DiskStorage, End, MemoryStorage
from stepwell.buffers.sampling.draws import ItemKinds
from stepwell.buffers.sampling.priorities import PriorityIndex
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import Windows
from stepwell.buffers.testing import SPEC, chunk_of

FEW, MANY = 300, 3_000
# Larger numbers are stored in more bytes. A call, or a byte, for each chunk would be 2,700 more.
MORE_CALLS, MORE_BYTES = 100, 1_000


class Work(NamedTuple):
    """The work of a call: functions that are called, and bytes allocated at once at most."""

    calls: int
    nbytes: int


def work_of(call: Callable[[], object]) -> Work:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        call()
        return Work(calls, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def least(works: list[Work]) -> Work:
    """Without what is done rarely, such as the doubling of an array."""
    return Work(*map(min, zip(*works, strict=True)))


def expect_equal(few: Work, many: Work) -> None:
    assert abs(few.calls - many.calls) < MORE_CALLS
    assert abs(few.nbytes - many.nbytes) < MORE_BYTES


def filled(storage: Any, chunks: int) -> Any:
    """Store episodes of three chunks from four envs that are stepped together."""
    storage.add([placed(place) for place in range(chunks)])
    return storage


END = (End.NONE, End.NONE, End.TERMINATED)


def added(storage: Any) -> Callable[[], None]:
    """Adds the first and the last chunk of an episode whose id was passed over."""
    index = storage.index
    first = index.next_episode

    def add() -> None:
        nonlocal first
        storage.add([chunk_of(first + 1, 0, 3, End.TERMINATED, stream=0)])
        storage.add([chunk_of(first, 0, 3, stream=1)])
        storage.add([chunk_of(first, 3, 3, End.TERMINATED, stream=1)])
        first += 2

    return add


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_chunk_is_added_to_a_large_store_as_to_a_small_one(kind: str, tmp_path: Path) -> None:
    works: list[Work] = []
    for chunks in (FEW, MANY):
        made = (
            MemoryStorage(SPEC)
            if kind == "memory"
            else DiskStorage.create(tmp_path / str(chunks), SPEC)
        )
        add = added(filled(made, chunks))
        works.append(least([work_of(add) for _ in range(20)]))
        made.close()
    expect_equal(*works)


@pytest.mark.proof
def test_a_refresh_without_news_reads_no_chunk_again(tmp_path: Path) -> None:
    works: list[Work] = []
    for chunks in (FEW, MANY):
        filled(DiskStorage.create(tmp_path / str(chunks), SPEC), chunks).close()
        with DiskStorage.open(tmp_path / str(chunks), read_only=True) as reader:
            index = reader.index
            works.append(least([work_of(reader.refresh) for _ in range(3)]))
            assert reader.index is index
    # There are a few more segments.
    assert abs(works[0].calls - works[1].calls) < MORE_CALLS
    assert abs(works[0].nbytes - works[1].nbytes) < 10 * MORE_BYTES


def indexed(chunks: int) -> ChunkIndex:
    """Episodes of three chunks from four envs that are stepped together, in eight segments."""
    index = ChunkIndex()
    for place in range(chunks):
        index.append(placed(place), place * 8 // chunks, 0, 8)
    return index


def placed(place: int) -> Chunk:
    """The chunk at such a position."""
    env, part = place % 4, place // 4 % 3
    return chunk_of(place // 12 * 4 + env, 3 * part, 3, END[part], stream=env)


KINDS = [Windows(1), Windows(3), Windows(8, context=2), Windows(3, is_across=True)]


def followed(kind: Windows, chunks: int) -> Callable[[], None]:
    """Adds a chunk, which often continues an episode, and draws by priorities."""
    index, priorities = indexed(chunks), PriorityIndex(0.6)
    places, rng = itertools.count(chunks), np.random.default_rng(0)

    def follow() -> None:
        index.append(placed(next(places)), 8, 0, 8)
        priorities.draw(index, 0, ItemKinds(kind.length, kind, None, None, None), 8, rng)

    return follow


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_priorities_follow_an_added_chunk_of_a_large_store_as_of_a_small_one(kind: Windows) -> None:
    works = [
        least([work_of(follow) for _ in range(24)])
        for follow in (followed(kind, FEW), followed(kind, MANY))
    ]
    expect_equal(*works)
