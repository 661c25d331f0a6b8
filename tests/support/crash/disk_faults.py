"""System calls of the disk store that are fast, fail, or end the process' life at the n-th call."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stepwell.buffers.storage.disk.files import Files

Result = TypeVar("Result")


class NoSyncFiles(Files):
    """Leaves out the waiting for the medium, which takes most of the time of a test."""

    def fdatasync(self, file: io.FileIO) -> None:
        pass

    def fsync(self, file: io.FileIO) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass

    def begin_sync(self, file: io.FileIO, offset: int, nbytes: int) -> None:
        pass


class SteeredFiles(NoSyncFiles):
    """Leads every call that changes something through `steer`, and every write through `write`."""

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        """Make a call, or do something else instead."""
        return call()

    def write(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        """Write, or do something else instead."""
        return super().pwrite(file, data, offset)

    def open_to_write(self, path: Path) -> io.FileIO:
        return self.steer("open_to_write", lambda: super(SteeredFiles, self).open_to_write(path))

    def create(self, path: Path) -> io.FileIO:
        return self.steer("create", lambda: super(SteeredFiles, self).create(path))

    def pwrite(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        return self.write(file, data, offset)

    def allocate(self, file: io.FileIO, nbytes: int) -> None:
        self.steer("allocate", lambda: super(SteeredFiles, self).allocate(file, nbytes))

    def truncate(self, file: io.FileIO, nbytes: int) -> None:
        self.steer("truncate", lambda: super(SteeredFiles, self).truncate(file, nbytes))

    def fdatasync(self, file: io.FileIO) -> None:
        self.steer("fdatasync", lambda: super(SteeredFiles, self).fdatasync(file))

    def fsync(self, file: io.FileIO) -> None:
        self.steer("fsync", lambda: super(SteeredFiles, self).fsync(file))

    def fsync_folder(self, path: Path) -> None:
        self.steer("fsync_folder", lambda: super(SteeredFiles, self).fsync_folder(path))

    def make_folder(self, path: Path) -> None:
        self.steer("make_folder", lambda: super(SteeredFiles, self).make_folder(path))

    def rename(self, old: Path, new: Path) -> None:
        self.steer("rename", lambda: super(SteeredFiles, self).rename(old, new))

    def link(self, old: Path, new: Path) -> None:
        self.steer("link", lambda: super(SteeredFiles, self).link(old, new))

    def unlink(self, path: Path) -> None:
        self.steer("unlink", lambda: super(SteeredFiles, self).unlink(path))


class Killed(BaseException):
    """The process is gone: whatever was written stays, nothing else happens."""


class FaultyFiles(SteeredFiles):
    """Raises a given error at its n-th changing call, from 0 on, and at all later ones."""

    # The seed is for how much of an interrupted write is done.

    def __init__(
        self, fatal_call: int | None = None, error: type[BaseException] = Killed, seed: int = 0
    ) -> None:
        self.calls: list[str] = []
        self._fatal_call = fatal_call
        self._error = error
        self._random = random.Random(seed)

    @property
    def is_dead(self) -> bool:
        return self._fatal_call is not None and len(self.calls) > self._fatal_call

    def write(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        self.calls.append("pwrite")
        if self.is_dead:
            if len(self.calls) - 1 == self._fatal_call:
                part = self._random.randint(0, len(data))
                super().write(file, data[:part], offset)
            self._fail()
        return super().write(file, data, offset)

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        self.calls.append("open" if name in ("open_to_write", "create") else name)
        if self.is_dead:
            self._fail()
        return call()

    def _fail(self) -> None:
        if issubclass(self._error, OSError):
            raise self._error(errno.EIO, os.strerror(errno.EIO))
        raise self._error
