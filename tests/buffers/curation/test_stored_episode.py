"""A StoredEpisode describes an episode without its rows as its rows do."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    End,
    MemoryStorage,
    NotEnoughData,
    Storage,
    StoreCorrupt,
)
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.sampling.sampler import Sampler
from support.disk_stores import spoil
from support.rows.labelled_rows import SPEC, Player, rows_of, whole


def played(seed: int) -> Storage:
    """A ring after evictions, with episodes in many chunks."""
    storage = MemoryStorage(SPEC, capacity=500)
    Player(storage, 0, seed).play(150)
    assert storage.index.base > 0
    return storage


@pytest.mark.parametrize("seed", range(5))
def test_the_description_agrees_with_the_rows(seed: int) -> None:
    storage = played(seed)
    stored = list(stored_episodes(storage))
    with closing(Sampler(storage, 1, 0.6)) as reader:
        episodes = list(reader.episodes(None))
    assert [one.id for one in stored] == [one.id for one in episodes]
    for one, episode in zip(stored, episodes, strict=True):
        assert (one.stream, one.first_row, one.rows) == (
            episode.stream,
            episode.first_row,
            episode.rows,
        )
        assert one.end & ~End.PENDING == episode.end
        assert one.has_ended == episode.end.is_final == (not episode.cut[-1])
        assert one.metadata == episode.metadata
        assert one.total_reward == episode.total_reward
    assert sum(one.steps for one in stored) == storage.index.steps


@pytest.mark.parametrize("max_rows", [1, 2, 5, 7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_of_any_size_have_every_row_once(seed: int, max_rows: int) -> None:
    storage = played(seed)
    for one in stored_episodes(storage):
        chunks = list(one.chunks(max_rows))
        assert [chunk.rows for chunk in chunks[:-1]] == [max_rows] * (len(chunks) - 1)
        stop = one.first_row + one.rows
        begins = list(range(one.first_row, stop, max_rows))
        assert [chunk.first_row for chunk in chunks] == begins
        assert [chunk.end for chunk in chunks] == [End.NONE] * (len(chunks) - 1) + [one.end]
        assert all((chunk.episode, chunk.stream) == (one.id, one.stream) for chunk in chunks)
        assert all(chunk.metadata == one.metadata for chunk in chunks)
        true = rows_of(0, one.id, one.first_row, stop)
        for name, rows in true.items():
            assert np.array_equal(np.concatenate([chunk.fields[name] for chunk in chunks]), rows)


def test_a_replaced_pending_row_is_read_once() -> None:
    storage = MemoryStorage(SPEC)
    for first, stop, end in ((0, 1, End.PENDING), (0, 3, End.PENDING), (2, 3, End.PENDING)):
        storage.add([Chunk(0, 0, first, end, rows_of(0, 0, first, stop))])
    (one,) = stored_episodes(storage)
    assert (one.rows, one.steps, one.end) == (3, 2, End.PENDING)
    (chunk,) = one.chunks(100)
    assert np.array_equal(chunk.fields["action"], rows_of(0, 0, 0, 3)["action"])


def test_an_episode_with_a_lost_chunk_becomes_two() -> None:
    storage = MemoryStorage(SPEC)
    for first, stop, end in ((0, 4, End.NONE), (4, 7, End.NONE), (7, 9, End.TERMINATED)):
        chunk = Chunk(0, 0, first, end, rows_of(0, 0, first, stop), {"number": 0})
        storage.add([chunk])
    storage.lose(1)
    before, after = stored_episodes(storage)
    assert (before.id, before.first_row, before.rows, before.has_ended) == (0, 0, 4, False)
    assert (after.id, after.first_row, after.rows, after.has_ended) == (0, 7, 2, True)
    assert (before.steps, after.steps) == (3, 2)
    assert before.metadata == after.metadata == {"number": 0}


def test_an_eviction_while_iterating_is_an_error() -> None:
    storage = MemoryStorage(SPEC, capacity=40)
    storage.add([whole(0, 0, 5), whole(0, 1, 5)])
    left = stored_episodes(storage)
    assert next(left).id == 0
    last = len(storage.index) - 1
    for number in range(2, 40):
        storage.add([whole(0, number, 5)])
    with pytest.raises(NotEnoughData, match=rf"\bchunk {last} .*\b{storage.index.base}\b"):
        next(left)


def test_metadata_is_read_without_the_rows() -> None:
    with closing(DiskStorage.create("a", SPEC)) as storage:
        storage.add([whole(0, 0, 500)])
        spoil(storage, 0)
    with closing(DiskStorage.open("a", read_only=True)) as storage:
        (one,) = stored_episodes(storage)
        assert one.metadata["number"] == 0
        with pytest.raises(StoreCorrupt, match=r"\brows 0 to 499 of episode 0\b"):
            _ = one.total_reward
