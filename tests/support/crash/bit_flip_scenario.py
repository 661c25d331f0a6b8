"""Changed bytes in every part of a store's files: detected, healed or harmless, never served."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stepwell.buffers import DiskStorage, StoreCorrupt, StoreTooNew
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SLOT, Header
from stepwell.buffers.storage.disk.segment import load
from support.crash.crash_truth import (
    APPEND,
    APPEND_LARGE,
    RING,
    Plan,
    Shape,
    Truth,
    Wrong,
    must_succeed,
    require,
    store_flush,
)
from support.crash.disk_faults import NoSyncFiles

KINDS = ("bit", "run", "sector", "cut", "longer")
_WEIGHTS = (8, 8, 4, 1, 1)
_FILES = NoSyncFiles()


class Region(NamedTuple):
    """A part of a file that is chosen as often as any other, however long it is."""

    file: Path
    part: str
    start: int
    stop: int


class Change(NamedTuple):
    """Bytes that take the place of others, or a new length where there are none."""

    file: Path
    kind: str
    offset: int
    data: bytes


Outcomes = Counter[str]


def flip_bits(seed: int, changes: int, folder: Path) -> Outcomes:
    """Change bytes of stores, read everything, change them back; `Wrong` if one was served."""
    # With the same seed and number of changes it makes the very same run again.
    rng, outcomes = random.Random(seed), Outcomes()
    stores = [_Store(folder / str(n), s, rng) for n, s in enumerate((APPEND, APPEND_LARGE, RING))]
    for number in range(changes):
        store = stores[number % len(stores)]
        region = rng.choice(store.regions)
        change = _change(region, rng)
        try:
            with _changed(change):
                found = store.look(change)
                is_noticed = found == "refused" or change.data or region.part == "LOCK"
                require(bool(is_noticed), "a wrong length went unnoticed")
                if number % 10 == 0:
                    store.look_as_writer(change, region)
        except Wrong as error:
            what = f"{change.kind} at {change.offset} of {change.file.name} ({region.part})"
            raise Wrong(f"seed {seed}, change {number}, {what}: {error}") from error
        outcomes[found] += 1
        outcomes[f"{region.part} {found}"] += 1
    for store in stores:
        require(store.look(None) == "harmless", "a change was not taken back")
    return outcomes


class _Store:
    """A store with sealed segments and an open one, as a killed writer leaves it."""

    def __init__(self, folder: Path, shape: Shape, rng: random.Random) -> None:
        self._folder, self._truth = folder, Truth(shape)
        self.path = folder / "store"
        with shape.create(folder / "first", _FILES) as storage:
            for _ in range(2):
                self._add(storage, Plan(rng.random(), storage.index.next_episode), 2)
        with DiskStorage.open(folder / "first", files=_FILES) as storage:
            steps = 8 if shape.capacity else 2
            self._add(storage, Plan(rng.random(), storage.index.next_episode), steps)
            shutil.copytree(folder / "first", self.path)
        self.regions = _regions(self.path)

    def look(self, change: Change | None) -> str:
        """Open the changed store and read everything."""
        with _refused(change) as refusal:
            with DiskStorage.open(self.path, read_only=True, files=_FILES) as reader:
                self._truth.compare(reader, decode=True)
                return "healed" if any(reader.recovery) else "harmless"
        require(bool(refusal), "neither read nor refused")
        return "refused"

    def look_as_writer(self, change: Change, region: Region) -> None:
        """A writer brings the changed store in order, or refuses it too."""
        path = Path(shutil.copytree(self.path, self._folder / "copy"))
        try:
            with _refused(change):
                truth = self._truth.copy()
                with DiskStorage.open(path, files=_FILES) as storage:
                    truth.settle(storage)
                with must_succeed("reading what was healed"):
                    self._damage_other_copy(path, change, region)
                    with DiskStorage.open(path, read_only=True, files=_FILES) as reader:
                        truth.compare(reader)
        finally:
            shutil.rmtree(path)

    def _damage_other_copy(self, path: Path, change: Change, region: Region) -> None:
        """One copy was healed, so the other one may break now."""
        if not region.part.startswith("slots") or change.kind in ("cut", "longer"):
            return
        with (path / change.file.name).open("r+b") as file:
            header = Header.unpack(file.read(4096), "")
            a, b = header.table_offsets
            number = (change.offset - (a if region.part == "slots A" else b)) // SLOT.itemsize
            place = (b if region.part == "slots A" else a) + number * SLOT.itemsize + 60
            value = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([value[0] ^ 1]), place)

    def _add(self, storage: DiskStorage, plan: Plan, flushes: int) -> None:
        for _ in range(flushes):
            self._truth.begin(flush := plan.flush())
            store_flush(storage, flush)
            self._truth.end()


@contextmanager
def _refused(change: Change | None) -> Iterator[list[str]]:
    """A refusal is right if it names the file; everything else that is raised is wrong."""
    messages: list[str] = []
    try:
        yield messages
    except (StoreCorrupt, StoreTooNew) as error:
        messages.append(str(error))
        # The message about the manifest's version names the store.
        name = "" if change is None else change.file.name
        is_named = name in str(error) or isinstance(error, StoreTooNew)
        require(change is not None and is_named, f"refused without the file's name: {error}")
    except (Wrong, AssertionError):
        raise
    except Exception as error:
        raise Wrong(f"not refused, but failed: {error!r}") from error


@contextmanager
def _changed(change: Change) -> Iterator[None]:
    """Make a change and take it back."""
    length = change.file.stat().st_size
    with change.file.open("r+b", buffering=0) as file:
        if change.data:
            before = os.pread(file.fileno(), len(change.data), change.offset)
            os.pwrite(file.fileno(), change.data, change.offset)
        else:
            before = os.pread(file.fileno(), length, change.offset)
            os.ftruncate(file.fileno(), change.offset)
        try:
            yield
        finally:
            os.ftruncate(file.fileno(), length)
            os.pwrite(file.fileno(), before, change.offset)


def _change(region: Region, rng: random.Random) -> Change:
    """Something that is not there yet."""
    data = region.file.read_bytes()
    while True:
        place = rng.randrange(region.start, region.stop)
        kind = rng.choices(KINDS, _WEIGHTS)[0]
        if kind == "cut":
            return Change(region.file, kind, place, b"")
        if kind == "longer":
            return Change(region.file, kind, len(data) + rng.randint(1, 5_000), b"")
        if kind == "sector":
            place = place // 512 * 512
            new = bytes(min(512, len(data) - place))
        elif kind == "bit":
            new = bytes([data[place] ^ 1 << rng.randrange(8)])
        else:
            new = rng.randbytes(min(rng.randint(1, 4), len(data) - place))
        if new != data[place : place + len(new)]:
            return Change(region.file, kind, place, new)


def _regions(path: Path) -> list[Region]:
    return [region for region in _parts(path) if region.start < region.stop]


def _parts(path: Path) -> Iterator[Region]:
    manifest = StoreFolder(path, _FILES).read_manifest()
    for name in ("manifest.json", "LOCK"):
        yield Region(path / name, name, 0, (path / name).stat().st_size)
    # Most changes of JSON cannot be parsed; numbers often can, so that only the checksum tells.
    text = (path / "manifest.json").read_bytes()
    for digits in re.finditer(rb"(?<=[:,\[])\d+|(?<=\")[0-9a-f]{32}(?=\")", text):
        yield Region(path / "manifest.json", "manifest.json", *digits.span())
    for number in manifest.numbers:
        found = load(_FILES, path, manifest, number)
        header, file, slots = found.segment.header, found.segment.path, found.segment.chunks
        yield Region(file, "header", 0, header.header_bytes)
        yield Region(file, "header", 0, 84)
        for name, offset in zip("AB", header.table_offsets, strict=True):
            used = offset + slots * SLOT.itemsize
            yield Region(file, f"slots {name}", offset, used)
            yield Region(file, f"rest of table {name}", used, offset + header.table_bytes)
        yield Region(file, "data", header.data_offset, found.segment.used_bytes)
        yield Region(file, "rest of data", found.segment.used_bytes, found.segment.nbytes)
