"""Rows into episodes, episodes into the replay."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import EpisodeBuffer, SequenceReplayBuffer, Spec
from stepwell.buffers.replay.writer import ReplayWriter

SPEC = Spec.from_spaces(spaces.Box(0, 9999, (1,), np.int64), spaces.Discrete(3))


@pytest.fixture
def replay() -> SequenceReplayBuffer:
    made = SequenceReplayBuffer(seed=0)
    made.bind(SPEC, {})
    return made


class Feeder:
    """Feeds a writer with rows that count."""

    def __init__(self, writer: ReplayWriter) -> None:
        self.writer, self.t, self.envs = writer, 0, writer.num_envs

    def row(self, *, first: bool = False, terminated: bool = False) -> None:
        flag = np.ones(self.envs, bool)
        rows = {"observation": np.full((self.envs, 1), self.t)}
        self.t += 1
        self.writer.observe(
            rows,
            np.zeros(self.envs),
            is_first=flag if first else None,
            terminated=flag if terminated else None,
        )

    def act(self) -> None:
        self.writer.act({"action": np.ones(self.envs, np.int64)}, None)


def test_no_row_waits_longer_than_it_may(
    replay: SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("stepwell.buffers.replay.writer.time.monotonic", lambda: now[0])
    feed = Feeder(ReplayWriter(replay, 2, flush_seconds=10.0))
    feed.row(first=True)
    feed.act()
    feed.row()
    now[0] = 109.9
    feed.act()
    assert replay.steps == 0
    feed.row()
    now[0] = 110.0
    feed.act()
    assert replay.steps == 4
    feed.row()
    now[0] = 119.9
    feed.act()
    assert replay.steps == 4


def test_what_is_kept_is_counted_for_this_writer_alone(replay: SequenceReplayBuffer) -> None:
    for _ in range(2):
        feed = Feeder(ReplayWriter(replay, 2, flush_seconds=1e9))
        feed.row(first=True)
        feed.act()
        feed.row(terminated=True)
        feed.writer.flush()
        assert feed.writer.kept == "2 steps, 2 ended episodes, in RAM"
    assert [episode.id for episode in replay.iter_episodes()] == [0, 1, 2, 3]


def test_a_writer_detects_rows_of_another_writer(replay: SequenceReplayBuffer) -> None:
    one, other = (Feeder(ReplayWriter(replay, 2, flush_seconds=1e9)) for _ in range(2))
    one.row(first=True)
    one.act()
    one.row()
    one.writer.flush()
    assert not one.writer.is_outdated
    assert other.writer.is_outdated
    other.writer.start_over()
    assert not other.writer.is_outdated
    other.row(first=True)
    other.act()
    other.row(terminated=True)
    other.writer.flush()
    assert one.writer.is_outdated
    one.writer.start_over()
    one.row(first=True)
    one.act()
    one.row(terminated=True)
    one.writer.flush()
    assert [(e.id, e.steps) for e in replay.iter_episodes()] == [(n, 1) for n in range(6)]


@pytest.mark.parametrize("path", [None, "store"])
def test_first_rows_of_two_threads_get_ids_of_their_own(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, errors = threading.Barrier(2), list[BaseException]()
    take = EpisodeBuffer.take

    def met(buffer: EpisodeBuffer, **options: Any) -> object:
        try:
            meeting.wait(0.2)  # both have checked their ids, unless one waits for the other
        except threading.BrokenBarrierError:
            pass
        return take(buffer, **options)

    def write(feed: Feeder, mark: int) -> None:
        try:
            for episode in range(20):
                feed.t = 1000 * mark + 10 * episode
                for step in range(4):
                    feed.row(first=step == 0, terminated=step == 3)
                    if step < 3:
                        feed.act()
                feed.writer.flush()
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(EpisodeBuffer, "take", met)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with SequenceReplayBuffer(path, seed=0) as replay:
            replay.bind(SPEC, {})
            writers = [Feeder(ReplayWriter(replay, 1, 1e9)) for _ in range(2)]
            threads = [
                threading.Thread(target=write, args=(feed, mark))
                for mark, feed in enumerate(writers, 1)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert errors == []
            found = list(replay.iter_episodes())
            assert sorted(one.id for one in found) == list(range(40))
            rows = sorted(one.observation[:, 0].tolist() for one in found)
            assert rows == [
                [1000 * mark + 10 * episode + step for step in range(4)]
                for mark in (1, 2)
                for episode in range(20)
            ]
    finally:
        sys.setswitchinterval(before)
