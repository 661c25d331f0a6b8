"""The n-th system call fails, for every n; once with a limit of the system itself."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from pathlib import Path

import pytest

from stepwell.buffers import DiskStorage, StoreFailed
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.testing import chunk_of
from support.crash.call_failure_scenario import FAILURES, fail_every_call
from support.crash.crash_truth import APPEND, RING_SMALL, Plan, Truth, require, store_flush
from support.examples import by_tier

SHAPES = {"append-only": APPEND, "ring": RING_SMALL}
# Every call fails in one way at least; with --full in all of them.
RARE = [name for name in FAILURES if name != "no room"]


@pytest.mark.proof
@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_that_finds_no_room_is_raised_and_loses_nothing(tmp_path: Path, shape: str) -> None:
    got = fail_every_call(SHAPES[shape], FAILURES["no room"], tmp_path)
    print(got)
    check_yield(got.pop("calls"), got)
    assert got["nothing"] == 1  # the last session, in which no call failed


@pytest.mark.proof
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("failure", RARE)
def test_a_call_that_fails_otherwise_is_raised_and_loses_nothing(
    tmp_path: Path, shape: str, failure: str
) -> None:
    step = by_tier(len(RARE), len(RARE), 1)
    first = RARE.index(failure) % step
    got = fail_every_call(SHAPES[shape], FAILURES[failure], tmp_path, first, step)
    print(got)
    if step == 1 and not FAILURES[failure].is_short:
        check_yield(got.pop("calls"), got)


def check_yield(calls: int, got: dict[str, int]) -> None:
    """Every kind of call of a store was hit often enough."""
    assert calls > 100
    assert got["open: OSError"] > 20
    assert got["add: StoreFailed"] > 50
    assert got["append_session: StoreFailed"] > 5
    assert got["close: StoreFailed"] > 5


def test_a_file_above_the_limit_of_the_system_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    path, truth = tmp_path / "store", Truth(APPEND)
    pid = os.fork()
    if not pid:
        try:
            write_up_to_the_limit(path)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    truth.begin([chunk_of(0)])
    truth.end()
    with DiskStorage.open(path) as storage:
        truth.settle(storage)
        truth.begin(flush := Plan("more", storage.index.next_episode).flush())
        store_flush(storage, flush)
        truth.end()
    with DiskStorage.open(path, read_only=True) as reader:
        truth.compare(reader)


def write_up_to_the_limit(path: Path) -> None:
    """A segment goes below the limit, the one that a long chunk needs does not."""
    storage = APPEND.create(path, Files())
    storage.add([chunk_of(0)])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    # Rows of noise: a seventh of them cannot be compressed.
    long = chunk_of(1, 0, 5_000, stream=1)
    for chunk in (long, chunk_of(2, stream=2)):
        with pytest.raises(StoreFailed, match=r"no room: a new segment takes \d+ bytes, \d+ are f"):
            storage.add([chunk])
    require(len(storage.index) == 1, f"{len(storage.index)} chunks")
    storage.close()
