"""A medium that loses everything not synced: files and folders after a loss of power.

The calls go to a real folder, which stands for the kernel's memory. Beside it every file keeps its
*durable* bytes and, sector by sector, what was written since its last sync; every folder keeps its
durable names and what changed since. An image takes of these what chance leaves:

- of a sector one of the contents that it had since the sync, by a coin of 0 to 100 %;
- of changes of a file's length some first ones, in their order;
- of changes of a folder's names some first ones, or any; a rename is seen whole or not at all.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from support.crash.disk_faults import Killed, SteeredFiles

Result = TypeVar("Result")

SECTOR, _PAGE = 512, 4096


@dataclass
class _File:
    """Bytes of one file."""

    durable: bytearray = field(default_factory=bytearray)  # what is on the medium for certain
    cached: bytearray = field(default_factory=bytearray)  # what those who read see
    # Contents since the last sync of every sector that was written, the oldest first.
    sectors: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    lengths: list[int] = field(default_factory=list[int])  # lengths since the last sync
    had_failed_sync: bool = False  # the system may take sectors for written that are not

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.cached):
            self.resize(end)
        self.cached[offset:end] = data
        # The system writes whole pages, but only after a failed sync is that any different.
        unit = _PAGE if self.had_failed_sync else SECTOR
        first, last = offset // unit * unit, -(-end // unit) * unit
        for start in range(first, min(last, len(self.cached)), SECTOR):
            versions = self.sectors.setdefault(start, [])
            versions.append(bytes(self.cached[start : start + SECTOR]))

    def resize(self, nbytes: int) -> None:
        if nbytes == len(self.cached):
            return
        if nbytes < len(self.cached):
            del self.cached[nbytes:]
            self.sectors = {start: v for start, v in self.sectors.items() if start < nbytes}
        else:
            self.cached.extend(bytes(nbytes - len(self.cached)))
        self.lengths.append(nbytes)

    def sync(self) -> None:
        for nbytes in self.lengths:
            _set_length(self.durable, nbytes)
        for start in self.sectors:
            self.durable[start : start + SECTOR] = self.cached[start : start + SECTOR]
        self.sectors, self.lengths = {}, []

    def fail_sync(self, rng: random.Random) -> None:
        """Some is written; the rest never will be, though those who read still see it."""
        self.durable = self.survive(rng)
        _set_length(self.durable, len(self.cached))
        self.sectors, self.lengths, self.had_failed_sync = {}, [], True

    def survive(self, rng: random.Random) -> bytearray:
        """The bytes after a loss of power."""
        found = bytearray(self.durable)
        for nbytes in self.lengths[: rng.randint(0, len(self.lengths))]:
            _set_length(found, nbytes)
        bias = rng.random()
        for start, versions in self.sectors.items():
            if start < len(found):
                if rng.random() < bias:
                    kept = versions[-1]
                elif rng.random() < 0.5 and len(versions) > 1:
                    kept = rng.choice(versions)
                else:
                    continue
                end = min(start + len(kept), len(found))
                found[start:end] = kept[: end - start]
        return found


@dataclass
class _Folder:
    """Names of one folder: on the medium, now, and the changes that lie between."""

    durable: dict[str, _File | _Folder] = field(default_factory=dict[str, "_File | _Folder"])
    names: dict[str, _File | _Folder] = field(default_factory=dict[str, "_File | _Folder"])
    changes: list[_Change] = field(default_factory=list["_Change"])

    def change(self, *steps: tuple[str, _File | _Folder | None]) -> None:
        """Give names to files, or take them away, all at once."""
        _apply(self.names, steps)
        self.changes.append(steps)

    def sync(self) -> None:
        self.durable, self.changes = dict(self.names), []

    def survive(self, rng: random.Random) -> dict[str, _File | _Folder]:
        found = dict(self.durable)
        in_order = rng.random() < 0.5
        last = rng.randint(0, len(self.changes))
        for number, steps in enumerate(self.changes):
            if number < last if in_order else rng.random() < 0.5:
                _apply(found, steps)
        return found


_Change = tuple[tuple[str, "_File | _Folder | None"], ...]
Image = dict[str, bytearray | None]
"""Contents of every file by its path, None for a folder."""


class Medium:
    """The files in a folder, which are durable at first, and what of them would survive now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = _load(root)

    def image(self, rng: random.Random) -> Image:
        """A random result of a loss of power at this moment."""
        found: Image = {}
        _survive(self._top, "", rng, found)
        return found

    def file(self, path: Path) -> _File:
        found = self.folder(path.parent).names[path.name]
        assert isinstance(found, _File)
        return found

    def folder(self, path: Path) -> _Folder:
        at = self._top
        for name in path.relative_to(self.root).parts:
            found = at.names[name]
            assert isinstance(found, _Folder)
            at = found
        return at

    def make_file(self, path: Path) -> _File:
        """The file with that name, a new one where there is none."""
        folder = self.folder(path.parent)
        if path.name not in folder.names:
            folder.change((path.name, _File()))
        return self.file(path)


def restore(image: Image, root: Path) -> None:
    """Write an image into an empty folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, data in image.items():
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)


class Failure(NamedTuple):
    """A way in which a call fails."""

    error: int  # its number
    is_short: bool = False  # the call is a write of which a part is done; the next write fails
    is_lasting: bool = False  # all later calls fail too


class MediumFiles(SteeredFiles):
    """System calls on a medium, which may be stopped at one of them, or fail."""

    # `watch` is called before every call that changes something. The process ends at the call of
    # the number `fatal_call`, from 0 on, of a write with a part of it done. The `fdatasync` of
    # another number fails, and so does, of all calls, reading ones too, that of the number
    # `failing_call`. None: never.

    def __init__(
        self,
        medium: Medium,
        watch: Callable[[], None],
        rng: random.Random,
        fatal_call: int | None = None,
        failing_sync: int | None = None,
        failing_call: int | None = None,
        failure: Failure | None = None,
    ) -> None:
        self.failed = ""  # the name of the call
        self._medium, self._watch, self._rng = medium, watch, rng
        self._fatal_call, self._failing_sync = fatal_call, failing_sync
        self._failing_call, self._failure = failing_call, failure or Failure(0)
        self._calls = self._syncs = self._all_calls = 0
        self._is_due = False
        self._inodes: dict[int, _File] = {}
        self._opened: list[io.FileIO] = []

    @property
    def is_retried(self) -> bool:
        """A segment is mapped again after others were released."""
        is_mapping = self.failed in ("open", "size", "map")
        return is_mapping and self._failure.error == errno.EMFILE

    def cure(self) -> None:
        """Let nothing fail any more."""
        self._failing_sync = self._failing_call = None

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        self._watch()
        self._calls += 1
        if self._fatal_call is not None and self._calls > self._fatal_call:
            raise Killed
        self._count(name)
        return call()

    def close_all(self) -> None:
        """Close all files, as the kernel does when a process ends."""
        for file in self._opened:
            file.close()

    def write(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        def part() -> memoryview:
            return data[: self._rng.randint(1, len(data))]

        if self._calls == self._fatal_call:
            self._put(file, part(), offset)
        is_now = self._failure.is_short and self._all_calls == self._failing_call
        return self.steer("pwrite", lambda: self._put(file, part() if is_now else data, offset))

    def _put(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        written = super().write(file, data, offset)
        self._inode(file).write(offset, bytes(data[:written]))
        return written

    def _count(self, name: str) -> None:
        """Fail if it is time for that; after a short write it is at the next one."""
        number, self._all_calls = self._all_calls, self._all_calls + 1
        if self._failing_call is None:
            return
        is_now = number == self._failing_call
        is_now |= self._failure.is_lasting and number > self._failing_call
        if self._failure.is_short:
            is_now, self._is_due = self._is_due and name == "pwrite", self._is_due or is_now
        if is_now:
            self._fail(name, self._failure.error)

    def _fail(self, name: str, error: int) -> None:
        self.failed = self.failed or name
        raise OSError(error, os.strerror(error))

    def open(self, path: Path) -> io.FileIO:
        self._count("open")
        file = super().open(path)
        self._opened.append(file)
        return file

    def pread(self, file: io.FileIO, nbytes: int, offset: int) -> bytes:
        self._count("pread")
        return super().pread(file, nbytes, offset)

    def size(self, file: io.FileIO) -> int:
        self._count("size")
        return super().size(file)

    def map(self, file: io.FileIO) -> np.ndarray:
        self._count("map")
        return super().map(file)

    def lock(self, file: io.FileIO) -> bool:
        self._count("lock")
        return super().lock(file)

    def open_to_write(self, path: Path) -> io.FileIO:
        file = super().open_to_write(path)
        self._opened.append(file)
        self._inodes[os.fstat(file.fileno()).st_ino] = self._medium.make_file(path)
        return file

    def create(self, path: Path) -> io.FileIO:
        file = super().create(path)
        self._opened.append(file)
        inode = self._inodes[os.fstat(file.fileno()).st_ino] = _File()
        self._medium.folder(path.parent).change((path.name, inode))
        return file

    def allocate(self, file: io.FileIO, nbytes: int) -> None:
        super().allocate(file, nbytes)
        inode = self._inode(file)
        inode.resize(max(nbytes, len(inode.cached)))

    def truncate(self, file: io.FileIO, nbytes: int) -> None:
        super().truncate(file, nbytes)
        self._inode(file).resize(nbytes)

    def fdatasync(self, file: io.FileIO) -> None:
        super().fdatasync(file)
        self._syncs += 1
        if self._syncs - 1 == self._failing_sync:
            self._inode(file).fail_sync(self._rng)
            self._fail("fdatasync", errno.EIO)
        self._inode(file).sync()

    def fsync(self, file: io.FileIO) -> None:
        super().fsync(file)
        self._inode(file).sync()

    def fsync_folder(self, path: Path) -> None:
        super().fsync_folder(path)
        self._medium.folder(path).sync()

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._medium.folder(path.parent).change((path.name, _Folder()))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        file = self._medium.file(old)
        self._medium.folder(old.parent).change((old.name, None), (new.name, file))

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self._medium.folder(new.parent).change((new.name, self._medium.file(old)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._medium.folder(path.parent).change((path.name, None))

    def _inode(self, file: io.FileIO) -> _File:
        return self._inodes[os.fstat(file.fileno()).st_ino]


def _apply(names: dict[str, _File | _Folder], steps: _Change) -> None:
    for name, found in steps:
        if found is None:
            names.pop(name, None)
        else:
            names[name] = found


def _set_length(data: bytearray, nbytes: int) -> None:
    del data[nbytes:]
    data.extend(bytes(nbytes - len(data)))


def _load(path: Path) -> _Folder:
    names: dict[str, _File | _Folder] = {}
    for each in path.iterdir():
        if each.is_dir():
            names[each.name] = _load(each)
        else:
            data = each.read_bytes()
            names[each.name] = _File(bytearray(data), bytearray(data))
    return _Folder(dict(names), names)


def _survive(folder: _Folder, prefix: str, rng: random.Random, found: Image) -> None:
    for name, each in folder.survive(rng).items():
        if isinstance(each, _File):
            found[prefix + name] = each.survive(rng)
        else:
            found[prefix + name] = None
            _survive(each, f"{prefix}{name}/", rng, found)
