"""A changed folder is refused with an error that names the file and the values."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
)
from stepwell.buffers.testing import SPEC, assert_holds, play
from support.crash.other_processes import as_other_user
from support.disk_stores import contents, copy_of, create, filled, poke, read_all, reopen
from support.forged.stores import forge_header, forge_manifest, header_of, manifest_of

Change = Callable[[Path], str]
"""Damages a store and returns a pattern of the error of opening it."""

FIRST, SECOND = "segment-00000000.bin", "segment-00000001.bin"
MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Chunk]]:
    """A store with sealed segments and an open one, and its chunks."""
    path = tmp_path_factory.mktemp("killed") / "a"
    with create(path) as storage:
        chunks = play(storage, 12)
        copy = copy_of(path)
    assert len(manifest_of(copy).sealed) >= 2
    assert manifest_of(copy).open is not None
    return copy, chunks


@pytest.fixture
def store(killed: tuple[Path, list[Chunk]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed[0], tmp_path / "a"))


def last_of(path: Path) -> str:
    """The segment that was being written."""
    return f"segment-{manifest_of(path).open:08}.bin"


def names(*parts: object) -> str:
    """A pattern of the names and values that a message has, in this order."""
    return "^" + ".*".join(rf"(?<!\w){re.escape(str(part))}(?!\w)" for part in parts)


def cure(path: Path) -> str:
    return f"stepwell repair {path}"


# --- files of another length ----------------------------------------------------------------------


def cut_to(nbytes: int, *values: object) -> Change:
    """The first segment is shorter than it was; by default, both lengths are named."""

    def change(path: Path) -> str:
        expected = (path / FIRST).stat().st_size
        os.truncate(path / FIRST, nbytes)
        return names(path / FIRST, *(values or (nbytes, expected)), cure(path))

    return change


def resized(more: int, name: Callable[[Path], str] = lambda path: FIRST) -> Change:
    """A segment is longer or shorter than it was by some bytes."""

    def change(path: Path) -> str:
        file = path / name(path)
        expected = file.stat().st_size
        os.truncate(file, expected + more)
        return names(file, expected + more, expected, cure(path))

    return change


def open_segment_cut_off(path: Path) -> str:
    """The open segment is truncated after its last chunk, as only sealing does."""
    file = path / last_of(path)
    with reopen(path, read_only=True) as reader:
        last = reader.index.record(reader.index.base + len(reader.index) - 1)
    expected = file.stat().st_size
    os.truncate(file, last.offset + last.nbytes)
    return names(file, last.offset + last.nbytes, expected, cure(path))


# --- other files ----------------------------------------------------------------------------------


def missing(name: Callable[[Path], str]) -> Change:
    def change(path: Path) -> str:
        file = path / name(path)
        file.unlink()
        return names(file, cure(path))

    return change


def identity(path: Path, got: tuple[int, bytes], expected: tuple[int, bytes]) -> str:
    return names(path / FIRST, got[0], got[1].hex(), expected[0], expected[1].hex())


def swapped(path: Path) -> str:
    (path / FIRST).rename(path / "x")
    (path / SECOND).rename(path / FIRST)
    (path / "x").rename(path / SECOND)
    name = manifest_of(path).store
    return identity(path, (1, name), (0, name))


def other_store(path: Path) -> Path:
    filled(path.with_name("other"))
    return path.with_name("other")


def segment_of_another_store(path: Path) -> str:
    other = other_store(path)
    shutil.copy(other / FIRST, path)
    return identity(path, (0, manifest_of(other).store), (0, manifest_of(path).store))


def manifest_of_another_store(path: Path) -> str:
    before = manifest_of(path).store
    other = other_store(path)
    shutil.copy(other / MANIFEST, path)
    return identity(path, (0, before), (0, manifest_of(other).store))


def no_segment(data: bytes) -> Change:
    def change(path: Path) -> str:
        (path / FIRST).write_bytes(data)
        return names(path / FIRST, *BEGINS, data[:8], cure(path))

    return change


# --- changed bytes --------------------------------------------------------------------------------


def header_poked(path: Path) -> str:
    poke(path / FIRST, 60, b"\xff")
    return names(path / FIRST, "header", cure(path))


def manifest_replaced(data: Callable[[bytes], bytes]) -> Change:
    def change(path: Path) -> str:
        before = (path / MANIFEST).read_bytes()
        (path / MANIFEST).write_bytes(data(before))
        assert data(before) != before
        return names(path / MANIFEST, "checksum", cure(path))

    return change


def other_fields(path: Path) -> str:
    manifest = manifest_of(path)
    other = replace(manifest.facts, spec=SPEC.with_codecs({"action": "raw"}))
    (path / MANIFEST).write_bytes(replace(manifest, facts=other).pack())
    return names(path / FIRST, "'action'", "int64 (), raw", "int64 (), narrow")


def stamp_segment(path: Path, version: int, least_reader: int) -> None:
    """Give a segment the format numbers of a later version."""
    forge_header(path, {8: struct.pack("<HH", version, least_reader)})


def stamp_manifest(path: Path, version: int, least_reader: int) -> None:
    """Give a manifest the format numbers of a later version."""
    forge_manifest(path, lambda body: body.update(format=version, least_reader=least_reader))


def newer_segment(path: Path) -> str:
    stamp_segment(path, 3, 2)
    return names(path / FIRST, 2, 1)


def newer_manifest(path: Path) -> str:
    stamp_manifest(path, 3, 2)
    return names(path, 2, 1)


def without_manifest(path: Path) -> str:
    (path / MANIFEST).unlink()
    return names(path, MANIFEST)


BEGINS = 84, b"\x93SWELL\r\n"  # the least bytes of a header, and its first ones
CASES: dict[str, tuple[type[Exception], Change]] = {
    "empty segment": (StoreCorrupt, cut_to(0, *BEGINS, 0)),
    "segment cut off in its first fields": (StoreCorrupt, cut_to(50, *BEGINS, 50)),
    "segment cut off after its header": (StoreCorrupt, cut_to(4096)),
    "segment cut off in slot table B": (StoreCorrupt, cut_to(8192 + 70)),
    "sealed segment one byte too short": (StoreCorrupt, resized(-1)),
    "sealed segment one byte too long": (StoreCorrupt, resized(1)),
    "open segment one byte too long": (StoreCorrupt, resized(1, last_of)),
    "open segment cut off as if it were sealed": (StoreCorrupt, open_segment_cut_off),
    "first segment missing": (StoreCorrupt, missing(lambda path: FIRST)),
    "open segment missing": (StoreCorrupt, missing(last_of)),
    "two segments swapped": (StoreCorrupt, swapped),
    "segment of another store": (StoreCorrupt, segment_of_another_store),
    "manifest of another store": (StoreCorrupt, manifest_of_another_store),
    "some text instead of a segment": (StoreCorrupt, no_segment(b"step,reward\n" * 9_000)),
    "segment whose header changed": (StoreCorrupt, header_poked),
    "segment of a later version": (StoreTooNew, newer_segment),
    "manifest of a later version": (StoreTooNew, newer_manifest),
    "manifest with other fields": (StoreCorrupt, other_fields),
    "manifest missing": (StoreNotFound, without_manifest),
    "manifest empty": (StoreCorrupt, manifest_replaced(lambda data: b"")),
    "manifest changed": (
        StoreCorrupt,
        manifest_replaced(lambda data: data.replace(b'"capacity":null', b'"capacity":1000')),
    ),
}


@pytest.mark.parametrize("read_only", [True, False], ids=["to read", "to write"])
@pytest.mark.parametrize("case", CASES)
def test_a_changed_folder_is_refused_and_not_changed(
    store: Path, case: str, read_only: bool
) -> None:
    error, change = CASES[case]
    message = change(store)
    before = contents(store)
    with pytest.raises(error, match=message):
        reopen(store, read_only=read_only)
    assert {**contents(store), "LOCK": b""} == {**before, "LOCK": b""}


def stamp_all(path: Path) -> None:
    """Of a later version that this one can read."""
    stamp_segment(path, 2, 1)
    stamp_manifest(path, 2, 1)


def still_long(path: Path) -> None:
    """As after a crash between sealing and truncating the first segment."""
    file, header = path / FIRST, header_of(path)
    assert header.file_bytes > file.stat().st_size
    os.truncate(file, header.file_bytes)


HARMLESS: dict[str, Callable[[Path], object]] = {
    "untouched": lambda path: None,
    "LOCK missing": lambda path: (path / "LOCK").unlink(),
    "LOCK overwritten": lambda path: (path / "LOCK").write_bytes(b"\xff" * 5_000),
    "later version that this one can read": stamp_all,
    "sealed segment not yet cut off": still_long,
    "foreign file in the folder": lambda path: (path / "notes.txt").write_bytes(b"mine"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_a_folder_with_harmless_changes_is_opened(
    store: Path, killed: tuple[Path, list[Chunk]], case: str
) -> None:
    HARMLESS[case](store)
    for read_only in (True, False):
        with reopen(store, read_only=read_only) as storage:
            assert_holds(storage, killed[1])


# --- damage while the store is open ---------------------------------------------------------------


def test_a_file_that_is_truncated_while_it_is_read_does_not_crash_the_process(store: Path) -> None:
    with reopen(store, read_only=True) as reader:
        expected = (store / FIRST).stat().st_size
        os.truncate(store / FIRST, 8192)
        with pytest.raises(StoreCorrupt, match=names(store / FIRST, 8192, expected, cure(store))):
            reader.payload(0)


# --- other paths, and folders that cannot be written ----------------------------------------------


def test_a_store_in_a_subfolder_is_suggested(tmp_path: Path) -> None:
    for name in ("b", "a"):
        create(tmp_path / "runs" / name).close()
    with pytest.raises(StoreNotFound, match=names(f"{tmp_path}/runs", f"{tmp_path}/runs/a")):
        DiskStorage.open(tmp_path / "runs", read_only=True)


def test_only_a_folder_with_a_store_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("missing", "file", "file/below", "empty"):
        message = names(tmp_path / name, MANIFEST)
        for read_only in (True, False):
            with pytest.raises(StoreNotFound, match=message):
                reopen(tmp_path / name, read_only=read_only)
        with pytest.raises(StoreNotFound, match=message):
            SequenceReplayBuffer.open(tmp_path / name)
        assert not DiskStorage.exists(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.fixture
def public_folder() -> Generator[Path]:
    """A folder that other users can enter, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def forbid_writing(path: Path) -> None:
    for each in path.iterdir():
        each.chmod(0o444)
    path.chmod(0o555)


def forbid_new_names(path: Path) -> None:
    """Its files can be written, but none can be made, renamed or removed."""
    for each in path.iterdir():
        each.chmod(0o666)
    path.chmod(0o555)


def forbid_new_names_without_lock(path: Path) -> None:
    (path / "LOCK").unlink()
    forbid_new_names(path)


@pytest.mark.parametrize(
    "forbid", [forbid_writing, forbid_new_names, forbid_new_names_without_lock]
)
def test_a_folder_that_cannot_be_written_is_only_read(
    public_folder: Path, forbid: Callable[[Path], None]
) -> None:
    path = public_folder / "a"
    with create(path) as storage:
        chunks = play(storage, 5)
        path = copy_of(path)  # with an open segment: a writer would seal it
    forbid(path)
    try:
        before = contents(path)

        def read() -> str:
            with reopen(path, read_only=True) as reader:
                assert_holds(reader, chunks)
                read_all(reader)
                assert not reader.refresh()
            return "all rows are right"

        assert as_other_user(read) == "all rows are right"
        message = names("PermissionError", path, "read_only=True")
        assert re.search(message, as_other_user(lambda: reopen(path)))
        assert contents(path) == before
    finally:
        path.chmod(stat.S_IRWXU)
