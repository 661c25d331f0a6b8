"""Forked processes draw from streams of their own, and never wait for threads that they lack."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell.buffers.base import forks
from stepwell.buffers.dropin import dreamer, fishyrl
from support.crash.other_processes import in_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def a_replay(path: Any = None, seed: int = 0) -> sw.SequenceReplayBuffer:
    """A replay of 20 episodes of 20 rows."""
    replay = sw.SequenceReplayBuffer(path, seed=seed)
    space = spaces.Box(-1, 1, (2,), np.float32)
    with replay.writer((space, spaces.Discrete(2))) as writer:
        for step in range(20 * 19):
            writer.add(
                np.zeros(2, np.float32), 0, 0.0, np.ones(2, np.float32), step % 19 == 18, False
            )
    return replay


def _loader(replay: sw.SequenceReplayBuffer) -> Any:
    with replay.loader(sw.Transitions(16)) as batches:
        return next(batches).ids


DRAWS: dict[str, Callable[[sw.SequenceReplayBuffer], Any]] = {
    "steps": lambda replay: replay.sample_transitions(16).ids,
    "distinct": lambda replay: replay.sample_transitions(16, draw="distinct").ids,
    "recent": lambda replay: replay.sample_transitions(16, draw="recent").ids,
    "ends": lambda replay: replay.sample_sequences(16, 2, draw="ends").ids,
    "episodes": lambda replay: replay.sample_sequences(16, 2, draw="episodes").ids,
    "priorities": lambda replay: replay.sample_transitions(16, draw="priorities").ids,
    "whole episodes": lambda replay: replay.sample_episodes(8).ids,
    "loader": _loader,
}


@pytest.mark.proof
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_each_fork_draws_batches_of_its_own_and_the_parent_draws_as_without_forks(
    name: str, is_on_disk: bool, tmp_path: Any
) -> None:
    with a_replay(tmp_path / "store" if is_on_disk else None) as replay:
        draw = DRAWS[name]
        draw(replay)
        drawn = [in_fork(lambda: draw(replay).tolist()) for _ in range(3)]
        mine = draw(replay).tolist()
    assert len({*drawn, str(mine)}) == 4
    with a_replay() as unforked:
        draw(unforked)
        assert mine == draw(unforked).tolist()


@pytest.mark.proof
def test_forks_of_forks_draw_batches_of_their_own() -> None:
    replay = a_replay()
    draw = DRAWS["steps"]

    def child() -> str:
        nested = [in_fork(lambda: draw(replay).tolist()) for _ in range(2)]
        return "\n".join([*nested, str(draw(replay).tolist())])

    assert len({batch for _ in range(2) for batch in in_fork(child).splitlines()}) == 6


def test_a_second_run_of_the_program_draws_the_same_in_each_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> list[str]:
        monkeypatch.setattr(forks._FORKS, "_number", 7)
        replay = a_replay()
        return [in_fork(lambda: DRAWS["steps"](replay).tolist()) for _ in range(2)]

    assert run() == run()


@pytest.mark.parametrize("name", ["fishyrl", "memory", "rollout"])
def test_other_generators_have_a_stream_of_their_own_in_each_fork(name: str) -> None:
    if name == "fishyrl":
        rng: Any = fishyrl.IndependentVectorizedBuffer(2, 8, seed=0)._rng
    elif name == "memory":
        rng = dreamer.Memory(seed=0)._rng
    else:
        envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
        with sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector:
            rng = collector.rollout(steps=4).rng
    drawn = [in_fork(lambda: rng.integers(1 << 40)) for _ in range(3)]
    assert len({*drawn, str(rng.integers(1 << 40))}) == 4


def test_what_forks_would_return_alike_is_refused_in_them() -> None:
    replay = a_replay()
    epoch = replay.epoch(sw.Transitions(16))
    newest = in_fork(lambda: replay.sample_transitions(16, draw="newest"))
    for error, words in ((newest, "newest"), (in_fork(lambda: next(iter(epoch))), "shard=")):
        assert re.match(rf"RuntimeError: .*{words}", error)
        assert str(os.getpid()) in error
    assert len(replay.sample_transitions(16, draw="newest").ids) == 16
    assert len(next(iter(epoch)).ids) == 16


def while_locked(replay: sw.SequenceReplayBuffer, wait: Callable[[], object]) -> threading.Thread:
    """A thread that holds the lock of a replay by now, and waits in it."""
    inside = threading.Event()

    def hold() -> None:
        with replay.storage.lock:
            inside.set()
            wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    return thread


def test_a_fork_waits_for_another_threads_draw() -> None:
    replay = a_replay()
    replay.sample_transitions(1)
    thread = while_locked(replay, lambda: time.sleep(0.1))
    assert in_fork(lambda: len(replay.sample_transitions(4).ids)) == "4"
    thread.join()


def test_a_fork_that_waited_in_vain_refuses_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_SECONDS", 0.01)
    replay, other = a_replay(), a_replay()
    replay.sample_transitions(1)
    end = threading.Event()
    thread = while_locked(replay, end.wait)
    error = in_fork(lambda: replay.sample_transitions(4))
    assert re.match("RuntimeError: .*thread", error)
    assert in_fork(lambda: len(other.sample_transitions(4).ids)) == "4"
    end.set()
    thread.join()
    assert len(replay.sample_transitions(4).ids) == 4


def test_workers_of_a_dataset_of_the_users_own_draw_different_batches() -> None:
    data = pytest.importorskip("torch.utils.data")
    replay = a_replay()

    class Mine(data.Dataset):  # type: ignore[name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            return replay.sample_transitions(8).ids.tolist()

    loader = data.DataLoader(Mine(), None, num_workers=2, multiprocessing_context="fork")
    drawn = [tuple(batch) for _ in range(2) for batch in loader]
    assert len(set(drawn)) == 8
