"""A collector whose rows are in shards: the data of one process, in several actors."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import SequenceReplayBuffer, episode_buffer
from stepwell.collectors.distributed import shards
from stepwell.collectors.distributed.collector import DistributedCollector
from stepwell.collectors.distributed.local_engine import LocalEngine
from stepwell.collectors.distributed.shards import Shards
from support.examples import by_tier
from support.groups import Asked, OneProcess, Weighted, one_process, walks
from support.inline_engine import Faults, InlineActor, InlineEngine

SEED, GROUPS = 5, 4
CALLS = [Asked("steps", 90), Asked("episodes", 7), Asked("rollout", 5), Asked("steps", 40)]


class ShardEngine(InlineEngine):
    """Actors of this process: the lock of a shard's folder ends with the shard."""

    def _die(self, actor: InlineActor, cause: str, error: Exception | None = None) -> None:
        host = actor.host
        super()._die(actor, cause, error)
        if host is not None and actor.name.startswith("shard"):
            host.close()


def collector_of(engine: Any, given: Shards, **options: Any) -> DistributedCollector:
    clock = getattr(engine, "clock", time.monotonic)
    arguments: dict[str, Any] = {"groups": GROUPS, "actors": 2, "seed": SEED, "clock": clock}
    return DistributedCollector(engine, walks, Weighted, given, **{**arguments, **options})


def play(collector: DistributedCollector, between: Callable[[], None] = lambda: None) -> None:
    for asked in CALLS:
        if asked.kind == "rollout":
            collector.rollout(asked.amount)
        elif asked.kind == "steps":
            collector.collect(steps=asked.amount)
        else:
            collector.collect(episodes=asked.amount)
        between()


def model() -> OneProcess:
    return one_process(walks, Weighted, SEED, GROUPS, CALLS)


@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
@settings(max_examples=by_tier(6, 60, 500), deadline=None)
def test_the_data_is_that_of_one_process_whatever_dies(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, on_disk: bool
) -> None:
    """In RAM hosts die, with folders shards die, too."""
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("shards") if on_disk else None
    engine = ShardEngine(seed)
    expected = model()
    with (
        mock.patch.object(shards, "_MOST_DEATHS", 1_000),
        mock.patch.object(episode_buffer, "_rows_by_size", return_value=rng.choice((3, 9, 512))),
        collector_of(engine, Shards(count, path=path), max_restarts=1_000) as collector,
    ):
        faults: dict[str, Any] = {"delay": rng.random() / 5, "twice": rng.random() / 5}
        deaths: dict[str, Any] = {"die_before": 0.01, "die_after": 0.02} if on_disk else {}
        engine._faults = Faults(**faults, **deaths, disorder=0.2)
        play(collector)
        engine._faults = Faults()
        replay: Any = collector.replay
        assert collector.report.digest == expected.digest
        assert replay.digest() == expected.digest
        assert len(replay) == len(expected.replay)
        assert replay.episodes == expected.replay.episodes
        assert replay.lost_shards == 0
        batch = replay.sample_sequences(16, 2)
        assert batch.reward.shape == (16, 2)
        (session,) = [dict(one) for one in replay.sessions]
        assert (session["groups"], session["num_envs"], session["shards"]) == (4, 8, count)
    if path is not None:
        with SequenceReplayBuffer.open(sorted(path.iterdir())) as stored:
            assert len(stored) == len(expected.replay)


def test_draws_do_not_depend_on_the_actors() -> None:
    def ids(actors: int, seed: int) -> list[list[int]]:
        engine = ShardEngine(seed, Faults(delay=0.2, disorder=0.2))
        with collector_of(engine, Shards(3), actors=actors) as collector:
            collector.collect(steps=200)
            replay: Any = collector.replay
            return [replay.sample_transitions(8).ids.tolist() for _ in range(3)]

    assert ids(1, 0) == ids(4, 1)


@pytest.mark.parametrize("seed", range(by_tier(1, 3, 20)))
def test_shards_that_are_killed_at_random_times_keep_every_row(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected = model()
    kills = 0
    done = threading.Event()

    def kill(replay: Any) -> None:
        nonlocal kills
        while not done.wait(rng.uniform(0.05, 0.6)) and kills < 4:
            with contextlib.suppress(ProcessLookupError):  # it is replaced just now
                os.kill(rng.choice(replay.summary())["pid"], signal.SIGKILL)
                kills += 1

    with (
        mock.patch.object(shards, "_MOST_DEATHS", 1_000),
        collector_of(LocalEngine(), Shards(2, path=tmp_path)) as collector,
    ):
        replay: Any = collector.replay
        thread = threading.Thread(target=kill, args=[replay])
        thread.start()
        try:
            deadline = time.monotonic() + 60
            play(collector, lambda: time.sleep(0.3))
            while not kills and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            done.set()
            thread.join()
        assert kills
        assert {one["actor"] for one in replay.summary()} != {"shard-0", "shard-1"}
        assert replay.digest() == expected.digest
        assert len(replay) == len(expected.replay)


def test_a_learner_draws_from_processes_while_they_are_fed() -> None:
    with collector_of(LocalEngine(), Shards(2), flush_seconds=0.05) as collector:
        collector.collect(steps=40)
        replay: Any = collector.replay
        first = len(replay)
        with collector.running(weights={"w": 0.5}) as run:
            deadline = time.monotonic() + 60
            batches = replay.prefetch(sw.Transitions(32))
            while len(replay) < first + 400 and time.monotonic() < deadline:
                assert next(batches).reward.shape == (32,)
                assert replay.sample_sequences(4, 1).reward.shape == (4, 1)
            run.publish({"w": 0.25})
        assert len(replay) >= first + 400
        assert replay.digest() == collector.report.digest
        both = np.unique(replay.sample_transitions(500).ids >> 48)
        assert both.tolist() == [0, 1]
