"""Small stores in folders, and what is in them."""

from __future__ import annotations

import shutil
from pathlib import Path

from stepwell.buffers import Chunk, DiskStorage
from stepwell.buffers.storage.disk.segment import segment_path
from stepwell.buffers.testing import SPEC, play
from support.crash.disk_faults import NoSyncFiles
from support.models.chunk_model import same_records

SMALL = 20_000  # bytes a segment: a few chunks


def create(path: Path, **more: int | None) -> DiskStorage:
    return DiskStorage.create(
        path,
        SPEC,
        files=NoSyncFiles(),
        **{"segment_bytes": SMALL, **more},  # type: ignore[arg-type]
    )


def reopen(path: Path, *, read_only: bool = False) -> DiskStorage:
    return DiskStorage.open(path, read_only=read_only, files=NoSyncFiles())


def filled(path: Path, calls: int = 12) -> list[Chunk]:
    with create(path) as storage:
        return play(storage, calls)


def copy_of(path: Path) -> Path:
    """The folder as a killed process leaves it: written, but not closed."""
    target = path.with_name(path.name + "-copy")
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(path, target))


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def poke(path: Path, offset: int, data: bytes = b"") -> None:
    """Put bytes into a file; without any, change the one that is there."""
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(data or bytes([old[0] ^ 0x10]))


def spoil(storage: DiskStorage, position: int) -> None:
    """Change a byte in a chunk's rows."""
    record = storage.index.record(position)
    poke(segment_path(storage.path, record.segment), record.offset + record.nbytes - 9)


def read_all(storage: DiskStorage) -> None:
    for position in range(storage.index.base, storage.index.base + len(storage.index)):
        storage.payload(position)


def assert_same_index(one: DiskStorage, other: DiskStorage) -> None:
    assert same_records(one.index.records, other.index.records)
    assert one.index.counters == other.index.counters
    assert one.index.base == other.index.base
    assert (one.index.steps, one.index.episodes) == (other.index.steps, other.index.episodes)
    read_all(one)
