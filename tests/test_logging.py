"""The events that ``logging.getLogger("stepwell")`` is told of, with their levels."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import copy_episodes, repair
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv
from support.envs.fakes import CounterEnv, DieEnv
from support.programs import run_python

STORAGE, REPLAY = "stepwell.buffers.storage", "stepwell.buffers"
COLLECTORS, WRAPPERS = "stepwell.collectors", "stepwell.wrappers"
DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(DEBUG, "stepwell")


def told(caplog: pytest.LogCaptureFixture, level: int, area: str, *words: str) -> list[str]:
    """The messages of a level and area that have all the words."""
    found = [
        record.getMessage()
        for record in caplog.records
        if (record.levelno, record.name) == (level, area)
    ]
    return [message for message in found if all(word in message for word in words)]


def once(caplog: pytest.LogCaptureFixture, *wanted: tuple[int, str, *tuple[str, ...]]) -> None:
    """Each of them was logged once, and no other warning; then begin anew."""
    for level, area, *words in wanted:
        assert len(told(caplog, level, area, *words)) == 1, words
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= WARNING]
    assert len(warnings) == sum(one[0] >= WARNING for one in wanted), warnings
    caplog.clear()


def collect(replay: sw.SequenceReplayBuffer, steps: int = 200) -> None:
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)


def test_a_program_that_sets_up_no_logging_sees_nothing() -> None:
    code = (
        "import logging, stepwell\n"
        "logging.getLogger('stepwell.wrappers').warning('seen by nobody')\n"
        "logging.getLogger('other').warning('seen')"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("", "seen\n")


def test_a_restarted_worker_and_the_episodes_that_it_cut(caplog: pytest.LogCaptureFixture) -> None:
    makes: list[Any] = [partial(CounterEnv, 50, 0), partial(DieEnv, 7, 50, 1)]

    def zeros(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.zeros(len(is_first), np.int64)

    envs = WorkerVectorEnv(makes, num_workers=2)
    with sw.Collector(envs, zeros, sw.SequenceReplayBuffer(), seed=0) as collector:
        collector.collect(steps=20)
    restart = WARNING, WRAPPERS, "1 of at most 3", "env 1", "exit code 7"
    once(caplog, restart, (WARNING, COLLECTORS, "cut", "[1]"))


def test_damaged_chunks_and_their_repair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    with sw.SequenceReplayBuffer(path) as replay:
        collect(replay, 400)
        record = replay.storage.index.record(1)
    segment = path / f"segment-{record.segment:08}.bin"
    data = bytearray(segment.read_bytes())
    data[record.offset + record.nbytes // 2] ^= 0x20
    segment.write_bytes(data)
    with sw.SequenceReplayBuffer.open(path, read_only=True, on_corrupt="skip") as replay:
        once(caplog)
        copy_episodes(replay, sw.SequenceReplayBuffer())
    once(caplog, (WARNING, STORAGE, "damaged", f"{record.rows} rows", str(path)))
    (found,) = repair(path).damages
    once(caplog)  # nothing was changed
    repair(path, yes=True)
    once(caplog, (WARNING, STORAGE, "repaired", str(path), found.what))
    with sw.SequenceReplayBuffer.open(path, read_only=True, on_corrupt="skip"):
        once(caplog, (WARNING, STORAGE, "1 damaged chunks", str(path)))
