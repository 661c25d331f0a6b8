"""The n-th system call fails, for every n: the writer says so and stops, and nothing is lost."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from stepwell.buffers import DiskStorage, StoreFailed
from support.crash.crash_truth import (
    Plan,
    Shape,
    Truth,
    Wrong,
    must_succeed,
    require,
    store_flush,
    watched_commits,
)
from support.crash.disk_faults import NoSyncFiles, SteeredFiles

Result = TypeVar("Result")
Outcomes = Counter[str]
_MOST_CALLS = 1_000


class Failure(NamedTuple):
    """A way in which a call fails."""

    error: int  # its number
    is_short: bool = False  # the call is a write of which a part is done; the next write fails
    is_lasting: bool = False  # all later calls fail too, until the store is opened again


FAILURES = {
    "no room": Failure(errno.ENOSPC),
    "no room from then on": Failure(errno.ENOSPC, is_lasting=True),
    "a short write, then no room": Failure(errno.ENOSPC, is_short=True),
    "a broken disk": Failure(errno.EIO),
    "too many open files": Failure(errno.EMFILE),
}


class FailingFiles(SteeredFiles):
    """Lets the call of that number fail, from 0 on, reading ones too."""

    def __init__(self, number: int, failure: Failure) -> None:
        self.calls = 0
        self.failed = ""  # the name of the call
        self._number, self._failure = number, failure
        self._is_due = False
        self._is_cured = False
        self._random = random.Random(number)

    @property
    def is_retried(self) -> bool:
        """A segment is mapped again after others were released."""
        is_mapping = self.failed in ("open", "size", "map")
        return is_mapping and self._failure.error == errno.EMFILE

    def cure(self) -> None:
        """Let nothing fail any more."""
        self._is_cured = True

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        self._count(name, is_write=False)
        return call()

    def write(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        if self._count("pwrite", is_write=True):
            return super().write(file, data[: self._random.randrange(1, len(data) + 1)], offset)
        return super().write(file, data, offset)

    def open(self, path: Path) -> io.FileIO:
        return self.steer("open", lambda: super(FailingFiles, self).open(path))

    def pread(self, file: io.FileIO, nbytes: int, offset: int) -> bytes:
        return self.steer("pread", lambda: super(FailingFiles, self).pread(file, nbytes, offset))

    def size(self, file: io.FileIO) -> int:
        return self.steer("size", lambda: super(FailingFiles, self).size(file))

    def map(self, file: io.FileIO) -> np.ndarray:
        return self.steer("map", lambda: super(FailingFiles, self).map(file))

    def lock(self, file: io.FileIO) -> bool:
        return self.steer("lock", lambda: super(FailingFiles, self).lock(file))

    def _count(self, name: str, *, is_write: bool) -> bool:
        """Fail, or return whether the write is to be a short one."""
        number, self.calls = self.calls, self.calls + 1
        if self._is_cured:
            return False
        is_now = number == self._number or (self._failure.is_lasting and number > self._number)
        if self._failure.is_short:
            if is_now and is_write:
                self._is_due = True
                return True
            is_now, self._is_due = self._is_due and is_write, self._is_due and not is_write
        if is_now:
            self.failed = self.failed or name
            raise OSError(self._failure.error, os.strerror(self._failure.error))
        return False


def fail_every_call(
    shape: Shape, failure: Failure, folder: Path, first: int = 0, step: int = 1
) -> Outcomes:
    """Run a session again and again; the 0th, first, second, ... call fails."""
    # Returns how often each method of the store raised what; "calls" is the session's length.
    # With a step of 2 every second call fails. `Wrong` says which call had failed.
    outcomes = Outcomes()
    for number in range(first, _MOST_CALLS, step):
        path, files = folder / "store", FailingFiles(number, failure)
        try:
            outcomes[_session(path, shape, files)] += 1
        except Wrong as error:
            what = f"call {number} ({files.failed or 'none'}) failed, {failure}, {shape}"
            raise Wrong(f"{what}: {error}") from error
        shutil.rmtree(path, ignore_errors=True)
        if files.calls <= number:
            outcomes["calls"] = files.calls
            return outcomes
    raise AssertionError(f"a session of more than {_MOST_CALLS} calls")


class _Failed(Exception):
    """A method of the store raised what it may raise."""


def _session(path: Path, shape: Shape, files: FailingFiles) -> str:
    """Create, add, evict, seal, close, reopen, add, close; then look what is there."""
    truth, outcome = Truth(shape), "nothing"
    try:
        _write(truth, files, lambda: shape.create(path, files), 6 if shape.capacity_bytes else 3)
        _write(truth, files, lambda: DiskStorage.open(path, files=files), 1)
    except _Failed as error:
        outcome = str(error)
    if files.failed and outcome == "nothing" and not files.is_retried:
        raise Wrong(f"the failure of {files.failed} went unnoticed")
    with must_succeed("opening after the failure"):
        _look(path, truth)
    return outcome


def _write(
    truth: Truth, files: FailingFiles, start: Callable[[], DiskStorage], flushes: int
) -> None:
    with _may_fail("open", OSError, StoreFailed):
        storage = start()
    plan = Plan(flushes, storage.index.next_episode)
    try:
        for _ in range(flushes):
            truth.begin(flush := plan.flush())
            with _may_fail("add", StoreFailed), watched_commits(truth.parts):
                store_flush(storage, flush)
            truth.end()
        with _may_fail("append_session", StoreFailed):
            storage.append_session({"flushes": flushes})
    except _Failed:
        files.cure()
        _look_at_poisoned(storage, truth, plan)
        raise
    finally:
        with _may_fail("close", StoreFailed):
            storage.close()


def _look_at_poisoned(storage: DiskStorage, truth: Truth, plan: Plan) -> None:
    """It still gives out what is stored, and takes nothing more."""
    with must_succeed("reading after the failure"):
        truth.compare(storage)
    for _ in range(2):
        try:
            storage.add(Plan("other", plan.next_episode).flush())
        except StoreFailed as error:
            require("then open the store again" in str(error), error)
        else:
            raise Wrong("the writer goes on after a failure")


@contextmanager
def _may_fail(what: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise _Failed(f"{what}: {type(error).__name__}") from error
    except (OSError, ValueError, StoreFailed) as error:
        raise Wrong(f"{what} raised {error!r}") from error


def _look(path: Path, truth: Truth) -> None:
    """Everything that returned is there, and the folder is of use again."""
    files = NoSyncFiles()
    if DiskStorage.exists(path):
        with DiskStorage.open(path, read_only=True, files=files) as reader:
            truth.compare(reader)
        storage = DiskStorage.open(path, files=files)
    else:
        require(not truth.stored, "the manifest is gone")
        storage = truth.shape.create(path, files)
    with storage:
        truth.settle(storage)
        truth.begin(flush := Plan("more", storage.index.next_episode).flush())
        store_flush(storage, flush)
        truth.end()
    with DiskStorage.open(path, read_only=True, files=files) as reader:
        truth.compare(reader)
        require(not any(reader.recovery), f"closed, but left {reader.recovery}")
