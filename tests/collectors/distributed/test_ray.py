"""The engine and the collector on a real Ray cluster of four nodes on this machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors.distributed.engine import ActorDied, RemoteError
from support.examples import by_tier
from support.groups import Asked, Weighted, one_process, walks
from support.programs import run_python
from support.ray_cluster import (
    CPUS,
    RayNodes,
    Talker,
    eventually,
    is_running,
    noted,
    noted_walks,
    ray_nodes,
)
from support.source_tree import CHECKOUT

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs ray", allow_module_level=True)

from stepwell.collectors.distributed.ray_engine import RayEngine


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes(3) as nodes:
        yield nodes


@pytest.fixture
def engine(cluster: RayNodes) -> Iterator[RayEngine]:
    engine = RayEngine(address=cluster.address)
    yield engine
    engine.close()


def ask(engine: RayEngine, actor: Any, method: str, *arguments: object) -> Any:
    return engine.result(engine.call(actor, method, *arguments))


def test_calls_run_in_order_and_are_waited_for(engine: RayEngine) -> None:
    actors = [engine.start(f"actor-{i}", Talker) for i in range(2)]
    answers = [engine.call(actor, "count") for actor in actors for _ in range(3)]
    slow = engine.call(actors[0], "sleep", 60.0)
    while set(engine.wait([*answers, slow], 30)) != set(answers):
        pass
    assert [engine.result(answer) for answer in answers] == [1, 2, 3, 1, 2, 3]
    assert engine.wait([slow], 0) == engine.wait([slow], 0.1) == []
    assert slow.actor is actors[0]
    assert engine.wait([], 0.01) == []
    engine.kill(actors[0])
    engine.kill(actors[0])
    assert engine.wait([slow], 30) == [slow]
    with pytest.raises(ActorDied, match="it was killed"):
        engine.result(slow)
    later = engine.call(actors[0], "count")
    assert engine.wait([later], 30) == [later]
    with pytest.raises(ActorDied):
        engine.result(later)


@pytest.mark.parametrize("rows", [10, 1_000_000])  # within the answer; in the object store
def test_arrays_are_writable_on_both_sides_and_travel_by_reference(
    engine: RayEngine, rows: int
) -> None:
    one, other = (engine.start(name, Talker) for name in ("one", "other"))
    array = np.arange(rows)
    shared = engine.share(array)
    value, payload = engine.result(engine.call(one, "pair", shared, parts=2))
    assert value == "small"
    engine.fetch(payload)[:] = 0  # a copy
    more = ask(engine, other, "add_one_in_place", payload)
    assert np.array_equal(more, array + 1)
    more[:] = 0
    assert np.array_equal(engine.fetch(payload), array)
    engine.forget(payload)
    engine.forget(payload)
    with pytest.raises(ValueError, match="forgotten"):
        engine.fetch(payload)


def test_a_shared_value_is_freed_when_it_is_forgotten(engine: RayEngine) -> None:
    import ray

    actor = engine.start("actor", Talker)
    free = ray.available_resources()["object_store_memory"]
    for _ in range(10):  # ten times 20 MB would not fit at once
        shared = engine.share(np.zeros(20 * 2**20, np.uint8))
        ask(engine, actor, "count")
        engine.forget(shared)
    assert eventually(lambda: ray.available_resources()["object_store_memory"] > free - 2**20)


def test_errors_of_the_users_code_come_as_text(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = engine.start("actor", Talker)
    with pytest.raises(RemoteError, match=r"^ValueError: no such door") as caught:
        ask(engine, actor, "fail", ValueError("no such door"))
    assert caught.value.kind == "ValueError"
    assert "in fail" in caught.value.traceback
    with pytest.raises(RemoteError, match="SystemExit: 4"):
        ask(engine, actor, "fail", SystemExit(4))
    with pytest.raises(RemoteError, match="ValueError: two parts"):
        engine.result(engine.call(actor, "fail", ValueError("two parts"), parts=2))
    with pytest.raises(RemoteError, match="LockedError: five apples"):
        ask(engine, actor, "fail_with_a_lock")
    with pytest.raises(RemoteError, match=r"what lock returned .* '_thread.lock'"):
        ask(engine, actor, "lock")
    module = ModuleType("unknown_to_actors")
    unknown = type("Thing", (), {"__module__": module.__name__})
    module.Thing = unknown  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(RemoteError, match=r"ModuleNotFoundError: .*unknown_to_actors"):
        ask(engine, actor, "fail", unknown)
    assert ask(engine, actor, "count") == 1  # it lives on


def test_what_cannot_be_sent_is_refused_here(engine: RayEngine) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"actor-7: make_envs, .* '_thread.lock'"):
        engine.start("actor-7", lambda: lock)
    actor = engine.start("actor-8", Talker)
    with pytest.raises(TypeError, match=r"actor-8: an argument of fail .* '_thread.lock'"):
        engine.call(actor, "fail", lock)


def kill_process(cluster: RayNodes, pid: int, node: str) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_node(cluster: RayNodes, pid: int, node: str) -> None:
    cluster.kill(node)


@pytest.mark.parametrize("kill", [kill_process, pytest.param(kill_node, marks=pytest.mark.proof)])
def test_a_death_is_an_error_with_its_cause(
    engine: RayEngine, cluster: RayNodes, kill: Callable[..., None]
) -> None:
    actor = engine.start("actor", Talker)
    pid, node = ask(engine, actor, "ping")
    waiting = [engine.call(actor, "sleep", 600.0) for _ in range(2)]
    kill(cluster, pid, node)
    assert engine.wait(waiting, 60)
    for answer in waiting:
        with pytest.raises(ActorDied, match=r"^its (process|node)") as caught:
            engine.result(answer)
        assert caught.value.__notes__[0].startswith("Ray says: ")
    with pytest.raises(ActorDied):
        ask(engine, actor, "ping")
    assert ask(engine, engine.start("next", Talker), "count") == 1
    assert not is_running(pid)
    if kill is kill_node:
        cluster.replace(node)


@pytest.mark.proof
def test_a_payload_that_was_lost_with_its_node_is_an_error(
    engine: RayEngine, cluster: RayNodes
) -> None:
    actor, other = engine.start("actor", Talker), engine.start("other", Talker)
    _, node = ask(engine, actor, "ping")
    assert ask(engine, other, "ping")[1] != node  # actors are spread over the nodes
    _, payload = engine.result(engine.call(actor, "pair", np.zeros(10**6), parts=2))
    cluster.kill(node)
    handed_on = engine.call(other, "add_one_in_place", payload)
    with pytest.raises(ActorDied, match="its node is gone"):
        engine.fetch(payload)
    with pytest.raises(RemoteError) as caught:
        engine.result(handed_on)
    assert caught.value.kind.startswith("Object")
    assert ask(engine, other, "count") == 1
    cluster.replace(node)


def test_an_actor_that_finds_no_place_says_what_is_there(
    engine: RayEngine, cluster: RayNodes
) -> None:
    fits = [engine.start(f"actor-{i}", Talker) for i in range(3 * CPUS)]
    for actor in fits:
        ask(engine, actor, "count")
        assert engine.shortage(actor) is None
    one_more = engine.start("one-more", Talker)
    answer = engine.call(one_more, "count")
    assert eventually(lambda: engine.shortage(one_more) is not None)
    words = engine.shortage(one_more)
    assert words
    expected = f"one-more asks for CPU: 1; the Ray cluster has CPU: {3 * CPUS} on 4 nodes, "
    assert words.startswith(f"{expected}at most {CPUS} on one, 0 free")
    engine.kill(fits[0])
    assert engine.result(answer) == 1
    assert engine.shortage(one_more) is None


def test_resources_that_no_node_has_are_short(cluster: RayNodes) -> None:
    engine = RayEngine(address=cluster.address, resources={"num_gpus": 1, "door": 2.5})
    actor = engine.start("actor", Talker)
    assert eventually(lambda: engine.shortage(actor) is not None)
    words = engine.shortage(actor) or ""
    assert "CPU: 1" in words
    assert "GPU: 0 on 4 nodes" in words
    assert "door: 0 on 4 nodes" in words
    engine.close()
    engine.close()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"resources": {"num_cpus": -1}}, ValueError, "got 'num_cpus': -1"),
        ({"resources": {"num_cpus": float("inf")}}, ValueError, "got 'num_cpus': inf"),
        ({"resources": {"door": "two"}}, ValueError, "got 'door': 'two'"),
        ({"resources": {"CPU": 1}}, ValueError, "'num_cpus'"),
        ({"resources": "gpu"}, TypeError, "resources"),
        ({"address": 3}, TypeError, "address"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RayEngine(**options)


def test_the_address_is_that_of_the_connection(cluster: RayNodes) -> None:
    import ray

    ray.init(address=cluster.address, logging_level=logging.ERROR)
    try:
        with pytest.raises(ValueError, match=rf"{cluster.address}, got '10.1.2.3:6379'"):
            RayEngine(address="10.1.2.3:6379")
        RayEngine().close()
        assert ray.is_initialized()  # the program's own connection stays
    finally:
        ray.shutdown()
    with pytest.raises(ValueError, match="ray://far:10001"):
        RayEngine(address="ray://far:10001")


DRIVER = """
import os, sys, time
from stepwell.collectors.distributed.ray_engine import RayEngine
from support.source_tree import CHECKOUT
from support.ray_cluster import Talker

engine = RayEngine(address=sys.argv[1])
actors = [engine.start(f"actor-{i}", Talker) for i in range(2)]
print(*(engine.result(engine.call(actor, "ping"))[0] for actor in actors), flush=True)
engine.call(actors[0], "sleep", 600.0)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.proof)]
)
def test_no_actor_outlives_its_driver(cluster: RayNodes, number: signal.Signals) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert driver.stdout
    with driver.stdout:
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        driver.send_signal(number)
        driver.wait()
    assert eventually(lambda: not any(map(is_running, pids)))


ALONE = """
import os, sys
import ray
from stepwell.buffers.storage.checkpoint import pack, unpack
from stepwell.collectors.distributed.engine import ActorDied
from stepwell.collectors.distributed.ray_engine import RayEngine
from support.source_tree import CHECKOUT
from support.ray_cluster import Talker

engine = RayEngine(resources={"num_cpus": 0.1})
actor = engine.start("actor", Talker)
print(engine.result(engine.call(actor, "ping"))[0])
engine.close()
late = engine.call(actor, "ping")
assert engine.wait([late], 60) == [late]
for refused, kind in (
    (lambda: engine.result(late), ActorDied),
    (lambda: engine.start("late", Talker), ValueError),
    (lambda: engine.share(1), ValueError),
):
    try:
        refused()
    except kind:
        pass
    else:
        raise AssertionError
print(ray.is_initialized())
for address in ("127.0.0.1:9", "far"):  # "auto" finds other tests' clusters
    try:
        RayEngine(address=address)
    except ConnectionError as error:
        print(error)
"""


def test_without_an_address_it_starts_a_ray_of_its_own_and_ends_it() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        stale = Path(folder, "ray", "ray_current_cluster")  # Ray itself would connect to that
        stale.parent.mkdir()
        stale.write_text("127.0.0.1:10")
        variables = {"RAY_TMPDIR": folder, "PYTHONPATH": str(CHECKOUT / "tests")}
        run = run_python("-c", ALONE, env=variables)
        pid, initialized, *errors = run.stdout.splitlines()
        assert initialized == "False"
        assert ["127.0.0.1:9", "far"] == [
            quoted for error in errors for quoted in re.findall(r"\('(.*?)'\)", error)
        ]
        assert eventually(lambda: not is_running(int(pid)))


SEED, GROUPS, ENVS = 5, 3, 2
DEATHS = by_tier(1, 1, 20)
CALL_STEPS, TIMES = 2_000, 4  # steps of a call, and how often it is made


@functools.cache
def expected_digest() -> str:
    return one_process(walks, Weighted, SEED, GROUPS, [Asked("steps", CALL_STEPS)] * TIMES).digest


def pause_process(cluster: RayNodes, pid: int, node: str) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    "kill", [kill_process, kill_node, pytest.param(pause_process, marks=pytest.mark.proof)]
)
def test_a_death_on_the_way_changes_no_row(
    cluster: RayNodes, kill: Callable[..., None], tmp_path: Path
) -> None:
    rng = random.Random(kill.__name__)
    deaths = 0
    for number in range(DEATHS):
        notes = tmp_path / f"notes-{number}"
        notes.mkdir()
        deaths += one_death(cluster, kill, notes, rng)
    assert deaths >= DEATHS * 3 // 4  # a victim may have sent its last piece before
    print(f"{kill.__name__}: {DEATHS} times, {deaths} deaths of actors")


def one_death(cluster: RayNodes, kill: Callable[..., None], notes: Path, rng: random.Random) -> int:
    """Collect, kill something at a random time, and compare the data; returns the deaths."""
    replay = sw.SequenceReplayBuffer()
    victims: list[tuple[int, str]] = []

    # A group sends its share of a call in few pieces: so one of several calls is struck.
    at = rng.randrange(1, CALL_STEPS * (TIMES - 1))

    def strike() -> None:
        assert eventually(lambda: replay.steps >= at)
        time.sleep(rng.random() * 0.2)
        victims.append(rng.choice(noted(notes)))
        kill(cluster, *victims[0])

    with sw.RayCollector(
        functools.partial(noted_walks, notes, 1_000),
        Weighted,
        replay,
        groups=GROUPS,
        actors=rng.randint(1, GROUPS),
        seed=SEED,
        address=cluster.address,
        answer_seconds=5,
    ) as collector:
        with ThreadPoolExecutor(1) as pool:
            struck = pool.submit(strike)
            reports = [collector.collect(steps=CALL_STEPS) for _ in range(TIMES)]
            struck.result()
        assert reports[-1].digest == replay.digest() == expected_digest()
        assert sum(report.steps for report in reports) == replay.steps
        if kill is kill_node:
            cluster.replace(victims[0][1])
    if kill is pause_process:
        with contextlib.suppress(ProcessLookupError):  # its node may have ended it
            os.kill(victims[0][0], signal.SIGCONT)
    assert eventually(lambda: not is_running(victims[0][0]))
    return sum(report.deaths for report in reports)
