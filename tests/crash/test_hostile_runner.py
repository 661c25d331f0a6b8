"""The judge of hostile input can fail: it tells each bad end from a good one."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import DiskStorage, StoreCorrupt, StoreNotFound
from support.crash.hostile_runner import Canaries, Fault, Limits, Runner, attempt, fast_folder

LIMITS = Limits(cpu_seconds=1, idle_looks=3, memory_bytes=1 << 28, file_bytes=1 << 20)


def crash() -> None:
    ctypes.string_at(0)


def work_for_good() -> None:
    while True:
        pass


def sleep_for_good() -> None:
    os.mkfifo("pipe")
    Path("pipe").read_bytes()


def take_memory() -> None:
    np.zeros(1 << 29, np.uint8)


def fill_the_disk() -> None:
    with Path("large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 21)


ENDS: dict[Callable[[], None], str] = {
    crash: "SIGSEGV",
    work_for_good: "too much processor time",
    sleep_for_good: "asleep for good",
    take_memory: "MemoryError",
    fill_the_disk: "OSError",
}


def make(folder: Path) -> Callable[[int], Mapping[str, str]]:
    """Every second case ends badly."""
    os.chdir(folder)
    ends = [*ENDS]

    def work(number: int) -> Mapping[str, str]:
        end = ends[number // 2] if number % 2 else lambda: None
        return {"ending": attempt("it", end)}

    return work


@pytest.mark.proof
def test_a_bad_end_is_told_and_the_next_case_runs() -> None:
    with fast_folder() as folder, Runner(partial(make, folder), folder, LIMITS) as runner:
        for number, (end, signature) in enumerate(ENDS.items()):
            good, bad = runner.run(2 * number), runner.run(2 * number + 1)
            assert (good.number, good.labels, good.fault) == (2 * number, {"ending": "done"}, "")
            assert (bad.number, bad.labels) == (2 * number + 1, {})
            assert signature in bad.signature
            assert end.__name__ in bad.fault


def test_a_sentence_is_no_fault(tmp_path: Path) -> None:
    def corrupt() -> None:
        raise StoreCorrupt("here")

    assert attempt("it", corrupt) == "StoreCorrupt: here"
    missing = attempt("it", lambda: DiskStorage.open(tmp_path / "none"), ())
    assert missing.startswith(StoreNotFound.__name__)
    with pytest.raises(Fault, match="numpy's"):
        attempt("numpy's ValueError", lambda: np.zeros(3).reshape(2, 2))
    with pytest.raises(Fault, match="names no file"):
        attempt("an OSError that names no file", lambda: os.read(10_000, 1))


def replaced(file: Path) -> None:
    file.rename(file.with_name("away"))
    file.write_bytes(b"precious")
    file.with_name("away").unlink()


TOUCHES: dict[str, Callable[[Path], object]] = {
    "content": lambda file: file.write_bytes(b"PRECIOUS"),
    "time": lambda file: os.utime(file, ns=(0, time.time_ns())),
    "name": lambda file: file.with_name("new").touch(),
    "gone": Path.unlink,
    "other file": replaced,
}


@pytest.mark.parametrize("what", TOUCHES)
def test_a_touch_is_seen(tmp_path: Path, what: str) -> None:
    file = tmp_path / "beside" / "precious.bin"
    file.parent.mkdir()
    file.write_bytes(b"precious")
    before = file.stat()
    (tmp_path / "free").mkdir()
    canaries = Canaries(tmp_path, frozenset({"free"}))
    (tmp_path / "free" / "new").touch()
    canaries.check("nothing")
    TOUCHES[what](file)
    if what in ("content", "other file"):
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Fault, match=r"precious|new"):
        canaries.check("a touch")
