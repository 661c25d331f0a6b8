"""Readers see the state of their last refresh, bit by bit, whatever the writer does later."""

from __future__ import annotations

import functools
import io
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, DiskStorage, End, SequenceReplayBuffer, StoreCorrupt, repair
from stepwell.buffers.storage.disk import snapshot
from stepwell.buffers.testing import assert_holds, chunk_of, play
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import assert_same_index, create, read_all, reopen
from support.rows.followed_rows import assert_right, follow, write_fast


def noisy_chunk(episode: int, rows: int) -> Chunk:
    """An incompressible episode."""
    whole = chunk_of(episode, 0, rows, End.TERMINATED)
    noise = np.random.default_rng(episode).integers(0, 256, (rows, 12, 8), np.uint8)
    return Chunk(episode, 0, 0, End.TERMINATED, {**whole.fields, "observation": noise})


class Racing(NoSyncFiles):
    """Calls a function just before the n-th file from now on is opened."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._rest = -1
        self.has_acted = False

    def arm(self, moment: int) -> None:
        self._rest = moment

    def open(self, path: Path) -> io.FileIO:
        self._rest -= 1
        if self._rest == -1:
            self.has_acted = True
            self._act()
        return super().open(path)


@pytest.mark.proof
@pytest.mark.parametrize("use", ["open", "refresh"])
def test_an_eviction_at_any_moment_of_a_refresh_repeats_it(
    tmp_path: Path, use: str, request: pytest.FixtureRequest
) -> None:
    """Between manifest and segments, between two segments, between reading and mapping."""
    added = [noisy_chunk(episode, 20) for episode in range(30)]
    moments, step = 0, 1 if request.config.getoption("--full") else 5
    while True:
        path, moment = tmp_path / str(moments), moments * step
        with create(path, capacity=320) as storage:
            files = Racing(functools.partial(storage.add, added[20:]))
            storage.add(added[:1])
            reader = DiskStorage.open(path, read_only=True, files=files)
            for chunk in added[len(storage.index) : 20]:
                storage.add([chunk])
            files.arm(moment)
            if use == "refresh":
                assert reader.refresh()
            else:
                reader.close()
                reader = DiskStorage.open(path, read_only=True, files=files)
            seen = reader.index.base + len(reader.index)
            assert seen in (20, 30)
            assert_holds(reader, added[reader.index.base : seen])
            reader.refresh()
            assert files.has_acted == (len(storage.index) + storage.index.base == 30)
            assert_same_index(reader, storage)
            reader.close()
        if not files.has_acted:
            break
        moments += 1
    assert moments * step > 25  # manifest, then every segment to read it, then to map it


class SizeThen(NoSyncFiles):
    """Calls a function once, just after the length of a file was read."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None

    def size(self, file: io.FileIO) -> int:
        size = super().size(file)
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return size


def test_a_refresh_without_new_chunks_shows_new_facts(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage, reopen(tmp_path / "a", read_only=True) as reader:
        play(storage, 3)
        assert reader.refresh()
        index = reader.index
        assert not reader.refresh()
        assert reader.index is index
        storage.append_session({"seed": 7})
        assert not reader.refresh()
        assert reader.sessions == storage.sessions == ({"seed": 7},)


@pytest.mark.parametrize("looks_between", [True, False])
def test_a_reader_follows_a_repair_that_removed_the_newest_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks_between: bool
) -> None:
    """The numbers of the removed chunks are assigned again: its index must not be continued."""
    monkeypatch.setattr(snapshot, "_MANY_NEW", 0)  # else only a large index is continued
    path = tmp_path / "a"
    with create(path) as storage:
        for number in range(12):
            storage.add([noisy_chunk(number, 60)])

    def expect_what_a_new_reader_sees() -> None:
        reader.refresh()
        with reopen(path, read_only=True) as new:
            assert np.array_equal(reader.index.records, new.index.records)
            assert reader.index.counters == new.index.counters
            assert reader.index.base == new.index.base
            assert reader.lost_chunks == new.lost_chunks

    with reopen(path, read_only=True) as reader:
        max(path.glob("segment-*.bin")).unlink()
        assert repair(path, yes=True, files=NoSyncFiles()).is_done
        if looks_between:
            expect_what_a_new_reader_sees()
        with reopen(path) as writer:
            for _ in range(6):
                writer.add([noisy_chunk(writer.index.next_episode, 50)])
                if looks_between:
                    expect_what_a_new_reader_sees()
            expect_what_a_new_reader_sees()
        expect_what_a_new_reader_sees()


def test_a_segment_that_is_sealed_while_a_reader_maps_it_is_read(tmp_path: Path) -> None:
    storage, files = create(tmp_path / "a"), SizeThen()
    added = play(storage, 3)
    reader = DiskStorage.open(tmp_path / "a", read_only=True, files=files)
    files.act = storage.close  # truncates the file after its last chunk
    assert_holds(reader, added)
    assert files.act is None
    reader.close()


@pytest.mark.parametrize(
    ("limits", "rows"), [({"capacity": 64}, [60]), ({"capacity_bytes": 1 << 20}, [5_000, 5_000])]
)
def test_a_segment_that_was_evicted_since_is_named_until_the_refresh(
    tmp_path: Path, limits: Any, rows: list[int]
) -> None:
    path = tmp_path / "a"
    with create(path) as storage:
        play(storage, 12)
        following = storage.index.next_episode
    reader = reopen(path, read_only=True)
    with DiskStorage.open(path, files=NoSyncFiles(), **limits) as storage:
        for episode, number in enumerate(rows, following):
            storage.add([noisy_chunk(episode, number)])
    with pytest.raises(StoreCorrupt, match=r"segment-00000000\.bin\b.*evicted"):
        reader.payload(0)
    assert reader.refresh()
    read_all(reader)
    assert reader.index.records["episode"].tolist()[-1] == following + len(rows) - 1
    reader.close()


# --- drawing from a store that is being written ---------------------------------------------------


PROCESSES = multiprocessing.get_context("spawn")


@pytest.mark.proof
@pytest.mark.parametrize("capacity", [None, 1_500])
def test_processes_that_follow_a_writer_see_only_right_rows(
    tmp_path: Path, capacity: int | None, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "a"
    is_full = request.config.getoption("--full")
    chunks = 12_000 if is_full else 4_800
    with ProcessPoolExecutor(3, mp_context=PROCESSES) as pool:
        readers = [pool.submit(follow, path) for _ in range(2)]
        evicted = pool.submit(write_fast, path, chunks, capacity).result()
        found = [reader.result() for reader in readers]
    assert (evicted > 500) == (capacity is not None)
    for states, rows, drawn in found:
        assert states > 5
        assert rows > 5_000
        assert drawn > 500
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            assert_right(episode)
