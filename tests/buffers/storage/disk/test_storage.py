"""A store in a folder keeps its rows when it is reopened, and refuses misuse."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import DiskStorage, End, Field, MemoryStorage, Spec, SpecMismatch
from stepwell.buffers.storage.disk.format import Manifest
from stepwell.buffers.testing import SPEC, Recording, assert_holds, chunk_of, play
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import copy_of, create, filled, reopen


def test_an_unfinished_episode_goes_on_after_reopening_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    recording = Recording()
    first = [recording.chunk(0, 5, End.PENDING), recording.chunk(1, 4, End.TERMINATED)]
    rest = [recording.chunk(0, 3, End.NONE), recording.chunk(1, 2, End.NONE)]
    with create(tmp_path / "a") as storage:
        storage.add(first)
    with reopen(tmp_path / "a") as storage:
        with pytest.raises(ValueError, match="expected row 0"):
            storage.add(rest)
        storage.continue_episodes()
        storage.add(rest)
        assert storage.index.total_steps == 4 + 3 + 2 + 1  # a pending row comes again
        assert storage.index.episodes == 3
        assert_holds(storage, [*first, *rest])
    with reopen(tmp_path / "a", read_only=True) as storage:
        assert storage.index.episodes == 3
        assert_holds(storage, [*first, *rest])


def test_counters_survive_when_every_segment_was_evicted(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    folder = tmp_path / "a" / "manifest.json"
    manifest = Manifest.unpack(folder.read_bytes(), "manifest")
    folder.write_bytes(replace(manifest, sealed=()).pack())  # as between evicting and opening one
    with reopen(tmp_path / "a") as storage:
        assert len(storage.index) == 0
        assert tuple(manifest.next)[1:] == (storage.index.base, *storage.index.counters)
        assert storage.index.next_episode > 0
        storage.add([chunk_of(storage.index.next_episode)])
        assert int(storage.index.records["segment"][0]) == manifest.next.segment


def test_a_small_closed_store_takes_little_disk_space(tmp_path: Path) -> None:
    with DiskStorage.create(tmp_path / "a", SPEC) as storage:
        storage.add([chunk_of(0)])
        assert storage.nbytes > 1 << 20
    assert storage.nbytes == sum(path.stat().st_size for path in (tmp_path / "a").glob("*.bin"))
    assert storage.nbytes < 100_000
    with DiskStorage.open(tmp_path / "a"):
        pass
    assert sorted(os.listdir(tmp_path / "a")) == ["LOCK", "manifest.json", "segment-00000000.bin"]


def test_provenance_and_sessions_survive(tmp_path: Path) -> None:
    provenance = {"recipe": {"game": "pong", "sizes": [84, 84]}, "né": 0.1}
    with DiskStorage.create(tmp_path / "a", SPEC, provenance=provenance) as storage:
        storage.append_session({"seed": 1, "command": ["a", "b"]})
        storage.append_session({"seed": None})
        copy_of(tmp_path / "a")
    for name in ("a", "a-copy"):
        with reopen(tmp_path / name, read_only=True) as reader:
            assert reader.provenance == provenance
            assert list(reader.sessions) == [{"seed": 1, "command": ["a", "b"]}, {"seed": None}]


@pytest.mark.parametrize(
    ("value", "got"), [(np.int64(3), "int64"), (float("nan"), "float"), ({1, 2}, "set")]
)
def test_provenance_and_sessions_must_be_plain_json(
    tmp_path: Path, value: object, got: str
) -> None:
    with pytest.raises(TypeError, match=rf"^provenance: .*JSON.* {got} "):
        DiskStorage.create(tmp_path / "a", SPEC, provenance={"x": value})
    assert not (tmp_path / "a").exists()
    with create(tmp_path / "a") as storage:
        with pytest.raises(TypeError, match=rf"^facts: .*JSON.* {got} "):
            storage.append_session({"x": value})
        storage.append_session({"x": 1})


@pytest.mark.proof
def test_a_capacity_stays_until_another_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a"
    create(path, capacity=500).close()
    with reopen(path) as storage:
        assert (storage.capacity, storage.capacity_bytes) == (500, None)
        play(storage, 60)
        assert 300 < storage.index.steps <= 500
        following = storage.index.next_episode
    with DiskStorage.open(path, capacity=100, capacity_bytes=1 << 20) as storage:
        storage.add([chunk_of(following, 0, 5)])
        assert storage.index.steps <= 100
    with reopen(path, read_only=True) as reader:
        assert (reader.capacity, reader.capacity_bytes) == (100, 1 << 20)


# --- misuse ---------------------------------------------------------------------------------------


def test_only_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/a .*store"):
        create(tmp_path / "a")
    with pytest.raises(ValueError, match=rf"^{tmp_path} .*empty"):
        create(tmp_path)
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").close()
    create(tmp_path / "new" / "and" / "deep").close()
    assert DiskStorage.exists(tmp_path / "new" / "and" / "deep")


def test_of_two_processes_that_create_a_store_at_once_the_later_is_refused(tmp_path: Path) -> None:
    class Late(NoSyncFiles):
        """Another process creates and closes a store just before the lock is taken here."""

        def lock(self, file: io.FileIO) -> bool:
            filled(tmp_path / "a")
            return super().lock(file)

    with pytest.raises(ValueError, match=rf"^{tmp_path}/a .*store"):
        DiskStorage.create(tmp_path / "a", SPEC, files=Late())
    with reopen(tmp_path / "a") as storage:
        assert len(storage.index) > 0


def test_a_relative_path_survives_a_change_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = filled(Path("a"))
    with reopen(Path("a"), read_only=True) as reader:
        monkeypatch.chdir("/")
        assert_holds(reader, chunks)


def test_a_read_only_or_closed_store_is_not_written(tmp_path: Path) -> None:
    storage = create(tmp_path / "a")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/a .*read_only=True"):
        storage.refresh()
    storage.add([chunk_of(0)])
    storage.close()
    reader = reopen(tmp_path / "a", read_only=True)
    writes: list[Callable[[DiskStorage], object]] = [
        lambda one: one.add([chunk_of(1)]),
        lambda one: one.append_session({}),
    ]
    for write in writes:
        with pytest.raises(ValueError, match=rf"^{tmp_path}/a .*read_only=True"):
            write(reader)
    reader.close()
    uses: list[Callable[[DiskStorage], object]] = [
        *writes,
        lambda one: one.payload(0),
        lambda one: one.refresh(),
    ]
    for use in uses:
        for closed in (storage, reader):
            with pytest.raises(ValueError, match=rf"^{tmp_path}/a .*closed"):
                use(closed)


def test_windows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    message = r"Linux.*macOS.*Windows.*path=None"
    with pytest.raises(OSError, match=message):
        create(tmp_path / "a")
    with pytest.raises(OSError, match=message):
        reopen(tmp_path / "a")


def test_a_budget_too_small_for_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^capacity_bytes: .*\b1048576\b.*\b524288\b"):
        create(tmp_path / "a", capacity_bytes=1 << 19)


@pytest.mark.parametrize("wrong", [1.5, -1, None, True])
def test_a_size_of_files_that_no_file_could_have_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^segment_bytes: .*got {wrong}$"):
        create(tmp_path / "a", segment_bytes=wrong)
    assert not (tmp_path / "a").exists()
    million: Any = 1e6
    create(tmp_path / "a", segment_bytes=million).close()
    with reopen(tmp_path / "a") as storage:
        assert storage.facts.segment_bytes == 1_000_000


# --- folders with other contents ------------------------------------------------------------------


def test_the_next_writer_removes_temporary_files_of_a_crash(tmp_path: Path) -> None:
    chunks = filled(tmp_path / "a")
    before = sorted(os.listdir(tmp_path / "a"))
    (tmp_path / "a" / "segment-00000099.bin.tmp").write_bytes(b"half")
    (tmp_path / "a" / "manifest.json.tmp").write_bytes(b"half")
    (tmp_path / "a" / "notes.txt").write_bytes(b"mine")
    with reopen(tmp_path / "a") as storage:
        assert_holds(storage, chunks)
    assert sorted(os.listdir(tmp_path / "a")) == sorted([*before, "notes.txt"])


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_fields_without_a_float64_reward_are_refused(tmp_path: Path, dtype: str | None) -> None:
    """Found by forged folders: `stepwell info` read the rewards of a store without any."""
    fields = [field for field in SPEC.fields if field.name != "reward"]
    fields += [Field("reward", dtype, (), "raw")] if dtype else []
    with pytest.raises(ValueError, match=rf"\breward\b.*\bfloat64 \(\).* {dtype or 'none'}\b"):
        DiskStorage.create(tmp_path / "a", Spec(tuple(fields), "observation", "action"))
    assert not (tmp_path / "a").exists()


def test_a_store_without_chunks_may_get_other_fields(tmp_path: Path) -> None:
    other = replace(SPEC, fields=(*SPEC.fields, Field("info/x", "int64", (), "narrow")))
    with create(tmp_path / "a") as storage:
        storage.append_session({"seed": 1})
        reader = reopen(tmp_path / "a", read_only=True)
        assert storage.replace_spec(other)
        assert (storage.spec, list(storage.sessions)) == (other, [])
        with pytest.raises(SpecMismatch, match=r"'info/x'"):
            reader.refresh()
        assert reader.spec == SPEC
        chunk = chunk_of(0)
        storage.add([replace(chunk, fields={**chunk.fields, "info/x": np.arange(5)})])
        assert not storage.replace_spec(SPEC)
    with reopen(tmp_path / "a") as storage:
        assert storage.spec == other
        assert len(storage.index) == 1
        assert not storage.replace_spec(SPEC)


def test_a_segment_of_a_killed_writer_determines_the_fields(tmp_path: Path) -> None:
    storage = create(tmp_path / "a")
    assert storage._appender is not None
    storage._appender._open_segment([])
    with reopen(copy_of(tmp_path / "a")) as after:
        assert len(after.index) == 0
        assert not after.replace_spec(replace(SPEC, fields=SPEC.fields[:3]))
    storage.close()


MOST = 1 << 32  # of streams, and below zero as well


@pytest.mark.parametrize(
    ("name", "value", "is_encoded"),
    [
        *(("stream", value, False) for value in (1.5, MOST + 1, -MOST - 1, 1 << 40)),
        *(("stream", value, True) for value in (MOST + 1, -MOST - 1)),
        *(("episode", value, False) for value in (1.5, 1 << 62)),
        *(("first_row", value, False) for value in (-3, 0.0)),
    ],
)
def test_a_place_that_no_store_can_hold_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, value: float, is_encoded: bool
) -> None:
    most = -MOST if value < 0 else MOST
    place: dict[str, Any] = {name: value}
    added: list[Any] = [chunk_of(0, 0, 9, stream=most)]
    added.append(replace(chunk_of(1, 0, 9), **place, starts_late=True))
    with DiskStorage.create(tmp_path / "a", SPEC) as storage:
        add: Callable[[Any], None] = storage.add
        if is_encoded:
            source, add = MemoryStorage(SPEC), storage.add_encoded
            source.add(added)
            added = [source.encoded(0), source.encoded(1)]
        with pytest.raises(ValueError, match=rf"(^{name} of a chunk|episode 1\b).*got {value}\b"):
            add(added)
        assert not len(storage.index)
        storage.add([chunk_of(0, 0, 9, stream=most)])
        next_row: Any = 9.0
        with pytest.raises(ValueError, match=r"^first_row of a chunk: .*got 9\.0$"):
            storage.add([replace(chunk_of(0, 9, 1, stream=most), first_row=next_row)])
        storage.add([chunk_of(0, 9, 1, stream=most)])
    with DiskStorage.open(tmp_path / "a", read_only=True) as storage:
        assert [record["stream"] for record in storage.index.records] == [most] * 2


@pytest.mark.proof
def test_chunks_that_are_added_together_get_a_segment_of_their_size(tmp_path: Path) -> None:
    """Up to the largest size; later ones begin with small segments as ever."""
    many = [chunk_of(number, 0, 20, End.TERMINATED) for number in range(1_600)]
    with DiskStorage.create(tmp_path / "a", SPEC, files=NoSyncFiles()) as storage:
        for begin, end, number in ((0, 400, 0), (400, 1_600, 1)):
            storage.add(many[begin:end])
            assert set(storage.index.records["segment"][begin:].tolist()) == {number}
        storage.add([chunk_of(1_600, 0, 20)])
        assert storage.index.records["segment"][-1] == 2
        small = storage.facts.segment_bytes // 16
        assert os.stat(tmp_path / "a/segment-00000002.bin").st_size < small
    with DiskStorage.open(tmp_path / "a", read_only=True) as storage:
        assert storage.index.episodes == 1_601
