"""Ctrl-C waits until a row is written, in the main thread alone."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell.buffers.base.row_guard import InterruptGuard, RowGuard
from support.programs import run_python


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Iterator[None]:
    """As it does unless it was started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def guard() -> Iterator[RowGuard]:
    made = RowGuard()
    made.install()
    yield made
    made.remove()


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


EACH = pytest.mark.parametrize("kind", [RowGuard, InterruptGuard])
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_raised_behind_the_row(guard: RowGuard, number: int) -> None:
    done: list[int] = []
    name = None if number == signal.SIGINT else signal.Signals(number).name
    with pytest.raises(KeyboardInterrupt, match=name):  # noqa: PT012  # the order matters
        with guard:
            signal.raise_signal(number)
            with guard:  # as where a flush is part of a row
                done.append(1)
            done.append(2)
        done.append(3)
    assert done == [1, 2]
    with guard:  # it was raised once
        done.append(4)


def test_between_rows_it_is_raised_at_once(guard: RowGuard) -> None:
    with guard:
        pass
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


@EACH
def test_a_second_one_is_raised_at_once(kind: type, guard: RowGuard) -> None:
    held, done = guard if kind is RowGuard else InterruptGuard(), list[int]()
    with pytest.raises(KeyboardInterrupt), held:  # noqa: PT012  # the order matters
        ctrl_c()
        done.append(1)
        ctrl_c()
        done.append(2)
    assert done == [1]
    with held:
        done.append(3)


@EACH
def test_an_error_is_not_replaced(kind: type, guard: RowGuard) -> None:
    held = guard if kind is RowGuard else InterruptGuard()
    with pytest.raises(ZeroDivisionError), held:  # noqa: PT012  # the order matters
        ctrl_c()
        raise ZeroDivisionError
    if held is guard:
        with held:  # nor does the Ctrl-C come later
            pass


def test_during_a_collection_the_first_one_waits_for_the_check() -> None:
    with InterruptGuard() as guard:
        guard.check()
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            guard.check()
        guard.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), InterruptGuard():  # or for the end
        ctrl_c()


def test_python_s_handler_is_back_when_the_last_one_is_removed(guard: RowGuard) -> None:
    other = RowGuard()
    other.install()
    other.install()
    guard.remove()
    guard.remove()
    with pytest.raises(KeyboardInterrupt), other:
        ctrl_c()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    other.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", SIGNALS)
def test_a_handler_of_the_program_stays(number: int) -> None:
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)

    before, guard = signal.signal(number, note), RowGuard()
    try:
        guard.install()
        with guard, InterruptGuard():
            signal.raise_signal(number)
            assert came == [number]
        guard.remove()
        assert signal.getsignal(number) is note
    finally:
        signal.signal(number, before)


def test_a_handler_that_was_set_meanwhile_stays(guard: RowGuard) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard.remove()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_collection_holds_ctrl_c_back_as_without_it(guard: RowGuard) -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the order matters
        with InterruptGuard() as collection:
            ctrl_c()
            with guard:
                pass
            collection.check()
    with pytest.raises(KeyboardInterrupt), guard:
        ctrl_c()


def test_rows_of_other_threads_hold_the_lock_and_not_ctrl_c(guard: RowGuard) -> None:
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with guard:
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait(60)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    held: list[str] = []

    def write_next() -> None:
        with guard:
            held.append("in")

    second = threading.Thread(target=write_next)
    second.start()
    second.join(0.05)
    assert held == []
    leave.set()
    thread.join()
    second.join()
    assert held == ["in"]


def test_in_another_thread_nothing_is_installed() -> None:
    guard = RowGuard()
    thread = threading.Thread(target=guard.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    guard.remove()


def test_a_forked_process_ends_when_it_is_told_to(guard: RowGuard) -> None:
    fork = multiprocessing.get_context("fork")
    with InterruptGuard():
        process = fork.Process(target=time.sleep, args=(60,))
        process.start()
    process.terminate()
    process.join(30)
    assert process.exitcode == -signal.SIGTERM


LOOPS = {
    "record": """
with sw.record(gym.make("CartPole-v1"), "a") as env:
    env.reset(seed=0)
    for step in range(7):
        env.step(step % 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
""",
    "writer": """
with sw.SequenceReplayBuffer("a") as replay:
    writer = replay.writer(gym.make("CartPole-v1"))
    for step in range(7):
        now, then = np.full((2, 4), [[step], [step + 1]], np.float32)
        writer.add(now, 0, 1.0, then, False, False)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
""",
    "sb3": """
from stepwell.buffers.dropin.sb3 import ReplayBuffer
space = gym.spaces.Box(0, 9, (1,))
buffer = ReplayBuffer(100, space, space, "cpu", path="a")
for step in range(7):
    one = np.full((1, 1), step, np.float32)
    buffer.add(one, one + 1, one, np.ones(1), np.zeros(1), [{}])
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
}


@pytest.mark.proof
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_is_told_to_end_keeps_its_rows(name: str) -> None:
    if name == "sb3":
        pytest.importorskip("stable_baselines3")
    head = "import os, signal, time\nimport gymnasium as gym\nimport numpy as np\n"
    code = f"{head}import stepwell as sw\n{LOOPS[name]}"
    done = run_python("-c", code, code=-signal.SIGINT)
    assert "KeyboardInterrupt: SIGTERM" in done.stderr
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.steps == 7
