"""Processes that write into a store and are killed at a random system call."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import shutil
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from stepwell.buffers import DiskStorage
from support.crash.crash_truth import (
    SHAPES,
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

MEAN_CALLS = 60
"""System calls that a process makes before it is killed, on average."""
_FOLDER_KILLS = 10
"""Kills that a folder goes through, on average, before the next one."""

# A report of a child: a letter and a number. A pipe keeps what was written into it.
_REPORT = struct.Struct("<cI")
_SESSION, _BEGIN, _PART, _END, _FAILED = b"s", b"b", b"p", b"e", b"x"


class Yield(NamedTuple):
    """Counts of what the kills covered."""

    kills: int = 0  # how many there were
    flushes: int = 0  # calls of `add` that had returned
    inside: int = 0  # kills that came inside of `add`
    extra: int = 0  # flushes under way that were found stored, all of them or a part

    def plus(self, other: Yield) -> Yield:
        return Yield(*(a + b for a, b in zip(self, other, strict=True)))


class DeadlyFiles(SteeredFiles):
    """Kills its process before, after, or inside the n-th call."""

    def __init__(self, fatal_call: int, seed: str) -> None:
        self._left = fatal_call
        self._random = random.Random(seed)

    def steer(self, name: str, call: Callable[[], Result]) -> Result:
        is_after = self._random.random() < 0.5
        is_last = self._is_last()
        if is_last and not is_after:
            die()
        result = call()
        if is_last:
            die()
        return result

    def write(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        if self._is_last():
            super().write(file, data[: self._random.randint(0, len(data))], offset)
            die()
        return super().write(file, data, offset)

    def _is_last(self) -> bool:
        self._left -= 1
        return self._left < 0


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")


def kill_writers(seed: int, kills: int, folder: Path) -> Yield:
    """Kill writers of stores of all shapes, and look after every kill."""
    # With the same seed and number of kills it makes the very same run again. The message of a
    # `Wrong` has the seed of the store.
    total = Yield()
    for life in count():
        if total.kills >= kills:
            return total
        path = folder / f"{seed}-{life}"
        total = total.plus(_life(f"{seed}-{life}", SHAPES[life % 4], path, kills - total.kills))
        shutil.rmtree(path, ignore_errors=True)
    raise AssertionError


def _life(seed: str, shape: Shape, path: Path, most: int) -> Yield:
    """One folder that goes through many kills."""
    rng, truth, total = random.Random(seed), Truth(shape), Yield()
    for kill in range(min(most, 1 + int(rng.expovariate(1 / _FOLDER_KILLS)))):
        try:
            reports = _run_child(functools.partial(_write, f"{seed}-{kill}", truth, path))
            total = total.plus(_replay(reports, f"{seed}-{kill}", truth))
            total = total._replace(extra=total.extra + _look(truth, path, rng))
        except Wrong as error:
            raise Wrong(f"store {seed}, kill {kill}, {shape}: {error}") from error
    return total


Report = Callable[[bytes, int], None]


def _run_child(work: Callable[[Report], None]) -> Iterator[tuple[bytes, int]]:
    """Run work in a fork until it is killed, and return what it reported."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _be_child(writing, work)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    cut = data.find(_FAILED + b"\0\0\0\0")
    if cut >= 0:
        raise Wrong(f"the writer failed: {data[cut + _REPORT.size :].decode()}")
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise AssertionError(f"the child ended otherwise than planned: {status}")
    return _REPORT.iter_unpack(data)


def _be_child(pipe: int, work: Callable[[Report], None]) -> NoReturn:
    """Never return into the test that was forked."""
    try:
        work(lambda what, number: _report(pipe, what, number))
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(pipe, _REPORT.pack(_FAILED, 0) + traceback.format_exc().encode())
    finally:
        os._exit(1)


def _report(pipe: int, what: bytes, number: int) -> None:
    os.write(pipe, _REPORT.pack(what, number))


def _write(seed: str, truth: Truth, path: Path, report: Report) -> None:
    """The child: session after session, until the end."""
    rng = random.Random(seed)
    files = DeadlyFiles(int(rng.expovariate(1 / MEAN_CALLS)), seed)
    for session in count():
        is_store = DiskStorage.exists(path)
        with (
            DiskStorage.open(path, files=files) if is_store else truth.shape.create(path, files)
        ) as storage:
            report(_SESSION, storage.index.next_episode)
            plan = Plan((seed, session), storage.index.next_episode)
            for _ in range(1 + int(rng.expovariate(1 / 10))):
                flush = plan.flush()
                report(_BEGIN, len(flush))
                with watched_commits(_Reporting(report)):
                    store_flush(storage, flush)
                report(_END, 0)
                if rng.random() < 0.1:
                    storage.append_session({"note": "of a length that the next one may lack"})


class _Reporting(list[int]):
    """Reports what is appended."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def append(self, value: int) -> None:
        self._report(_PART, value)


def _replay(reports: Iterator[tuple[bytes, int]], seed: str, truth: Truth) -> Yield:
    """Do to the truth what the child did to the store."""
    sessions, flushes = count(), 0
    plan: Plan | None = None
    for what, number in reports:
        if what == _SESSION:
            require(number == truth.next_episode, f"episode {number} comes next")
            plan = Plan((seed, next(sessions)), number)
        elif what == _BEGIN:
            assert plan is not None
            truth.begin(plan.flush())
        elif what == _PART:
            truth.parts.append(number)
        else:
            truth.end()
            flushes += 1
    return Yield(1, flushes, bool(truth.under_way), 0)


def _look(truth: Truth, path: Path, rng: random.Random) -> int:
    """Open what the kill left, as a reader and as a writer, mostly without changing it."""
    # Returns 1 if the flush under way was found, all of it or a part.
    if not DiskStorage.exists(path):
        require(not truth.stored, "the manifest is gone")
        return 0
    before = len(truth.stored)
    if rng.random() < 0.7:
        with must_succeed("reading"), _open(path, read_only=True) as reader:
            truth.settle(reader)  # the next one must find the same
    copy = path.with_name("copy")
    if rng.random() < 0.7:  # so that the next process meets what was left by the one before
        path = Path(shutil.copytree(path, copy))
    with must_succeed("opening to write"), _open(path, read_only=False) as storage:
        truth.settle(storage)
    shutil.rmtree(copy, ignore_errors=True)
    return len(truth.stored) > before


def _open(path: Path, *, read_only: bool) -> DiskStorage:
    return DiskStorage.open(path, read_only=read_only, files=NoSyncFiles())
