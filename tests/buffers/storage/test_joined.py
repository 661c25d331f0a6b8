"""Joined storages have the same rows as each storage read by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import (
    Batch,
    DiskStorage,
    End,
    Episode,
    Field,
    MemoryStorage,
    NotEnoughData,
    Spec,
    SpecMismatch,
    Storage,
    StoreCorrupt,
)
from stepwell.buffers.sampling.requests import Sequences
from stepwell.buffers.sampling.sampler import Sampler
from stepwell.buffers.storage.joined import JoinedStorage, open_many
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import spoil
from support.rows.labelled_rows import SPEC, Label, labels_of, whole

ID, STREAM = 1 << 48, 1 << 32
RAW = SPEC.with_codecs({"observation": "raw", "info/picture": "raw"})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def disk(stack: ExitStack, path: str, spec: Spec = SPEC, **options: Any) -> DiskStorage:
    """A new store, open for writing."""
    storage = DiskStorage.create(path, spec, segment_bytes=20_000, files=NoSyncFiles(), **options)
    return stack.enter_context(closing(storage))


def reading(stack: ExitStack, path: str, **options: Any) -> DiskStorage:
    """A store that another process may be writing."""
    return stack.enter_context(closing(DiskStorage.open(path, read_only=True, **options)))


def episodes_of(storage: Storage) -> list[Episode]:
    with closing(Sampler(storage, 1, 0.6)) as reader:
        return list(reader.episodes(None))


def draw(storage: Storage, count: int, length: int, seed: int = 0) -> Batch:
    with closing(Sampler(storage, 1, 0.6)) as reader:
        found = reader.sample(Sequences(count, length), None, np.random.default_rng(seed))
        assert isinstance(found, Batch)
        return found


def test_a_storage_with_a_weight_and_no_window_is_named() -> None:
    storages = [MemoryStorage(SPEC), MemoryStorage(SPEC)]
    storages[0].add([whole(0, 0, 9)])
    storages[1].add([whole(1, 0, 3)])
    assert set(draw(JoinedStorage(storages), 50, 4).is_first.shape) == {50, 4}
    with pytest.raises(NotEnoughData, match=r"\bstore 1 .*\b4 rows"):
        draw(JoinedStorage(storages, [1, 1]), 50, 4)
    draw(JoinedStorage(storages, [1, 0]), 50, 4)


def test_weights_stay_after_a_refresh() -> None:
    storages = [MemoryStorage(SPEC), MemoryStorage(SPEC)]
    for store, storage in enumerate(storages):
        storage.add([whole(store, 0, 9)])
    many = JoinedStorage(storages, [0, 1])
    storages[0].add([whole(0, number, 9) for number in range(1, 30)])
    assert many.refresh()
    labels = labels_of(np.asarray(draw(many, 50, 3).observation))
    assert {label.store for label in labels} == {1}


def test_the_generation_grows_when_positions_are_renumbered(stack: ExitStack) -> None:
    written = [disk(stack, "a"), disk(stack, "b")]
    many = JoinedStorage([reading(stack, "a"), reading(stack, "b")])
    seen: list[tuple[bool, int]] = []
    for store in (1, 1, 0, 1, 0):
        written[store].add([whole(store, written[store].index.next_episode, 4)])
        seen.append((many.refresh(), many.generation))
    assert seen == [(True, 0), (True, 0), (True, 1), (True, 1), (True, 2)]


def test_a_chunk_that_was_evicted_in_ram_is_refused() -> None:
    storage = MemoryStorage(SPEC, capacity=40)
    storage.add([whole(0, 0, 5)])
    many = JoinedStorage([MemoryStorage(SPEC), storage])
    for episode in range(1, 40):
        storage.add([whole(0, episode, 5)])
    for read in (many.payload, many.metadata):
        with pytest.raises(ValueError, match=r"store 1 \(in RAM\) .*evicted.*refresh\(\)"):
            read(0)
    assert many.refresh()
    assert many.metadata(0)["number"] == storage.index.records["episode"][0]


def test_metadata_and_sessions_are_those_of_each_storage(stack: ExitStack) -> None:
    storages: list[Storage] = [disk(stack, "a"), MemoryStorage(SPEC)]
    for store, storage in enumerate(storages):
        storage.append_session({"run": store})
        storage.add([whole(store, 0, 3), whole(store, 1, 3)])
    many = JoinedStorage(storages)
    assert [dict(session) for session in many.sessions] == [{"run": 0}, {"run": 1}]
    assert [many.metadata(position) for position in range(4)] == [
        {"store": store, "number": number} for store in (0, 1) for number in (0, 1)
    ]


def changed(**change: Any) -> Spec:
    return replace(SPEC, fields=(replace(SPEC.fields[0], **change), *SPEC.fields[1:]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (changed(dtype="int32"), r"'observation' .*\bint64 \(3,\).*\bint32 \(3,\)"),
        (changed(dtype="uint8", shape=(84, 84), codec="patch"), r"'observation' .*\(84, 84\)"),
        (SPEC.with_more([Field("info/lives", "int64", (), "raw")]), "'info/lives'"),
    ],
)
def test_other_rows_are_refused_with_the_folder_and_the_difference(
    spec: Spec, message: str, stack: ExitStack
) -> None:
    storages = [disk(stack, "a"), disk(stack, "b", RAW), disk(stack, "c", spec)]
    here = Path.cwd()
    with pytest.raises(SpecMismatch, match=rf"^{here / 'c'} .*{here / 'a'}: .*{message}"):
        JoinedStorage(storages)


EMPTY = MemoryStorage(SPEC)
TEXTS: Any = ["1", "2"]
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "chunks": (lambda: JoinedStorage([EMPTY, EMPTY]).add([whole(0, 0, 3)]), r"chunks\b.*\b2 st"),
    "encoded": (lambda: JoinedStorage([EMPTY, EMPTY]).add_encoded([]), r"chunks\b.*\b2 stores"),
    "a run": (lambda: JoinedStorage([EMPTY, EMPTY]).append_session({}), r"a run\b.*\b2 stores"),
    "one weight": (lambda: JoinedStorage([EMPTY, EMPTY], [1.0]), r"weights: .*\b2 stores.*\b1\b"),
    "below 0": (lambda: JoinedStorage([EMPTY, EMPTY], [1, -0.5]), r"weights: .*>= 0.*-0\.5"),
    "all 0": (lambda: JoinedStorage([EMPTY, EMPTY], [0, 0.0]), r"weights: .*above 0"),
    "texts": (lambda: JoinedStorage([EMPTY, EMPTY], TEXTS), r"weights: .*'1'"),
    "no storage": (lambda: JoinedStorage([]), r"storages: .*none"),
    "nested": (
        lambda: JoinedStorage([JoinedStorage([EMPTY]), EMPTY]),
        r"storages: .*JoinedStorage",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_several_stores_cannot_do_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
    assert len(EMPTY.index) == 0


def test_stores_with_different_specs_are_closed_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(stack, "a")
    disk(stack, "b", changed(dtype="int32"))
    closed: list[str] = []
    close = DiskStorage.close

    def noted(storage: DiskStorage) -> None:
        closed.append(storage.path.name)
        close(storage)

    monkeypatch.setattr(DiskStorage, "close", noted)
    with pytest.raises(SpecMismatch):
        open_many(["a", "b"], None, "raise")
    assert sorted(closed) == ["a", "b"]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_damaged_chunk_stops_a_read_or_is_skipped_and_counted(
    on_corrupt: str, stack: ExitStack
) -> None:
    for store, path in enumerate("ab"):
        with closing(disk(stack, path)) as storage:
            storage.add([whole(store, 0, 5), whole(store, 1, 5)])
            if path == "b":
                spoil(storage, 0)
    storages = [reading(stack, path, on_corrupt=on_corrupt) for path in "ab"]
    many = JoinedStorage(storages)
    if on_corrupt == "raise":
        with pytest.raises(StoreCorrupt, match=r"/b/segment-00000000\.bin.*\bepisode 0\b"):
            episodes_of(many)
        return
    assert [one.id for one in episodes_of(many)] == [0, 1, ID + 1]
    assert (many.lost_chunks, storages[0].lost_chunks) == (1, 0)
    many.refresh()
    assert [one.id for one in episodes_of(many)] == [0, 1, ID + 1]
    assert set(labels_of(np.asarray(draw(many, 99, 4).observation))) == {
        Label(store, episode, row) for store, episode in ((0, 0), (0, 1), (1, 1)) for row in (0, 1)
    }


def test_a_store_that_fails_in_a_refresh_leaves_the_others_readable(stack: ExitStack) -> None:
    written = [disk(stack, "a"), disk(stack, "b")]
    many = JoinedStorage([reading(stack, "a"), reading(stack, "b")])
    written[0].add([whole(0, 0, 5)])
    Path("b/manifest.json").write_text("nonsense")
    with pytest.raises(StoreCorrupt, match=r"/b/manifest\.json\b"):
        many.refresh()
    assert [one.id for one in episodes_of(many)] == [0]


def test_an_unfinished_episode_of_one_store_is_not_continued_by_another() -> None:
    storages = [MemoryStorage(SPEC), MemoryStorage(SPEC)]
    storages[0].add([whole(0, 0, 5, End.NONE)])
    storages[1].add([whole(1, 0, 5, End.NONE)])
    found = episodes_of(JoinedStorage(storages))
    assert [(one.id, one.rows, bool(one.cut[-1])) for one in found] == [(0, 5, True), (ID, 5, True)]
