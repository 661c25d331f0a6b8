"""A store in a folder: what is written is there after reopening, and every misuse is said."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_faults import NoSyncFiles
from piece_model import SPEC, Recording, assert_holds, piece_of, read_metadata, tails
from stepwell.buffers import (
    DiskStorage,
    End,
    Field,
    MemoryStorage,
    Piece,
    Spec,
    StoreCorrupt,
    StoreLocked,
    StoreNotFound,
    StoreTooNew,
)
from stepwell.buffers.disk.format import Manifest
from storage_contract import play

SMALL = 20_000  # bytes a segment: a few pieces


def create(path: Path, **more: int | None) -> DiskStorage:
    return DiskStorage.create(
        path,
        SPEC,
        files=NoSyncFiles(),
        **{"segment_bytes": SMALL, **more},  # type: ignore[arg-type]
    )


def reopen(path: Path, *, read_only: bool = False) -> DiskStorage:
    return DiskStorage.open(path, read_only=read_only, files=NoSyncFiles())


def filled(path: Path, calls: int = 12) -> list[Piece]:
    with create(path) as storage:
        return play(storage, calls)


def copy_of(path: Path) -> Path:
    """The folder as a killed process leaves it: written, but not closed."""
    target = path.with_name(path.name + "-copy")
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(path, target))


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def read_all(storage: DiskStorage) -> None:
    for position in range(storage.table.base, storage.table.base + len(storage.table)):
        storage.payload(position)


CALLS = st.lists(
    st.one_of(
        st.sampled_from(["close", "kill", "look"]),
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.integers(1, 40),
                st.sampled_from([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]),
            ),
            min_size=1,
            max_size=4,
        ),
    ),
    max_size=12,
)


@given(CALLS, st.sampled_from([None, 60, 400]))
@settings(max_examples=60)
def test_reopening_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[str | list[tuple[int, int, End]]],
    capacity: int | None,
) -> None:
    path = tmp_path_factory.mktemp("stores") / "a"
    storage, memory = create(path, capacity=capacity), MemoryStorage(SPEC)
    recording, added = Recording(), list[Piece]()
    for call in calls:
        if isinstance(call, list):
            pieces = [recording.piece(*each) for each in call]
            storage.add(pieces)
            memory.add(pieces)
            added += pieces
            continue
        before = storage.table
        if call == "look":
            with reopen(path, read_only=True) as reader:
                assert_same_table(reader, storage)
            continue
        path = copy_of(path) if call == "kill" else path
        storage.close()
        storage = reopen(path)
        assert (storage.table.records == before.records).all()
        assert (storage.table.base, storage.table.counters) == (before.base, before.counters)
        recording.open.clear()  # an unfinished episode stays cut
    if capacity is None:
        assert_holds(storage, added)
        names = [name for name in storage.table.records.dtype.names or () if name not in PLACE]
        assert (storage.table.records[names] == memory.table.records[names]).all()
        assert storage.table.steps == memory.table.steps
        assert storage.table.episodes == memory.table.episodes
    assert storage.table.counters == memory.table.counters
    read_all(storage)
    storage.close()


PLACE = ("segment", "offset")  # differ between RAM and disk


def assert_same_table(one: DiskStorage, other: DiskStorage) -> None:
    assert (one.table.records == other.table.records).all()
    assert one.table.counters == other.table.counters
    assert one.table.base == other.table.base
    assert (one.table.steps, one.table.episodes) == (other.table.steps, other.table.episodes)
    read_all(one)


def test_an_unfinished_episode_is_cut_by_reopening_and_never_continued(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage:
        storage.add([piece_of(0, 0, 4, End.PENDING)])
    with reopen(tmp_path / "a") as storage:
        with pytest.raises(ValueError, match="begins with row 3, expected row 0"):
            storage.add([piece_of(0, 3, 4)])
        with pytest.raises(ValueError, match=r"episode 0 is stored already.* from 1 on are free"):
            storage.add([piece_of(0, 0, 4)])
        storage.add([piece_of(1, 0, 4)])
        assert_holds(storage, [piece_of(0, 0, 4, End.PENDING), piece_of(1, 0, 4)])


def test_ids_are_not_used_again_when_their_rows_are_gone(tmp_path: Path) -> None:
    with create(tmp_path / "a", capacity=160) as storage:
        for episode in range(30):
            storage.add([piece_of(episode, 0, 20, End.TERMINATED)])
        counters, base = storage.table.counters, storage.table.base
    with reopen(tmp_path / "a") as storage:
        assert (storage.table.counters, storage.table.base) == (counters, base)
        assert counters == (600, 30, 19 * 30)
        with pytest.raises(ValueError, match="episode 3 is stored already"):
            storage.add([piece_of(3)])


def test_counters_survive_when_every_segment_was_evicted(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    folder = tmp_path / "a" / "manifest.json"
    manifest = Manifest.unpack(folder.read_bytes(), "manifest")
    folder.write_bytes(replace(manifest, sealed=()).pack())  # as between evicting and opening one
    with reopen(tmp_path / "a") as storage:
        assert len(storage.table) == 0
        assert tuple(manifest.next)[1:] == (storage.table.base, *storage.table.counters)
        assert storage.table.next_episode > 0
        storage.add([piece_of(storage.table.next_episode)])
        assert int(storage.table.records["segment"][0]) == manifest.next.segment


def test_a_small_store_takes_little_room_once_closed(tmp_path: Path) -> None:
    with DiskStorage.create(tmp_path / "a", SPEC) as storage:
        storage.add([piece_of(0)])
        assert storage.nbytes > 1 << 20
    assert storage.nbytes == sum(path.stat().st_size for path in (tmp_path / "a").glob("*.bin"))
    assert storage.nbytes < 100_000
    with DiskStorage.open(tmp_path / "a"):
        pass
    assert sorted(os.listdir(tmp_path / "a")) == ["LOCK", "manifest.json", "segment-00000000.bin"]


def test_files_grow_with_the_run_and_keep_below_their_limit(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2_000, 12, 8), np.uint8)
    with create(tmp_path / "a", segment_bytes=4 << 20) as storage:
        for episode in range(80):
            whole = piece_of(episode, 0, 2_000, End.TERMINATED)
            fields = {**whole.fields, "observation": noise}
            storage.add([replace(whole, fields=fields)])
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob("*.bin"))]
    assert sizes[0] < 1.2 * (1 << 20)
    assert 3.5 * (1 << 20) < max(sizes) < 4.5 * (1 << 20)
    assert len(sizes) < 12


def test_a_piece_larger_than_a_file_gets_a_larger_file(tmp_path: Path) -> None:
    whole = piece_of(1, 0, 3_000, End.TERMINATED, stream=1)
    pieces = [piece_of(0, 0, 5), whole, piece_of(0, 5, 5)]
    with create(tmp_path / "a") as storage:
        storage.add(pieces)
        assert storage.table.records["segment"].tolist()[:2] == [0, 1]
        assert storage.table.records["nbytes"][1] > 2 * SMALL
    with reopen(tmp_path / "a", read_only=True) as reader:
        assert_holds(reader, pieces)


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


@pytest.mark.parametrize("value", [np.int64(3), float("nan"), {1, 2}])
def test_facts_must_be_plain_json(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match=r"^expected plain JSON values: .*; convert them first$"):
        DiskStorage.create(tmp_path / "a", SPEC, provenance={"x": value})
    assert not (tmp_path / "a").exists()
    with create(tmp_path / "a") as storage:
        with pytest.raises(TypeError, match=r"^expected plain JSON values: "):
            storage.append_session({"x": value})
        storage.append_session({"x": 1})


def test_a_capacity_stays_until_another_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a"
    create(path, capacity=500).close()
    with reopen(path) as storage:
        assert (storage.capacity, storage.capacity_bytes) == (500, None)
        play(storage, 60)
        assert 300 < storage.table.steps <= 500
        following = storage.table.next_episode
    with DiskStorage.open(path, capacity=100, capacity_bytes=1 << 20) as storage:
        storage.add([piece_of(following, 0, 5)])
        assert storage.table.steps <= 100
    with reopen(path, read_only=True) as reader:
        assert (reader.capacity, reader.capacity_bytes) == (100, 1 << 20)


# --- several processes, several storages ---------------------------------------------------------


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage:
        message = rf"a is written by pid {os.getpid()} on .+ since \d{{4}}-.*read_only=True$"
        with pytest.raises(StoreLocked, match=message):
            reopen(tmp_path / "a")
        storage.add([piece_of(0)])
        with reopen(tmp_path / "a", read_only=True) as reader:
            assert_holds(reader, [piece_of(0)])
    with reopen(tmp_path / "a"):
        pass


def test_a_snapshot_stays_bit_exact_while_the_store_moves_on(tmp_path: Path) -> None:
    storage = create(tmp_path / "a", capacity=320)
    before = play(storage, 6)
    kept = before[storage.table.base :]
    reader, other = (reopen(tmp_path / "a", read_only=True) for _ in range(2))
    table = reader.table
    for number in range(60):
        storage.add([piece_of(1_000 + number, 0, 20, End.TERMINATED)])
    assert storage.table.base > len(before)  # all that the reader sees is evicted
    assert_holds(reader, kept)
    storage.close()
    assert_holds(reader, kept)
    assert reader.refresh()
    assert not reader.refresh()
    assert table.records["episode"].max() < 1_000 <= reader.table.records["episode"].min()
    assert_holds(other, kept)
    read_all(reader)
    assert_same_table(reader, storage_of(tmp_path / "a"))


def storage_of(path: Path) -> DiskStorage:
    storage = reopen(path, read_only=True)
    return storage


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    storage, added, recording = create(tmp_path / "a"), list[Piece](), Recording()
    reader = reopen(tmp_path / "a", read_only=True)
    for number in range(60):
        pieces = [recording.piece(number % 3, 9, End(number % 6 == 5)) for _ in range(3)]
        storage.add(pieces)
        added += pieces
        assert reader.refresh()
        assert_same_table(reader, storage)
    assert_holds(reader, added)
    assert reader.recovery.torn == 0
    storage.close()
    assert not reader.refresh()


def test_a_reader_that_misses_an_eviction_while_it_looks_looks_again(tmp_path: Path) -> None:
    storage = create(tmp_path / "a", capacity=64)
    storage.add([piece_of(0, 0, 60, End.TERMINATED)])

    class Racing(NoSyncFiles):
        """The writer evicts between the reader's look at the manifest and at the segments."""

        raced = False

        def open(self, path: Path) -> object:  # type: ignore[override]
            if path.name.startswith("segment") and not Racing.raced:
                Racing.raced = True
                storage.add([piece_of(1, 0, 60, End.TERMINATED)])
            return super().open(path)

    with DiskStorage.open(tmp_path / "a", read_only=True, files=Racing()) as reader:
        assert Racing.raced
        assert_same_table(reader, storage)
    storage.close()


def test_a_reader_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage:
        play(storage, 5)
        path = copy_of(tmp_path / "a")
    before = contents(path)
    for each in (path, *path.iterdir()):
        each.chmod(0o555 if each.is_dir() else 0o444)
    try:
        with reopen(path, read_only=True) as reader:
            read_all(reader)
        assert contents(path) == before
    finally:
        path.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_says_how_to_read_it(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    (tmp_path / "a" / "LOCK").chmod(0o444)
    with pytest.raises(PermissionError, match=r"cannot be written.* with read_only=True$"):
        reopen(tmp_path / "a")


# --- misuse ---------------------------------------------------------------------------------------


def test_only_a_folder_with_a_store_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file", "."):
        for read_only in (True, False):
            with pytest.raises(
                StoreNotFound, match=r"holds no store, expected a folder with a man"
            ):
                reopen(tmp_path / name, read_only=read_only)
    assert os.listdir(tmp_path) == ["file"]
    assert not DiskStorage.exists(tmp_path)


def test_only_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with pytest.raises(ValueError, match=r"a holds a store already, expected a new or empty folde"):
        create(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"is not empty, expected a new or empty folder: choose an"
    ):
        create(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file is a file, expected a folder: choose another fold"):
        create(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").close()
    create(tmp_path / "new" / "and" / "deep").close()
    assert DiskStorage.exists(tmp_path / "new" / "and" / "deep")


def test_of_two_that_make_a_store_at_once_the_later_one_is_refused(tmp_path: Path) -> None:
    class Late(NoSyncFiles):
        """The other one makes and closes its store just before this one takes the lock."""

        def lock(self, file: io.FileIO) -> bool:
            filled(tmp_path / "a")
            return super().lock(file)

    with pytest.raises(ValueError, match=r"a holds a store already"):
        DiskStorage.create(tmp_path / "a", SPEC, files=Late())
    with reopen(tmp_path / "a") as storage:
        assert len(storage.table) > 0


def test_a_relative_path_survives_a_change_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = filled(Path("a"))
    with reopen(Path("a"), read_only=True) as reader:
        monkeypatch.chdir("/")
        assert_holds(reader, pieces)


def test_what_is_read_only_or_closed_is_not_written(tmp_path: Path) -> None:
    storage = create(tmp_path / "a")
    with pytest.raises(ValueError, match=r"is open for writing, expected read_only=True"):
        storage.refresh()
    storage.add([piece_of(0)])
    storage.close()
    reader = reopen(tmp_path / "a", read_only=True)
    writes: list[Callable[[DiskStorage], object]] = [
        lambda one: one.add([piece_of(1)]),
        lambda one: one.append_session({}),
    ]
    for write in writes:
        with pytest.raises(ValueError, match=r"a was opened with read_only=True, expected a store"):
            write(reader)
    reader.close()
    uses: list[Callable[[DiskStorage], object]] = [
        *writes,
        lambda one: one.payload(0),
        lambda one: one.refresh(),
    ]
    for use in uses:
        for closed in (storage, reader):
            with pytest.raises(
                ValueError, match=r"a is closed, expected an open store: open it ag"
            ):
                use(closed)


def test_a_forked_child_may_read_but_not_write(tmp_path: Path) -> None:
    with create(tmp_path / "a") as storage:
        storage.add([piece_of(0)])
        before = contents(tmp_path / "a")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert_holds(storage, [piece_of(0)])
                storage.add([piece_of(1)])
            except StoreLocked as error:
                code = 0 if "this is its fork" in str(error) else 2
            finally:
                storage.close()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert contents(tmp_path / "a") == before
        with pytest.raises(StoreLocked):  # the child's close did not free the lock
            reopen(tmp_path / "a")
        storage.add([piece_of(1)])
    with reopen(tmp_path / "a", read_only=True) as reader:
        assert_holds(reader, [piece_of(0), piece_of(1)])


def test_windows_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    message = r"needs Linux or macOS.*keep the replay in memory"
    with pytest.raises(OSError, match=message):
        create(tmp_path / "a")
    with pytest.raises(OSError, match=message):
        reopen(tmp_path / "a")


def test_a_dtype_without_a_place_in_the_format_is_refused(tmp_path: Path) -> None:
    spec = Spec((Field("observation", "datetime64[ns]", (), "raw"),), "observation", "observation")
    with pytest.raises(TypeError, match=r"field 'observation': dtype datetime64\[ns\] cannot be s"):
        DiskStorage.create(tmp_path / "a", spec)
    assert not (tmp_path / "a").exists()


def test_a_budget_too_small_for_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"capacity_bytes: expected at least 1048576 for a folder"):
        create(tmp_path / "a", capacity_bytes=1 << 19)


# --- a folder that is not as it was left ----------------------------------------------------------

Change = Callable[[Path], None]


def swap(path: Path) -> None:
    one, other = path / "segment-00000000.bin", path / "segment-00000001.bin"
    one.rename(path / "x")
    other.rename(one)
    (path / "x").rename(other)


def edit_manifest(path: Path, **changes: object) -> None:
    file = path / "manifest.json"
    body = cast("dict[str, object]", json.loads(file.read_bytes())["body"])
    manifest = Manifest.unpack(file.read_bytes(), "manifest")
    if "spec" in changes:
        file.write_bytes(replace(manifest, spec=cast("Spec", changes["spec"])).pack())
    else:
        text = json.dumps({**body, **changes}, separators=(",", ":")).encode()
        import zlib

        file.write_bytes(b'{"body":%b,"crc":"%08x"}\n' % (text, zlib.crc32(text)))


def foreign(path: Path) -> None:
    filled(path.with_name("foreign"))
    shutil.copy(path.with_name("foreign") / "segment-00000000.bin", path)


def other_spec(path: Path) -> None:
    edit_manifest(path, spec=SPEC.with_codecs({"action": "raw"}))


FIRST = "segment-00000000.bin"
CHANGES: dict[str, tuple[Change, type[Exception], str]] = {
    "truncated": (
        lambda path: os.truncate(path / FIRST, 20_000),
        StoreCorrupt,
        r"00000000\.bin has 20000 bytes, expected \d+; restore the file from a copy",
    ),
    "extended": (
        lambda path: os.truncate(path / FIRST, 200_000),
        StoreCorrupt,
        r"00000000\.bin has 200000 bytes, expected \d+; restore the file from a copy",
    ),
    "missing": (
        lambda path: (path / FIRST).unlink(),
        StoreCorrupt,
        r"00000000\.bin is missing: it was removed, or evicted",
    ),
    "swapped": (swap, StoreCorrupt, r"00000000\.bin is segment 1 of store .*, expected segment 0"),
    "foreign": (foreign, StoreCorrupt, r"is segment 0 of store \w+, expected segment 0 of store"),
    "empty": (
        lambda path: os.truncate(path / FIRST, 0),
        StoreCorrupt,
        r"00000000\.bin does not begin like a segment",
    ),
    "other spec": (other_spec, StoreCorrupt, r"holds other fields than the manifest says"),
    "newer manifest": (
        lambda path: edit_manifest(path, least_reader=2),
        StoreTooNew,
        r"a is format 2, this stepwell reads up to 1; upgrade stepwell$",
    ),
    "newer segment": (
        lambda path: poke(path / FIRST, 10, b"\x02"),
        StoreTooNew,
        r"00000000\.bin is format 2, this stepwell reads up to 1; upgrade stepwell$",
    ),
    "damaged header": (
        lambda path: poke(path / FIRST, 60, b"\xff"),
        StoreCorrupt,
        r"00000000\.bin: its header is damaged",
    ),
    "damaged manifest": (
        lambda path: poke(path / "manifest.json", 60, b"\x01"),
        StoreCorrupt,
        r"manifest\.json is damaged: wrong checksum",
    ),
    "empty manifest": (
        lambda path: os.truncate(path / "manifest.json", 0),
        StoreCorrupt,
        r"manifest\.json is damaged: wrong checksum",
    ),
}


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_folder_is_refused(tmp_path: Path, case: str, read_only: bool) -> None:
    filled(tmp_path / "a")
    change, error, message = CHANGES[case]
    change(tmp_path / "a")
    with pytest.raises(error, match=message):
        reopen(tmp_path / "a", read_only=read_only)


def test_files_that_a_crash_left_are_swept_by_the_next_writer(tmp_path: Path) -> None:
    pieces = filled(tmp_path / "a")
    before = sorted(os.listdir(tmp_path / "a"))
    (tmp_path / "a" / "segment-00000099.bin.tmp").write_bytes(b"half")
    (tmp_path / "a" / "manifest.json.tmp").write_bytes(b"half")
    (tmp_path / "a" / "notes.txt").write_bytes(b"mine")
    with reopen(tmp_path / "a") as storage:
        assert_holds(storage, pieces)
    assert sorted(os.listdir(tmp_path / "a")) == sorted([*before, "notes.txt"])


def test_a_manifest_older_than_its_segments_is_refused_and_nothing_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with create(path) as storage:
        play(storage, 3)
    old = (path / "manifest.json").read_bytes()
    with reopen(path) as storage:
        storage.add([piece_of(storage.table.next_episode)])
    (path / "manifest.json").write_bytes(old)
    names = sorted(os.listdir(path))
    with pytest.raises(StoreCorrupt, match=r"holds pieces, but manifest\.json does not list it"):
        reopen(path)
    assert sorted(os.listdir(path)) == names


def test_a_file_that_is_cut_off_under_a_reader_does_not_end_the_process(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with reopen(tmp_path / "a", read_only=True) as reader:
        os.truncate(tmp_path / "a" / FIRST, 8192)
        with pytest.raises(StoreCorrupt, match=r"bin has 8192 bytes, expected \d+; restore the f"):
            reader.payload(0)


def test_damaged_rows_name_file_episode_and_offset(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with reopen(tmp_path / "a", read_only=True) as reader:
        record = reader.table.record(2)
    poke(tmp_path / "a" / FIRST, record.offset + 40, b"\xff\xfe")
    with reopen(tmp_path / "a", read_only=True) as reader:
        reader.payload(1)
        message = (
            rf"{FIRST}: the {record.nbytes} bytes at offset {record.offset}, "
            rf"rows {record.first_row} to \d+ of episode {record.episode}, are not what was written"
        )
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=message):
                reader.payload(2)
        reader.payload(3)


def test_metadata_survives(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with reopen(tmp_path / "a", read_only=True) as reader:
        for episode, tail in tails(reader).items():
            position = tail
            while (record := reader.table.record(position)).previous >= 0:
                position = record.previous
            assert read_metadata(reader, position) == {"seed": episode}
