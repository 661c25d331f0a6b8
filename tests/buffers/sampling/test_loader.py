"""A loader gives the batches of its source in order, and its threads end with it."""

from __future__ import annotations

import gc
import itertools
import re
import textwrap
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from stepwell.buffers.sampling.loader import Loader
from support.programs import run_python

SECONDS = 20.0  # nothing here takes that long, unless it hangs


@dataclass(frozen=True, slots=True)
class Small:
    """A batch that holds its number."""

    number: int
    rows: np.ndarray
    memory: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])


class Counting:
    """A function that numbers its batches, reuses ``out``, and counts the live ones."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls = itertools.count()
        self.made = 0
        self.most_alive = 0
        self.died: list[None] = []
        self.seconds = seconds
        self.lock = threading.Lock()

    def __call__(self, out: Small | None) -> Small:
        time.sleep(self.seconds)
        with self.lock:
            number = next(self.calls)
            if out is None:
                rows = np.empty(1000, np.int64)
                self.made += 1
                weakref.finalize(rows, self.died.append, None).atexit = False
            else:
                rows = out.rows
            self.most_alive = max(self.most_alive, self.made - len(self.died))
        rows[:] = number
        return Small(number, rows)


class Resumable:
    """Counts up to a limit, once; has a state."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.next >= self.stop:
            self.stop += 1  # a further call would give a number
            raise StopIteration
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}


def loader_threads() -> list[threading.Thread]:
    found = threading.enumerate()
    return [thread for thread in found if thread.name.startswith("stepwell-loader")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    wait_until(lambda: not loader_threads())


@pytest.mark.parametrize("prefetch", [1, 2, 7])
@pytest.mark.parametrize("reuse", [False, True])
def test_one_thread_gives_the_same_batches_as_no_loader(prefetch: int, reuse: bool) -> None:
    rng, own = np.random.default_rng(3), np.random.default_rng(3)

    def draw(out: np.ndarray | None) -> np.ndarray:
        return rng.random(4) if out is None else rng.random(out=out)

    with Loader(draw, prefetch=prefetch, reuse=reuse) as batches:
        for batch in itertools.islice(batches, 50):
            np.testing.assert_array_equal(batch, own.random(4))


def test_the_order_is_that_of_the_source_even_if_later_batches_are_ready_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = Loader(range(30), threads=3, prefetch=4)
    deliver = batches._feed._deliver

    def deliver_some_late(number: int, outcome: Any) -> bool:
        if number % 3 == 0:
            time.sleep(0.005)
        return deliver(number, outcome)

    monkeypatch.setattr(batches._feed, "_deliver", deliver_some_late)
    assert list(batches) == list(range(30))


def test_several_threads_call_a_function_at_once() -> None:
    meeting = threading.Barrier(3, timeout=SECONDS)

    def draw(out: int | None) -> int:
        return meeting.wait()

    with Loader(draw, threads=3, prefetch=1) as batches:
        assert {next(batches) for _ in range(3)} == {0, 1, 2}
        meeting.abort()


def test_batches_are_drawn_while_the_caller_works() -> None:
    draw = Counting()
    with Loader(draw, prefetch=3) as batches:
        wait_until(lambda: draw.made == 3)
        first = next(batches)
        wait_until(lambda: draw.made == 4)
        assert first.number == 0
        time.sleep(0.01)
        assert draw.made == 4


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(("prefetch", "threads"), [(1, 1), (2, 1), (1, 4), (5, 3)])
def test_the_number_of_live_batches_is_bounded(prefetch: int, threads: int, reuse: bool) -> None:
    draw = Counting()
    with Loader(draw, prefetch=prefetch, threads=threads, reuse=reuse) as batches:
        for batch in itertools.islice(batches, 300):
            time.sleep(0.0001 * reuse)
            assert batch.rows[0] == batch.rows[-1] == batch.number  # valid until the next one
    assert draw.most_alive <= prefetch + threads + (not reuse)
    assert draw.made <= prefetch + threads if reuse else draw.made >= 300


def test_an_error_is_raised_after_the_batches_before_it_with_its_traceback() -> None:
    def draw(out: int | None) -> int:
        number = next(count)
        return number if number < 3 else deep_inside(number)

    def deep_inside(number: int) -> int:
        raise KeyError(f"batch {number}")

    count = itertools.count()
    batches = Loader(draw, prefetch=5)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="batch 3") as caught:
        next(batches)
    assert "deep_inside" in "".join(traceback.format_tb(caught.value.__traceback__))
    with pytest.raises(ValueError, match=r"\bloader\b.*\bclosed\b"):
        next(batches)
    assert next(count) == 4


def test_stop_iteration_in_a_function_is_an_error() -> None:
    def draw(out: int | None) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match=r"\bsource\b.*\bStopIteration\b"):
        next(Loader(draw))


def test_a_second_loop_over_an_exhausted_loader_is_an_error() -> None:
    batches = Loader([1, 2])
    assert list(batches) == [1, 2]
    assert next(batches, None) is None
    with pytest.raises(ValueError, match=r"\bloader\b.*\bexhausted\b"):
        list(batches)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_source_is_not_called_again_after_its_end(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Resumable(5)
    batches = Loader(source, threads=threads)
    deliver = batches._feed._deliver

    def deliver_late(number: int, outcome: Any) -> bool:
        time.sleep(0.005)  # another thread runs now
        return deliver(number, outcome)

    monkeypatch.setattr(batches._feed, "_deliver", deliver_late)
    assert list(batches) == [0, 1, 2, 3, 4]
    assert (source.next, source.stop) == (5, 6)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_state_is_that_after_the_last_batch_taken(threads: int) -> None:
    source = Resumable(50)
    with Loader(source, prefetch=5, threads=threads) as batches:
        assert batches.state_dict() == {"next": 0}
        for number in batches:
            assert batches.state_dict() == {"next": number + 1}
            if number == 9:
                wait_until(lambda: source.next > 12)
    assert batches.state_dict() == {"next": 50}


def test_state_dict_needs_an_iterable_with_a_state() -> None:
    with pytest.raises(ValueError, match=r"\bsource\b.*\bstate_dict\b"):
        Loader(Counting()).state_dict()


def test_no_thread_runs_before_the_first_batch_or_after_the_block() -> None:
    batches = Loader(Counting(), threads=2)
    assert loader_threads() == []
    with batches:
        assert len(loader_threads()) == 2
    assert loader_threads() == []
    batches.close()
    with pytest.raises(ValueError, match=r"\bloader\b.*\bclosed\b"):
        next(batches)


def take_one_and_close(draw: Counting) -> None:
    with Loader(draw, reuse=True) as batches:
        next(batches)


def take_one_and_drop(draw: Counting) -> None:
    for _ in Loader(draw, threads=2):
        break


def take_all(draw: Counting) -> None:
    list(Loader(draw(None) for _ in range(5)))


@pytest.mark.parametrize("use", [take_one_and_close, take_one_and_drop, take_all])
def test_a_source_and_its_batches_are_collected(use: Callable[[Counting], None]) -> None:
    draw = Counting()
    seen = weakref.ref(draw)
    use(draw)
    made, died = draw.made, draw.died
    del draw
    wait_until(lambda: not loader_threads())
    gc.collect()
    assert seen() is None
    assert made <= len(died) <= made + 3  # an unclosed loader drew a few more


def test_closing_waits_for_the_running_draw() -> None:
    begun, ended = threading.Event(), threading.Event()

    def draw(out: int | None) -> int:
        begun.set()
        time.sleep(0.05)
        ended.set()
        return 0

    with Loader(draw):
        assert begun.wait(SECONDS)
    assert ended.is_set()


@pytest.mark.proof
@pytest.mark.parametrize(
    "use",
    [
        "batches = Loader(draw, threads=3); next(batches)",
        "cycle = [Loader(draw)]; next(cycle[0]); cycle.append(cycle); del cycle",
        "learn = lambda: [next(batches) for _ in range(20)] and print('learned')\n"
        "batches = Loader(draw)\nthreading.Thread(target=learn).start()",
    ],
)
def test_a_program_with_an_open_loader_ends(use: str) -> None:
    program = f"""\
import atexit, sys, threading, time
from stepwell.buffers.sampling.loader import Loader
atexit.register(lambda: print("threads at the end:", threading.active_count()))
def draw(out):
    time.sleep(0.01)
    return 1
{use}
"""
    run = run_python("-c", program)
    assert run.stderr == ""
    learned = "learned\n" if "learned" in use else ""
    assert run.stdout == f"{learned}threads at the end: 1\n"


@pytest.mark.proof
def test_a_loader_refuses_to_work_in_a_forked_child() -> None:
    # In a process of its own: a fork of this one would inherit other tests' threads.
    program = """
    import os, sys, threading, time, warnings
    from stepwell.buffers.sampling.loader import Loader
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
    with Loader(lambda out: 1, threads=2) as batches:
        unused = Loader(lambda out: 2)
        next(batches)
        held = threading.Event()
        def hold():  # as the loader's own threads do now and then
            with batches._feed._changed:
                held.set()
                time.sleep(0.3)
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except RuntimeError as error:
                print(str(error).replace(str(os.getppid()), "A").replace(str(os.getpid()), "B"))
            print(next(unused))
            unused.close()
            batches.close()
            sys.exit(0)
        holder.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(batches), flush=True)
    """
    run = run_python("-c", textwrap.dedent(program))
    assert run.stderr == ""
    assert re.fullmatch(r".*\bprocess A\b.*\bprocess B\b.*\n2\n0 1\n", run.stdout)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Counting(), {"prefetch": 0}, r"^prefetch: .*>= 1.*\b0$"),
        (Counting(), {"threads": 0.5}, r"^threads: .*>= 1.*\b0\.5$"),
        (Counting(), {"to": "jax"}, "^to: .*'numpy'.*'torch'.*'jax'$"),
        (Counting(), {"device": "cuda"}, r"\bdevice\b.*to='torch'.*to='numpy'"),
        (Counting(), {"pin_memory": True}, r"\bpin_memory\b.*to='torch'.*to='numpy'"),
        ([1, 2], {"reuse": True}, r"^reuse=True: .*\bfunction\b.*\biterable\b"),
        (7, {}, r"^source: .*\bfunction\b.*\biterable\b.*\b7$"),
    ],
)
def test_invalid_arguments_are_refused(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(source, **options)
