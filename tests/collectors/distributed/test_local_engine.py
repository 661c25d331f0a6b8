"""`LocalEngine`: answers, errors, deaths, and what is left of processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.collectors.distributed.engine import ActorDied, NotEnoughResources, RemoteError
from stepwell.collectors.distributed.local_engine import LocalEngine
from support.actor_hosts import Host, failing_make, is_running, left_of, sockets_of
from support.crash.other_processes import line_of, python


@pytest.fixture(name="engine")
def engine_fixture() -> Generator[LocalEngine]:
    with contextlib.closing(LocalEngine()) as engine:
        yield engine


@pytest.mark.proof
def test_calls_of_an_actor_are_answered_in_order_and_actors_work_side_by_side(
    engine: LocalEngine,
) -> None:
    actors = [engine.start(f"actor-{k}", Host) for k in range(2)]
    answers = [engine.call(actor, "add", k) for k in range(1, 20) for actor in actors]
    while len(done := engine.wait(answers, 60)) < len(answers):
        assert done
    expected = [total for k in range(1, 20) for total in [k * (k + 1) // 2] * 2]
    assert [engine.result(answer) for answer in answers] == expected
    assert [actor.name for actor in actors] == ["actor-0", "actor-1"]


@pytest.mark.proof
def test_arrays_come_back_writable_and_apart_from_the_value(engine: LocalEngine) -> None:
    actor = engine.start("a", Host)
    value, reference = engine.result(engine.call(actor, "arrays", 300_000, parts=2))
    arrays = engine.fetch(reference)
    assert value == 300_000
    assert np.array_equal(arrays["a"], np.arange(300_000))
    arrays["a"][:] = 0
    arrays["b"][1] = 5
    engine.forget(reference)
    engine.forget(reference)


@pytest.mark.proof
def test_a_shared_value_is_the_one_of_its_time_and_is_sent_once(engine: LocalEngine) -> None:
    actor = engine.start("a", Host)
    weights = np.ones(1_000_000)
    reference = engine.share(weights)
    weights[:] = 7
    sums = [engine.call(actor, "sum", reference) for _ in range(3)]
    assert [engine.result(one) for one in sums] == [1e6] * 3
    assert np.array_equal(engine.fetch(reference), np.ones(1_000_000))
    engine.forget(reference)
    _, made = engine.result(engine.call(actor, "arrays", 10, parts=2))
    with pytest.raises(RemoteError, match="AttributeError"):  # a dict has no sum
        engine.result(engine.call(actor, "sum", made))


@pytest.mark.proof
def test_wait_returns_nothing_in_time_and_only_what_was_asked_for(engine: LocalEngine) -> None:
    slow, fast = engine.start("slow", Host), engine.start("fast", Host)
    asleep, added = engine.call(slow, "sleep"), engine.call(fast, "add", 1)
    assert engine.wait([added], 60) == [added]
    assert engine.wait([asleep], 0.05) == []
    assert engine.wait([asleep], 0) == []
    assert engine.wait([asleep, added], 60) == [added]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [
        ("fail", "ValueError", "ValueError: no such door"),
        ("leave", "SystemExit", "SystemExit: 3"),
        ("lambda_", "PicklingError|AttributeError", "lambda"),
        ("missing", "AttributeError", "missing"),
    ],
)
def test_what_a_method_raises_is_an_error_here_and_the_actor_lives_on(
    method: str, kind: str, text: str, engine: LocalEngine
) -> None:
    actor = engine.start("a", Host)
    with pytest.raises(RemoteError, match=text) as raised:
        engine.result(engine.call(actor, method))
    assert raised.value.kind in kind.split("|")
    assert engine.result(engine.call(actor, "add", 2)) == 2


@pytest.mark.proof
def test_what_make_raises_every_call_raises_with_the_traceback(engine: LocalEngine) -> None:
    actor = engine.start("a", failing_make)
    for _ in range(2):
        with pytest.raises(RemoteError, match="KeyError: 'no such world'") as raised:
            engine.result(engine.call(actor, "add", 1))
        assert 'raise KeyError("no such world")' in "".join(raised.value.__notes__)


def test_what_cannot_be_pickled_is_refused_in_one_sentence(engine: LocalEngine) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"actor-3: .*lock.*inside") as raised:
        engine.start("actor-3", lambda: lock)
    assert "\n" not in str(raised.value)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("method", "argument", "words"),
    [
        ("exit", 3, "exit code 3"),
        ("exit", 0, "exit code 0"),
        ("signal", signal.SIGSEGV, "signal 11, SIGSEGV"),
        ("signal", signal.SIGKILL, "signal 9, SIGKILL.*lack of memory"),
        ("signal", signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_a_death_is_told_in_words_and_answers_before_it_count(
    method: str, argument: int, words: str, engine: LocalEngine
) -> None:
    actor = engine.start("a", Host)
    before = engine.call(actor, "arrays", 200_000)
    at, after = engine.call(actor, method, argument), engine.call(actor, "add", 1)
    for answer in (at, after):
        with pytest.raises(ActorDied, match=words):
            engine.result(answer)
    assert engine.result(before)[0] == 200_000
    with pytest.raises(ActorDied, match=words):
        engine.result(engine.call(actor, "add", 1))


@pytest.mark.proof
def test_too_much_memory_is_an_error_of_the_call(engine: LocalEngine) -> None:
    actor = engine.start("a", partial(Host, 1 << 29))
    with pytest.raises(RemoteError) as raised:
        engine.result(engine.call(actor, "allocate", 1 << 30))
    assert raised.value.kind == "MemoryError"
    assert engine.result(engine.call(actor, "allocate", 1 << 20)) == 1 << 20


@pytest.mark.proof
def test_a_process_that_the_system_does_not_start_is_a_lack_of_resources(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = sockets_of("self")
    monkeypatch.setattr(subprocess, "Popen", refused)
    actor = engine.start("a", Host)
    with pytest.raises(NotEnoughResources, match="temporarily unavailable"):
        engine.result(engine.call(actor, "add", 1))
    engine.kill(actor)
    assert sockets_of("self") == before


def busy_actor(engine: LocalEngine, state: str) -> tuple[Any, tuple[int, ...]]:
    """An actor that does something, and its processes."""
    actor = engine.start("a", Host)
    pids = engine.result(engine.call(actor, "pids"))
    assert engine.result(engine.call(actor, "add", 1)) == 1
    if state:
        engine.call(actor, state)
        time.sleep(0.2)
    assert all(map(is_running, pids))
    return actor, pids


@pytest.mark.proof
@pytest.mark.parametrize("state", ["sleep_in_c", "stop"])
def test_kill_leaves_no_process_whatever_the_actor_does(state: str, engine: LocalEngine) -> None:
    actor, pids = busy_actor(engine, state)
    answer = engine.call(actor, "add", 1)
    engine.kill(actor)
    engine.kill(actor)
    assert left_of(pids) == []
    with pytest.raises(ActorDied, match="driver"):
        engine.result(answer)


@pytest.mark.proof
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("state", ["", "sleep", "sleep_in_c", "stop"])
def test_a_killed_process_of_an_actor_takes_the_others_with_it(
    victim: int, state: str, engine: LocalEngine
) -> None:
    actor, pids = busy_actor(engine, state)
    os.kill(pids[victim], signal.SIGKILL)
    assert left_of(pids[:2]) == []
    with pytest.raises(ActorDied, match="signal 9"):
        engine.result(engine.call(actor, "add", 1))
    engine.wait([], 0.1)
    assert left_of(pids) == []


@pytest.mark.proof
def test_neither_side_waits_for_the_other_when_both_send_much(engine: LocalEngine) -> None:
    actor = engine.start("a", Host)
    values = np.ones(2_000_000)
    answers: list[Any] = []
    for _ in range(5):
        answers.append(engine.call(actor, "arrays", 2_000_000))
        answers.append(engine.call(actor, "sum", values))
    assert [engine.result(answer) for answer in answers[1::2]] == [2e6] * 5


@pytest.mark.proof
def test_an_engine_that_is_closed_or_dropped_leaves_nothing(engine: LocalEngine) -> None:
    _, pids = busy_actor(engine, "sleep")
    engine.close()
    assert not any(map(is_running, pids))
    dropped = LocalEngine()
    _, pids = busy_actor(dropped, "stop")
    del dropped
    assert not any(map(is_running, pids))


@pytest.mark.proof
def test_an_actor_inherits_no_socket_of_the_driver(engine: LocalEngine) -> None:
    actors = [engine.start(f"{k}", Host) for k in range(3)]
    for actor in actors:
        assert not engine.result(engine.call(actor, "sockets")) & sockets_of("self")


@pytest.mark.proof
def test_what_actors_print_goes_where_the_driver_prints(
    engine: LocalEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    actor = engine.start("a", Host)
    engine.result(engine.call(actor, "say", "hello"))
    assert capfd.readouterr() == ("out hello\n", "err hello\n")


@pytest.mark.proof
def test_ctrl_c_while_an_answer_arrives_ends_the_actor(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, pids = busy_actor(engine, "")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    answer = engine.call(actor, "arrays", 1000)
    with monkeypatch.context() as patch:
        patch.setattr("pickle.loads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.wait([answer], 60)
    with pytest.raises(ActorDied):
        engine.result(answer)
    assert left_of(pids) == []


# The death of the driver, which is another process here.

DRIVER = """
import os, sys, time
from stepwell.collectors.distributed.local_engine import LocalEngine
from support.actor_hosts import Host

engine = LocalEngine()
actors = [engine.start(f"actor-{k}", Host) for k in range(2)]
pids = [pid for one in actors for pid in engine.result(engine.call(one, "pids"))]
state, end = sys.argv[1:]
if state == "unsent":
    reference = engine.share(bytes(30_000_000))
    for actor in actors:
        engine.call(actor, "stop")
        engine.call(actor, "sum", reference)
elif state:
    for actor in actors:
        engine.call(actor, state)
if end == "fork" and os.fork() == 0:  # it has copies of all sockets, and lives on
    os.close(1)
    time.sleep(15)
    os._exit(0)
time.sleep(0.2)
print(*pids, flush=True)
if end == "exit":
    sys.exit()
if end == "raise":
    raise ValueError("the driver fails")
time.sleep(1000)
"""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("state", "end"),
    [
        *((state, "killed") for state in ("sleep_in_c", "stop", "", "sleep", "unsent")),
        *(("sleep", end) for end in ("exit", "raise", "fork")),
    ],
)
def test_no_process_outlives_a_driver(
    state: str, end: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with python(DRIVER, state, end) as driver:
        pids = [int(pid) for pid in line_of(driver).split()]
        assert len(pids) == 6
        if end in ("killed", "fork"):
            driver.kill()
        driver.wait()
        assert left_of(pids) == []
    assert ("the driver fails" in capfd.readouterr().err) == (end == "raise")


SCRIPT = """
import time
from stepwell.collectors.distributed.local_engine import LocalEngine

print("top level", flush=True)

class Mine:
    def __init__(self): self.base = BASE
    def add(self, number): return self.base + number

BASE = 40
engine = LocalEngine()
actor = engine.start("mine", lambda: Mine())
print(engine.result(engine.call(actor, "add", 2)), flush=True)
engine.call(actor, "add", 2)
"""


@pytest.mark.proof
def test_a_script_needs_no_main_guard_and_its_functions_are_sent() -> None:
    Path("script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "script.py"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "top level\n42\n", "")


@pytest.mark.proof
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "terminal"])
def test_ctrl_c_ends_a_waiting_driver_and_its_actors_without_a_word_of_theirs(
    send: Callable[[int, int], None],
) -> None:
    wait = "print(actor.pid, flush=True)\nengine.call(actor, 'wait')\nengine.wait([], 1000)\n"
    host = "    def wait(self): time.sleep(1000)\n"
    Path("script.py").write_text(SCRIPT.replace("\nBASE =", f"{host}\nBASE =", 1) + wait)
    with subprocess.Popen(
        [sys.executable, "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stderr is not None
        pid = [driver.stdout.readline() for _ in range(3)][-1]
        time.sleep(0.2)
        send(driver.pid, signal.SIGINT)
        assert driver.stderr.read().count("KeyboardInterrupt") == 1
    assert left_of([int(pid)]) == []
