"""Messages of ``logging.getLogger("stepwell")``, one test for each event."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import active_children as children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import DiskStorage, End, copy_episodes, repair
from stepwell.buffers.storage.memory import MemoryStorage
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv
from support.crash.disk_faults import NoSyncFiles
from support.envs.fakes import CounterEnv, DieEnv
from support.models.chain_model import SPEC, ChainModel

STORAGE, REPLAY = "stepwell.buffers.storage", "stepwell.buffers"
COLLECTORS, WRAPPERS = "stepwell.collectors", "stepwell.wrappers"


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stepwell")


def told(caplog: pytest.LogCaptureFixture, level: int, area: str, *words: str) -> list[str]:
    """The messages of a level and area that have all the words."""
    found = [
        record.getMessage()
        for record in caplog.records
        if (record.levelno, record.name) == (level, area)
    ]
    return [message for message in found if all(word in message for word in words)]


def one(caplog: pytest.LogCaptureFixture, level: int, area: str, *words: str) -> str:
    (message,) = told(caplog, level, area, *words)
    return message


def no_warning(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.WARNING]


def zeros(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    return np.zeros(len(is_first), np.int64)


def collect(replay: sw.SequenceReplayBuffer | None, steps: int = 200) -> None:
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)


def test_a_program_that_sets_up_no_logging_sees_nothing() -> None:
    code = (
        "import logging, stepwell\n"
        "logging.getLogger('stepwell.wrappers').warning('seen by nobody')\n"
        "logging.getLogger('other').warning('seen')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "seen\n")


def test_the_library_has_a_handler_that_does_nothing_and_no_other() -> None:
    collect(None)
    assert all(
        logging.getLogger(name).level == 0 for name in (STORAGE, REPLAY, COLLECTORS, WRAPPERS)
    )
    names = [name for name in logging.root.manager.loggerDict if name.startswith("stepwell.")]
    assert {STORAGE, REPLAY, COLLECTORS, WRAPPERS} <= set(names)
    assert not [name for name in names if logging.getLogger(name).handlers]
    handlers = logging.getLogger("stepwell").handlers
    # Those of pytest are there, too.
    assert {type(each) for each in handlers if type(each).__module__ == "logging"} == {
        logging.NullHandler
    }


@pytest.mark.parametrize("how", ["dies", "is killed"])
def test_a_restarted_worker_and_the_episodes_that_it_cut(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    makes: list[Any] = [partial(CounterEnv, 50, 0), partial(CounterEnv, 50, 1)]
    if how == "dies":
        makes[1] = partial(DieEnv, 7, 50, 1)
    envs = WorkerVectorEnv(makes, num_workers=2)
    calls = 0

    def policy(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if how == "is killed" and calls == 5:
            (pid,) = {child.pid for child in children() if child.name.endswith("1")}
            os.kill(pid or 0, signal.SIGKILL)
        return zeros(observation, is_first)

    with sw.Collector(envs, policy, sw.SequenceReplayBuffer(), seed=0) as collector:
        report = collector.collect(steps=20)
    assert (report.restarts, report.cut) == (1, 1)
    message = one(caplog, logging.WARNING, WRAPPERS, "1 of at most 3")
    assert "env 1" in message
    assert ("exit code 7" if how == "dies" else "SIGKILL") in message
    assert "[1]" in one(caplog, logging.WARNING, COLLECTORS, "cut")


def test_a_run_that_nothing_happens_to_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sw.SequenceReplayBuffer(tmp_path / "a") as replay:
        collect(replay)
    assert no_warning(caplog)


def test_stores_and_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    with sw.SequenceReplayBuffer(path) as replay:
        collect(replay)
        steps, episodes = len(replay), replay.episodes
    assert str(path) in one(caplog, logging.INFO, STORAGE, "made")
    assert str(path) in one(caplog, logging.INFO, REPLAY, "session 0")
    caplog.clear()
    with sw.SequenceReplayBuffer(path) as replay:
        collect(replay)
    counts = f"{steps} steps", f"{episodes} episodes"
    assert str(path) in one(caplog, logging.INFO, STORAGE, "opened for writing", *counts)
    one(caplog, logging.INFO, REPLAY, "session 1")
    with sw.SequenceReplayBuffer.open(path, read_only=True):
        one(caplog, logging.INFO, STORAGE, "opened for reading")
    collect(sw.SequenceReplayBuffer())
    one(caplog, logging.INFO, REPLAY, "in RAM", "session 0")


def create(path: Path) -> DiskStorage:
    return DiskStorage.create(path, SPEC, capacity=64, segment_bytes=4096, files=NoSyncFiles())


def test_flushes_seals_and_evictions_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChainModel()
    with create(tmp_path / "a") as storage:
        storage.append_session(model.begin_session())
        for _ in range(30):
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=True)])
        assert len(told(caplog, logging.DEBUG, STORAGE, "stored 1 chunks")) == 30
        evicted = told(caplog, logging.DEBUG, STORAGE, "evicted segment")
        assert len(evicted) == int(storage.index.records["segment"][0]) > 0
        assert f"{tmp_path / 'a'}" in evicted[0]
        sealed = told(caplog, logging.DEBUG, STORAGE, "sealed segment")
        assert len(sealed) == int(storage.index.records["segment"][-1])
    assert len(told(caplog, logging.DEBUG, STORAGE, "sealed segment")) == len(sealed) + 1


def test_evictions_in_ram(caplog: pytest.LogCaptureFixture) -> None:
    replay = sw.SequenceReplayBuffer(capacity=200)
    collect(replay, 1_000)
    assert isinstance(replay.storage, MemoryStorage)
    assert told(caplog, logging.DEBUG, STORAGE, "evicted", "rows")


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x20
    path.write_bytes(data)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    with sw.SequenceReplayBuffer(path) as replay:
        collect(replay, 400)
        record = replay.storage.index.record(1)
    damage(path / f"segment-{record.segment:08}.bin", record.offset + record.nbytes // 2)
    return path


def test_a_damaged_chunk_that_is_skipped(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sw.SequenceReplayBuffer.open(damaged, read_only=True, on_corrupt="skip") as replay:
        record = replay.storage.index.record(1)
        assert no_warning(caplog)
        copy_episodes(replay, sw.SequenceReplayBuffer())
    message = one(caplog, logging.WARNING, STORAGE, "damaged", f"{record.rows} rows")
    assert str(damaged) in message


def test_a_repair(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    (found,) = repair(damaged).damages
    assert no_warning(caplog)  # nothing was changed
    repair(damaged, yes=True)
    assert found.what in one(caplog, logging.WARNING, STORAGE, "repaired", str(damaged))


def test_a_store_with_chunks_that_are_gone(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    repair(damaged, yes=True)
    caplog.clear()
    with sw.SequenceReplayBuffer.open(damaged, read_only=True, on_corrupt="skip"):
        one(caplog, logging.WARNING, STORAGE, "1 damaged chunks", str(damaged))


def test_actions_that_are_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, path = ChainModel(), tmp_path / "a"
    with create(path) as storage:
        storage.append_session(model.begin_session())
        for number in range(8):
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=number == 0)])
        record = storage.index.record(4)
        with (path / f"segment-{record.segment:08}.bin").open("r+b") as file:
            file.seek(record.offset + record.nbytes - 60)
            file.write(b"damage")
        while storage.index.base < 12:
            assert storage.index.base >= 4 or no_warning(caplog)
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=False)])
    messages = told(caplog, logging.WARNING, STORAGE, "lost the actions")
    assert messages
    assert all(f"episode {record.episode}" in message for message in messages)


def test_archives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay = sw.SequenceReplayBuffer()
    collect(replay)
    path = tmp_path / "a.swa"
    report = sw.archive(replay, path, lanes=1)
    counts = str(path), f"{report.steps} steps", f"{report.episodes} episodes"
    one(caplog, logging.INFO, COLLECTORS, "archived", *counts)
    sw.restore(path, sw.SequenceReplayBuffer(), lanes=1)
    one(caplog, logging.INFO, COLLECTORS, "restored", *counts)


def test_a_step_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that is told of at every step would be slow."""
    replay = sw.SequenceReplayBuffer()
    collect(replay, 2_000)
    assert len(caplog.records) == 1
