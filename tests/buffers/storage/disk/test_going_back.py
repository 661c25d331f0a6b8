"""An exact checkpoint: the store is as it was, and goes on as one that was never stopped."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    DiskStorage,
    End,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreFailed,
    Transitions,
    repair,
    verify,
)
from stepwell.buffers.storage.checkpoint import pack
from stepwell.buffers.storage.disk import snapshot
from stepwell.buffers.testing import Recording, chunk_of
from support.crash.disk_faults import FaultyFiles, Killed, NoSyncFiles
from support.crash.medium import Image, Medium, MediumFiles, restore
from support.disk_stores import assert_same_index, contents, copy_of, create, reopen
from support.examples import by_tier
from support.models.chunk_model import same_records

ENDS = [End.NONE, End.PENDING, End.TERMINATED]


class Run:
    """A learner of its own kind: it adds random chunks, and draws by priorities."""

    def __init__(self, storage: DiskStorage, seed: int = 0) -> None:
        self.replay = SequenceReplayBuffer(seed=1)
        self.replay._use(storage)
        self.recording = Recording(storage.index.next_episode)
        self.rng = np.random.default_rng(seed)

    @property
    def storage(self) -> DiskStorage:
        assert isinstance(self.replay.storage, DiskStorage)
        return self.replay.storage

    def add(self, calls: int) -> None:
        for _ in range(calls):
            self.replay.add(
                [
                    self.recording.chunk(
                        int(self.rng.integers(3)),
                        int(self.rng.integers(1, 20)),
                        ENDS[self.rng.integers(3)],
                    )
                    for _ in range(self.rng.integers(1, 4))
                ]
            )

    def learn(self) -> list[list[int]]:
        """The ids of what was drawn."""
        if len(self.replay) < 50:
            return []
        batches = [self.replay.sample_transitions(6, draw="priorities") for _ in range(3)]
        for number, batch in enumerate(batches):
            self.replay.update_priorities(batch.ids, np.arange(6.0) + number + 1)
        return [batch.ids.tolist() for batch in batches]

    def note(self) -> tuple[Any, ...]:
        return copy.deepcopy((self.recording, self.rng.bit_generator.state))

    def go_back_to(self, noted: tuple[Any, ...]) -> None:
        self.recording, self.rng.bit_generator.state = copy.deepcopy(noted)
        self.replay.load_checkpoint(exact=True)
        self.storage.continue_episodes()


def assert_same(one: SequenceReplayBuffer, other: SequenceReplayBuffer) -> None:
    mine, others = one.storage.index, other.storage.index
    assert (mine.base, mine.counters) == (others.base, others.counters)
    assert (mine.steps, mine.episodes) == (others.steps, others.episodes)
    assert one.sessions == other.sessions
    assert one.nbytes == other.nbytes
    records, expected = mine.records.copy(), others.records.copy()
    records["segment"] = expected["segment"] = 0  # numbers of files are never used again
    assert same_records(records, expected)
    assert one.digest() == other.digest()


GROWING: dict[str, int | None] = {"capacity": None, "segment_bytes": 100_000}
SIZES: st.SearchStrategy[dict[str, int | None]] = st.sampled_from(
    [
        GROWING,
        {"capacity": None, "segment_bytes": 20_000},
        {"capacity": 150, "segment_bytes": 20_000},
        {"capacity": 400, "segment_bytes": 100_000},
        {"capacity_bytes": 1 << 20, "segment_bytes": 20_000},
        {"capacity": None, "segment_bytes": 1 << 20},
    ]
)


@settings(max_examples=by_tier(4, 40, 40))
@example(GROWING, 30, 60, [("kill", 10)], 0)  # the next segments have the sizes that they had
@example({"capacity": 150, "segment_bytes": 20_000}, 40, 30, [("stay", 30), ("close", 30)], 0)
@given(
    sizes=SIZES,
    before=st.integers(0, 40),
    after=st.integers(0, 60),
    interrupted=st.lists(st.tuples(st.sampled_from(["stay", "close", "kill"]), st.integers(0, 40))),
    seed=st.integers(0, 1000),
)
def test_a_run_that_goes_back_is_one_that_was_never_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, int | None],
    before: int,
    after: int,
    interrupted: list[tuple[str, int]],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("back")
    whole, run = (Run(create(folder / name, **sizes), seed) for name in ("whole", "run"))
    for each in (whole, run):
        each.storage.append_session({"seed": 1})
        for part in (before // 2, before - before // 2):  # of which the first may be evicted
            each.add(part)
            each.learn()
    run.replay.save_checkpoint({"updates": 3})
    noted = run.note()
    for how, calls in (*interrupted, ("kill", 0)):
        run.storage.append_session({"seed": 2})
        run.add(calls)
        run.learn()
        if how != "stay":
            path = run.storage.path
            killed = copy_of(path) if how == "kill" else path
            run.replay.close()
            run = Run(reopen(killed))
        run.go_back_to(noted)
        assert_same(run.replay, whole.replay)
        there = {int(each.stem[-8:]) for each in run.storage.path.glob("segment-*")}
        assert there == {*run.storage._view.segments}
    for each in (whole, run):
        each.add(after)
    assert_same(run.replay, whole.replay)
    assert run.learn() == whole.learn()
    run.replay.close()
    whole.replay.close()
    assert verify(run.storage.path).is_whole
    shutil.rmtree(folder)


def two_runs(
    folder: Path, before: int = 25, after: int = 40, **sizes: Any
) -> tuple[Run, Run, tuple[Any, ...]]:
    """One that ends at the checkpoint, and one that has saved it and has gone on."""
    whole, run = (Run(create(folder / name, **sizes)) for name in ("whole", "run"))
    for each in (whole, run):
        each.storage.append_session({"seed": 1})
        each.add(before)
        each.learn()
    run.replay.save_checkpoint()
    noted = run.note()
    run.storage.append_session({"seed": 2})
    run.add(after)
    return whole, run, noted


def opened(path: Path) -> SequenceReplayBuffer:
    return Run(reopen(path)).replay


RING = {"capacity": 150, "segment_bytes": 20_000}


@pytest.mark.parametrize("error", [Killed, OSError])
def test_a_crash_at_any_call_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, error: type[BaseException]
) -> None:
    whole, run, _ = two_runs(tmp_path, **RING)
    killed = copy_of(run.storage.path)
    assert list(killed.glob("held-*"))
    digests = {run.replay.digest(): "old", whole.replay.digest(): "new"}
    run.replay.close()
    seen: list[str] = []
    for call in range(0, 1000, by_tier(5, 1, 1)):
        files = FaultyFiles(call, error)
        path = copy_of(killed)
        with contextlib.suppress(Killed, StoreFailed, OSError):
            with DiskStorage.open(path, files=files) as storage:
                Run(storage).replay.load_checkpoint(exact=True)
        if not files.is_dead:
            break
        with reopen(path, read_only=True) as reader:
            digest = SequenceReplayBuffer.of(reader).digest()
        seen.append(digests[digest])
        with opened(path) as replay:
            assert replay.digest() == digest
            replay.load_checkpoint(exact=True)
            assert_same(replay, whole.replay)
        assert verify(path).is_whole
        with opened(path) as replay:
            replay.save_checkpoint()
        assert not list(path.glob("held-*"))
    assert seen == sorted(seen, reverse=True)
    assert seen.count("old") > 5
    assert seen.count("new") > 2
    whole.replay.close()


def test_a_loss_of_power_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    whole, run, _ = two_runs(tmp_path, **RING)
    (tmp_path / "medium").mkdir()
    path = Path(shutil.copytree(run.storage.path, tmp_path / "medium" / "store"))
    digests = {run.replay.digest(), whole.replay.digest()}
    run.replay.close()
    rng, images = random.Random(0), list[Image]()
    medium = Medium(path.parent)
    files = MediumFiles(medium, lambda: images.append(medium.image(rng)), rng)
    with DiskStorage.open(path, files=files) as storage:
        Run(storage).replay.load_checkpoint(exact=True)
    images += [medium.image(rng) for _ in range(10)]
    for image in rng.sample(images, min(len(images), by_tier(60, 400, 400))):
        restore(image, tmp_path / "image")
        with opened(tmp_path / "image" / "store") as replay:
            assert replay.digest() in digests
            replay.load_checkpoint(exact=True)
            assert_same(replay, whole.replay)
    whole.replay.close()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_manifest_that_is_lost_later_is_rebuilt_without_the_removed_rows(
    tmp_path: Path, goes_on: bool
) -> None:
    whole, run, noted = two_runs(tmp_path, segment_bytes=20_000)
    run.go_back_to(noted)
    for each in (whole, run):
        each.add(20 * goes_on)
        each.replay.close()
    (run.storage.path / "manifest.json").unlink()
    assert repair(run.storage.path, yes=True, files=NoSyncFiles()).is_done
    with opened(run.storage.path) as replay, opened(whole.storage.path) as expected:
        assert replay.digest() == expected.digest()
        assert replay.storage.index.counters == expected.storage.index.counters


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        *[({"segment_bytes": 20_000}, calls) for calls in (0, 3, 50)],
        *[({"segment_bytes": 1 << 20}, calls) for calls in (0, 3, 50)],
        *[(RING, calls) for calls in (0, 3, 35, 120)],
    ],
)
def test_a_reader_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Any, calls: int
) -> None:
    """Its index is a new one, and all that was known of positions is forgotten."""
    monkeypatch.setattr(snapshot, "_MANY_NEW", 0)  # else only a large index is continued
    whole, run, noted = two_runs(tmp_path, **sizes)
    path = run.storage.path
    with reopen(path, read_only=True) as reader:
        replay = SequenceReplayBuffer.of(reader)
        replay.sample_transitions(50)  # reads and maps files
        assert list(replay.iter_episodes(where=has_even_seed))  # remembers what it was told
        before = replay.digest()
        run.go_back_to(noted)
        run.rng = np.random.default_rng(99)  # other rows than before
        run.add(calls)
        with contextlib.suppress(StoreCorrupt):  # a file that it had not mapped is gone
            assert replay.digest() == before
        generation, end = reader.generation, reader.index.base + len(reader.index)
        assert reader.refresh()
        # Unless all positions are later ones, they are assigned again.
        assert reader.generation > generation or reader.index.base >= end
        assert_same_index(reader, run.storage)
        assert replay.digest() == run.replay.digest()
        ids = [episode.id for episode in run.replay.iter_episodes()]
        even, expected = (
            [episode.id for episode in each.iter_episodes(where=has_even_seed)]
            for each in (replay, run.replay)
        )
        assert even == expected
        rows = run.replay.sample_transitions(50)
        found = replay.take(Transitions(1), rows.ids)
        assert np.array_equal(found.observation, rows.observation)
        assert [episode.id for episode in replay.iter_episodes()] == ids
        assert not reader.refresh()
    for each in (whole, run):
        each.replay.close()


def has_even_seed(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("seed", 1) % 2 == 0)


def test_a_copy_by_hard_links_is_not_changed(tmp_path: Path) -> None:
    whole, run, noted = two_runs(tmp_path, **RING)
    run.replay.close()
    linked = tmp_path / "linked"
    shutil.copytree(run.storage.path, linked, copy_function=os.link)
    before = contents(linked)
    again = Run(reopen(run.storage.path))
    again.go_back_to(noted)
    again.add(30)
    again.replay.close()
    assert contents(linked) == before
    assert verify(linked).is_whole
    whole.replay.close()


def assert_refused(
    path: Path, error: type[Exception] | tuple[type[Exception], ...], match: str
) -> None:
    """Nothing changes, neither in the folder nor in the object."""
    with opened(path) as replay:
        kept = {name: data for name, data in contents(path).items() if name != "LOCK"}
        state = repr(replay.state_dict())
        with pytest.raises(error, match=match):
            replay.load_checkpoint(exact=True)
        assert repr(replay.state_dict()) == state
        assert {name: data for name, data in contents(path).items() if name != "LOCK"} == kept


def test_rows_that_are_gone_are_named(tmp_path: Path) -> None:
    whole, run, _ = two_runs(tmp_path, **RING)
    run.replay.close()
    path = run.storage.path
    held = min(path.glob("held-*"))
    held.unlink()
    assert_refused(path, ValueError, rf"{held.name.replace('held', 'segment')}.* without exact")
    with opened(path) as replay:
        replay.load_checkpoint()
    # Another checkpoint, of any name, is the only one that can be gone back to.
    again = Run(reopen(path))
    again.add(5)
    again.replay.save_checkpoint(name="best")
    assert not list(path.glob("held-*"))
    again.add(40)
    assert list(path.glob("held-*"))
    again.replay.load_checkpoint("best", exact=True)
    again.replay.close()
    assert_refused(path, ValueError, r"segment-\d{8}.* without exact")
    # Without a checkpoint nothing is kept.
    for each in path.glob("checkpoint-*"):
        each.unlink()
    with opened(path):
        assert not list(path.glob("held-*"))
    whole.replay.close()


def test_a_writer_that_knew_no_checkpoint_evicts_for_good(tmp_path: Path) -> None:
    whole, run, _ = two_runs(tmp_path, after=0, **RING)
    whole.replay.close()
    run.replay.close()
    again = Run(reopen(run.storage.path))
    again.add(60)
    again.replay.close()
    assert_refused(run.storage.path, ValueError, r"segment-\d{8}\.bin.* without exact")


def test_only_a_writer_of_its_own_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "a"
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with SequenceReplayBuffer(path) as replay, replay.writer(envs) as writer:
        replay.save_checkpoint()
        with pytest.raises(ValueError, match=r"'latest'.* no open writer"):
            replay.load_checkpoint(exact=True)
        writer.close()
        replay.load_checkpoint(exact=True)
        assert len(replay.sessions) == 1
        storage = replay.storage
        assert isinstance(storage, DiskStorage)
        state = storage.load_checkpoint("latest")
        del state["border"]
        storage.save_checkpoint("old", state)
        with pytest.raises(ValueError, match=r"'old'.* earlier version"):
            replay.load_checkpoint("old", exact=True)
        assert replay.load_checkpoint("old") == {}
    with SequenceReplayBuffer.open(path, read_only=True) as reader:
        with pytest.raises(ValueError, match=r"read_only=True"):
            reader.load_checkpoint(exact=True)


FORGED: dict[str, Any] = {
    "segments": [
        [],
        [[0, 1]],
        [[5, 1], [5, 2]],
        [[7, 1], [5, 2]],
        [[-1, 1]],
        [[0]],
        [[10**8, 1]],
        "x",
        [[0, 1 << 30]],
        [["0", 1]],
        None,
    ],
    "is_open": [None, 1, "yes"],
    "counters": [[0, 0, 0], [1 << 61, 1 << 61, 1 << 61], [1, 2], [-1, 0, 0], [1 << 99, 0, 0], 7],
    "sessions": [1000, -1, None, True],
    "sizes": [[1], [-1, 5], None, ["a", "b"]],
}


@pytest.mark.parametrize("key", FORGED)
def test_a_forged_border_is_refused_and_nothing_changes(tmp_path: Path, key: str) -> None:
    whole, run, _ = two_runs(tmp_path, **RING)
    path = run.storage.path
    state = run.storage.load_checkpoint("latest")
    for each in (whole, run):
        each.replay.close()
    for value in (*FORGED[key], missing := object()):
        border = {**state["border"], key: value}
        if value is missing:
            del border[key]
        (path / "checkpoint-latest.bin").write_bytes(pack({**state, "border": border}))
        assert_refused(path, (ValueError, StoreCorrupt), "expected")


def test_a_forged_border_within_a_flush_leaves_a_store_that_opens(tmp_path: Path) -> None:
    run = Run(create(tmp_path / "a"))
    run.replay.add([chunk_of(episode, 0, 5, End.TERMINATED, episode) for episode in range(3)])
    run.replay.save_checkpoint()
    state = run.storage.load_checkpoint("latest")
    state["replay"]["pieces"] = 1
    state["border"] |= {"segments": [[0, 1]], "counters": [5, 1, 4]}
    (tmp_path / "a" / "checkpoint-latest.bin").write_bytes(pack(state))
    run.replay.load_checkpoint(exact=True)
    with reopen(copy_of(tmp_path / "a")) as storage:  # as after a kill: no segment was completed
        assert_same_index(storage, run.storage)
        assert (len(storage.index), storage.lost_chunks) == (1, 0)
    run.replay.close()


def test_a_border_is_taken_as_it_was_given(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage:
        storage.add([chunk_of(0, 0, 9)])
        border = storage.border()
        storage.add([chunk_of(1, 0, 9)])
        storage.go_back(border, 1)
        assert storage.index.records["episode"].tolist() == [0]
