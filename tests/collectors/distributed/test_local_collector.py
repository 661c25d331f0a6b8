"""`LocalCollector`: the data of one process from any number of them, whatever dies."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.distributed.local_collector import LocalCollector
from support.actor_hosts import descendants, left_of
from support.crash.other_processes import line_of, python
from support.envs.fakes import GlobalRandomEnv
from support.groups import Asked, Walk, Weighted, one_process
from support.local_groups import NUM_ENVS, killing, slow_walks

GROUPS, SEED = 3, 11
STEPS = 600


def local(
    replay: SequenceReplayBuffer | None,
    make_envs: Callable[[], Any] = slow_walks,
    make_policy: Callable[[], Any] = sw.RandomPolicy,
    **options: Any,
) -> LocalCollector:
    given: dict[str, Any] = {"groups": GROUPS, "processes": 2, "seed": SEED, **options}
    return LocalCollector(make_envs, make_policy, replay, **given)


def truth(*calls: Asked) -> str:
    """Digest of what one process collects."""
    return one_process(slow_walks, sw.RandomPolicy, SEED, GROUPS, calls).digest


def test_processes_are_by_default_one_for_each_core_and_groups_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "stepwell.collectors.distributed.local_collector.available_cores"
    monkeypatch.setattr(name, lambda: 3)
    choices: dict[str, dict[str, Any]] = {
        "groups=3, actors=3": {},
        "groups=2, actors=2": {"groups": 2},
        "groups=1, actors=1": {"processes": 1},
        "groups=5, actors=3": {"groups": 5},
    }
    for words, given in choices.items():
        with LocalCollector(slow_walks, sw.RandomPolicy, **given) as collector:
            assert words in repr(collector)


def holding(lock: object) -> Any:
    return lambda *_: lock


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"processes": 4}, ValueError, "processes: .* 3 groups, got 4"),
        ({"processes": 0}, ValueError, "processes: .*>= 1, got 0"),
        ({"groups": 0.5}, ValueError, "groups: .*got 0.5"),
        ({"shard": (1, 5000)}, ValueError, "groups.*15000"),
        *(  # it cannot be sent
            ({name: holding(threading.Lock())}, TypeError, f"^{name}: .*lock[^\n]*$")
            for name in ("make_envs", "make_policy", "metadata")
        ),
    ],
    ids=range(7),
)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        local(None, **options)


@pytest.mark.proof
def test_worker_processes_of_envs_end_with_their_actor(tmp_path: Path) -> None:
    replay = SequenceReplayBuffer()
    with local(replay, partial(slow_walks, 0.001, 2)) as collector:
        collector.collect(steps=50)
        before = descendants(os.getpid())
        assert len(before) == 2 + 2 + 2 * GROUPS  # keepers, hosts, and workers of the groups
        hosts = [pid for pid in before if len(descendants(pid)) in (2, 4)]
        os.kill(hosts[0], signal.SIGKILL)
        report = collector.collect(steps=STEPS)
        assert report.deaths == 1
        assert len(left_of(before)) < len(before) - 2
        last = descendants(os.getpid())
    assert left_of([*before, *last]) == []
    assert replay.digest() == truth(Asked("steps", 50), Asked("steps", STEPS))


# Kills at random times.

KILLS = [pytest.param(0, id="0")] + [
    pytest.param(seed, marks=pytest.mark.full, id=str(seed)) for seed in range(1, 20)
]


@pytest.mark.proof
@pytest.mark.parametrize("seed", KILLS)
def test_kills_at_any_time_of_synchronous_calls_change_nothing(seed: int) -> None:
    replay = SequenceReplayBuffer()
    make_envs = partial(slow_walks, 0.0005)
    calls = [Asked("steps", 1500), Asked("rollout", 20), Asked("episodes", 90)]
    # A kill of a host takes its keeper with it, and there may be two in one start.
    with killing(seed, within=3.0, count=3), local(replay, make_envs, max_restarts=9) as collector:
        collector.collect(steps=1500)
        collector.rollout(20)
        digest = collector.collect(episodes=90).digest
    assert digest == replay.digest() == truth(*calls)


@pytest.mark.proof
@pytest.mark.parametrize("seed", KILLS)
def test_rows_of_a_run_are_true_and_stay_after_kills(seed: int) -> None:
    replay = SequenceReplayBuffer()
    make_envs = partial(slow_walks, 0.0005)
    seen = 0
    with local(replay, make_envs, Weighted, max_restarts=9, flush_seconds=0.2) as collector:
        with collector.running(weights={"w": 0.0}) as run:
            while replay.steps == 0:
                time.sleep(0.01)
            with killing(seed, within=2.0, count=3) as killed:
                began = time.monotonic()
                while time.monotonic() < began + 2.0 or replay.steps < 1000:
                    time.sleep(0.05)
                    run.publish({"w": seen % 3 / 3})
                    assert replay.steps >= seen
                    seen = replay.steps
        report = collector.report
    assert report.deaths <= len(killed)
    # The last step of each env is lost with its actor: the row after it never came.
    lost = NUM_ENVS * sum(group.restarts for group in report.groups)
    assert seen <= replay.steps <= report.steps <= replay.steps + lost
    assert report.digest == replay.digest()
    versions = [  # of the rows with an action
        episode.fields["extra/policy_version"][:-1] for episode in replay.iter_episodes()
    ]
    assert all((np.diff(one) >= 0).all() for one in versions)
    proofs = list(sw.resimulate(replay, env=Walk, lanes=1))
    assert len(proofs) == len(versions)
    assert all(proof.is_equal for proof in proofs)


# The death of the driver.

DRIVER = """
import sys
from functools import partial
import stepwell as sw
from support.groups import Weighted
from support.local_groups import slow_walks

kind, folder = sys.argv[1:]
replay = sw.SequenceReplayBuffer(folder)
print(flush=True)
with replay, sw.LocalCollector(
    partial(slow_walks, 0.0005), Weighted, replay,
    groups=3, processes=2, seed=11, flush_seconds=0.1,
    on_episode=lambda episode: print(replay.steps, flush=True),
) as collector:
    if kind == "collect":
        collector.collect(steps=1_000_000)
    else:
        with collector.running() as run:
            import time
            time.sleep(1000)
"""


@pytest.mark.proof
@pytest.mark.parametrize("seed", KILLS)
@pytest.mark.parametrize("kind", ["collect", "run"])
def test_a_driver_that_is_killed_leaves_no_process_and_what_was_stored(
    seed: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    draws = random.Random(seed)
    with python(DRIVER, kind, tmp_path / "store") as driver:
        stored = line_of(driver)
        if seed % 2 == 0:  # from the first episode on; else at any time, while actors start, too
            stored = line_of(driver)
        started = set(descendants(driver.pid))
        until = time.monotonic() + draws.uniform(0, 2.0)
        while time.monotonic() < until:
            time.sleep(0.01)
            started |= set(descendants(driver.pid))
        driver.kill()
        assert driver.stdout is not None
        lines = driver.stdout.read().split()
        driver.wait()
        assert left_of([*started]) == []
    acknowledged = int(([stored, *lines][-1] if lines else stored) or 0)
    assert acknowledged > 0 or seed % 2
    if DiskStorage.exists(tmp_path / "store"):
        with SequenceReplayBuffer(tmp_path / "store") as replay:
            assert replay.steps >= acknowledged
            assert all(proof.is_equal for proof in sw.resimulate(replay, env=Walk, lanes=1))
            with local(replay, partial(slow_walks, 0.0005), Weighted, seed=5) as collector:
                assert collector.collect(steps=30).steps >= 30
    else:
        assert acknowledged == 0


# Back-pressure.


def globally_random_envs() -> Any:
    return sw.make_vec(partial(GlobalRandomEnv, "torch"), 1, num_workers=0)


@pytest.mark.proof
def test_each_group_draws_its_own_numbers_from_global_generators() -> None:
    pytest.importorskip("torch", reason="needs torch")  # its generator begins alike everywhere

    def observations() -> np.ndarray:
        replay = SequenceReplayBuffer()
        with local(replay, globally_random_envs, groups=2) as collector:
            collector.collect(steps=40)
        return np.concatenate([one.observation for one in replay.iter_episodes()])

    first = observations()
    np.testing.assert_array_equal(observations(), first)
    assert len(np.unique(first, axis=0)) == len(first)
