"""After a crash every flush that returned is stored, none is stored in part, none is wrong."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import Chunk, DiskStorage, End, StoreCorrupt, StoreFailed
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SLOT, Header, SealedSegment
from stepwell.buffers.storage.disk.segment import load, segment_path
from stepwell.buffers.testing import SPEC, assert_holds, chunk_of
from support.crash.disk_faults import NoSyncFiles, Result, SteeredFiles

A, B, DATA = 0, 1, 2
Flushes = list[list[Chunk]]


def joined(flushes: Flushes) -> list[Chunk]:
    return [chunk for chunks in flushes for chunk in chunks]


def test_after_a_failure_the_writer_refuses_more_rows(tmp_path: Path) -> None:
    class Failing(NoSyncFiles):
        fails = False

        def fdatasync(self, file: object) -> None:
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = Failing()
    storage = DiskStorage.create(tmp_path / "a", SPEC, files=files)
    storage.add([chunk_of(0)])
    files.fails = True
    message = rf"{tmp_path}/a\b.*{os.strerror(errno.EIO)}"
    with pytest.raises(StoreFailed, match=message):
        storage.add([chunk_of(1)])
    files.fails = False
    for _ in range(2):
        with pytest.raises(StoreFailed, match=message):
            storage.add([chunk_of(2)])
    assert_holds(storage, [chunk_of(0)])
    storage.close()
    with DiskStorage.open(tmp_path / "a", files=files) as storage:
        assert storage.index.record(0).episode == 0
        storage.add([chunk_of(2)])


class Watching(SteeredFiles):
    """Lists the calls that make data durable."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, file: FileIO, data: memoryview, offset: int) -> int:
        name = Path(str(file.name)).name
        if name.endswith(".bin.tmp") and offset:
            header = Header.unpack(self.pread(file, 4096, 0), "")
            parts = [*header.table_offsets, header.data_offset]
            name = ["A", "B", "data"][sum(part <= offset for part in parts) - 1]
        self.calls.append(f"write {name}")
        return super().write(file, data, offset)

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        if name in ("allocate", "fdatasync", "fsync", "fsync_folder"):
            self.calls.append(name)
        return call()

    def rename(self, old: Path, new: Path) -> None:
        self.calls.append(f"rename {new.name}")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self.calls.append(f"unlink {path.name}")
        super().unlink(path)

    def truncate(self, file: FileIO, nbytes: int) -> None:
        if nbytes:
            self.calls.append("cut off")
        super().truncate(file, nbytes)


FLUSH = ["write data", "write A", "fdatasync", "write B"]
NEW_MANIFEST = ["write manifest.json.tmp", "fsync", "rename manifest.json", "fsync_folder"]
NEW_SEGMENT = [
    *("allocate", "write segment-00000000.bin.tmp", "fsync"),
    *("rename segment-00000000.bin", "fsync_folder"),
]


def test_the_order_of_the_calls_is_safe_against_a_loss_of_power(tmp_path: Path) -> None:
    files = Watching()
    storage = DiskStorage.create(tmp_path / "a", SPEC, capacity=160, files=files)
    files.calls.clear()
    storage.add([chunk_of(0, 0, 2), chunk_of(1, 0, 2, stream=1)])
    assert files.calls == [*NEW_SEGMENT, *NEW_MANIFEST, *FLUSH]
    files.calls.clear()
    storage.add([chunk_of(0, 2, 1)])
    assert files.calls == FLUSH
    files.calls.clear()
    storage.close()
    assert files.calls == ["fdatasync", *NEW_MANIFEST, "cut off"]
    storage = DiskStorage.open(tmp_path / "a", files=files)
    for episode in range(2, 9):
        files.calls.clear()
        storage.add([chunk_of(episode, 0, 40, End.TERMINATED)])
    unlink = next(at for at, call in enumerate(files.calls) if call.startswith("unlink"))
    assert files.calls[unlink - 4 : unlink] == NEW_MANIFEST
    storage.close()


# --- the recovery table ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed: four flushes, the second and the last of three chunks."""
    path = tmp_path_factory.mktemp("crashed") / "a"
    with DiskStorage.create(path, SPEC, files=NoSyncFiles()) as storage:
        for chunks in FLUSHES:
            storage.add(chunks)
        return Path(shutil.copytree(path, path.with_name("b")))


FLUSHES: Flushes = [
    [chunk_of(0, 0, 6)],
    [chunk_of(0, 6, 6), chunk_of(1, 0, 3, End.TERMINATED, stream=1), chunk_of(2, 0, 4, stream=1)],
    [chunk_of(0, 12, 6, End.PENDING)],
    [chunk_of(0, 17, 9), chunk_of(2, 4, 4, stream=1), chunk_of(3, 0, 4, stream=2)],
]
ALL = joined(FLUSHES)
LAST = 5  # first slot of the last flush


def damage(path: Path, slot: int, *parts: int) -> None:
    """Change a byte of one copy of a slot, or of its data."""
    file = segment_path(path, 0)
    data = bytearray(file.read_bytes())
    header = Header.unpack(bytes(data[:4096]), "")
    for part in parts:
        if part == DATA:
            entry = slots_of(data, header, A)[slot]
            data[int(entry["offset"]) + 50] ^= 4
        else:
            data[header.table_offsets[part] + slot * SLOT.itemsize + 70] ^= 1
    file.write_bytes(data)


def erase(path: Path, slot: int, *parts: int) -> None:
    """Undo the write of one copy of a slot."""
    file = segment_path(path, 0)
    data = bytearray(file.read_bytes())
    header = Header.unpack(bytes(data[:4096]), "")
    for part in parts:
        start = header.table_offsets[part] + slot * SLOT.itemsize
        data[start : start + SLOT.itemsize] = bytes(SLOT.itemsize)
    file.write_bytes(data)


def slots_of(data: bytes | bytearray, header: Header, part: int) -> np.ndarray:
    return np.frombuffer(bytes(data), SLOT, header.slots, header.table_offsets[part])


def no_b_of_last_flush(path: Path) -> None:
    for slot in range(LAST, 8):
        erase(path, slot, B)


Damage = Callable[[Path], None]
Opened = tuple[int, int, int]  # chunks, healed copies, torn chunks


def both(*changes: Damage) -> Damage:
    def change(path: Path) -> None:
        for each in changes:
            each(path)

    return change


OPENED: dict[str, tuple[Damage, Opened]] = {
    "untouched": (lambda path: None, (8, 0, 0)),
    "B damaged": (lambda path: damage(path, 2, B), (8, 1, 0)),
    "A of the last damaged": (lambda path: damage(path, 7, A), (8, 1, 0)),
    "all B of the last flush missing": (no_b_of_last_flush, (8, 3, 0)),
    "some B of the last flush missing": (lambda path: erase(path, 6, B), (8, 1, 0)),
    "torn: data of the last flush wrong": (
        both(no_b_of_last_flush, lambda path: damage(path, 6, DATA)),
        (5, 0, 3),
    ),
    "torn: an A of the last flush missing": (
        both(no_b_of_last_flush, lambda path: erase(path, 6, A)),
        (5, 0, 2),
    ),
    "torn: every A of the last flush missing": (
        both(no_b_of_last_flush, *(lambda path, n=n: erase(path, n, A) for n in (5, 6, 7))),
        (5, 0, 0),
    ),
}


@pytest.mark.parametrize("case", OPENED)
def test_the_recovery_table_opens(
    crashed: Path, tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(shutil.copytree(crashed, tmp_path / "a"))
    change, (chunks, healed, torn) = OPENED[case]
    change(path)
    for read_only in (True, False):
        with DiskStorage.open(path, read_only=read_only, files=NoSyncFiles()) as storage:
            assert_holds(storage, ALL[:chunks])
            assert storage.recovery == (healed, torn)
        told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(told) == (not read_only and bool(healed or torn))
        for message in told:
            assert f"{path}: " in message
            assert f" {healed} copies" in message
            assert f" {torn} chunks" in message
    with DiskStorage.open(path, read_only=True) as reader:
        assert_holds(reader, ALL[:chunks])
        assert reader.recovery == (0, 0)
    found = load(Files(), path, StoreFolder(path, Files()).read_manifest(), 0)
    assert found.entry == SealedSegment(0, segment_path(path, 0).stat().st_size, chunks)


REFUSED: dict[str, tuple[Damage, str]] = {
    "both copies damaged": (lambda path: damage(path, 2, A, B), r"\bslot 2\b"),
    "both copies damaged before a torn flush": (
        both(
            no_b_of_last_flush, lambda path: damage(path, 2, A, B), lambda path: erase(path, 6, A)
        ),
        r"\bslot 2\b",
    ),
    "both copies damaged within the last flush": (
        lambda path: damage(path, 6, A, B),
        r"\bslot 6\b",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("read_only", [True, False])
def test_the_recovery_table_refuses(
    crashed: Path, tmp_path: Path, case: str, read_only: bool
) -> None:
    path = Path(shutil.copytree(crashed, tmp_path / "a"))
    change, message = REFUSED[case]
    change(path)
    with pytest.raises(StoreCorrupt, match=rf"{segment_path(path, 0)}\b.*{message}"):
        DiskStorage.open(path, read_only=read_only)


@pytest.mark.parametrize("also", [(), (A,), (B,)])
@pytest.mark.parametrize("slot", [0, 2, 7])
def test_wrong_data_of_a_committed_slot_is_neither_read_nor_dropped(
    crashed: Path, tmp_path: Path, slot: int, also: tuple[int, ...]
) -> None:
    if slot == 7 and also == (B,):
        return  # all but this: B is written after the sync, so without it the flush may be torn
    path = Path(shutil.copytree(crashed, tmp_path / "a"))
    damage(path, slot, DATA, *also)
    for _ in range(2):
        with DiskStorage.open(path, files=NoSyncFiles()) as storage:
            assert len(storage.index) == len(ALL)
            for position in range(len(ALL)):
                if position == slot:
                    record = storage.index.record(position)
                    last = record.first_row + record.stored_rows - 1
                    place = (
                        rf"^{segment_path(path, 0)}\b.*\b{record.nbytes}\b.*"
                        rf"\boffset {record.offset}\b.*\brows {record.first_row} to {last}\b.*"
                        rf"\bepisode {record.episode}\b.*\bstepwell repair {path}\b"
                    )
                    for read in (storage.payload, storage.encoded):
                        with pytest.raises(StoreCorrupt, match=place):
                            read(position)
                else:
                    storage.payload(position)


def test_a_copy_b_anywhere_in_the_last_flush_proves_that_it_returned(
    crashed: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(crashed, tmp_path / "a"))
    erase(path, 6, A, B)
    with pytest.raises(StoreCorrupt, match=rf"{segment_path(path, 0)}\b.*\bslot 6\b"):
        DiskStorage.open(path)
