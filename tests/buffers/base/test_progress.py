"""The displays of progress: a line in a terminal or a notebook, lines of text elsewhere."""

from __future__ import annotations

import io
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepwell.buffers.base import progress as module
from stepwell.buffers.base.progress import LiveLine, Part, Status, progress_function
from support.screen import Shown, in_terminal


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)


def nothing_known(*report: object) -> Status:
    return Status([])


class Work:
    """Steps of one second each, which report to a function."""

    def __init__(self, clock: Clock, steps: int) -> None:
        self.clock, self.steps, self.looks = clock, steps, 0

    def status(self, done: int) -> Status:
        self.looks += 1
        return Status([Part(f"{done} <steps>")], done / self.steps, float(done))

    def run(self, stop: int | None = None) -> None:
        with progress_function(True, self.status) as report:
            assert report is not None
            for done in range(1, self.steps + 1):
                self.clock.now += 1
                report(done)
                if done == stop:
                    raise KeyboardInterrupt


def in_notebook(monkeypatch: pytest.MonkeyPatch, *, has_widgets: bool) -> None:
    """A stand-in for IPython in a notebook, with the widgets that rich draws in or without."""
    ipython = ModuleType("IPython")
    vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    found = ModuleSpec("ipywidgets", None) if has_widgets else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("place", ["a file", "a notebook", "dumb", "unknown"])
def test_where_nothing_can_be_drawn_a_line_is_written_every_30_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = Terminal() if place in ("dumb", "unknown") else io.StringIO()
    if place == "a notebook":
        in_notebook(monkeypatch, has_widgets=False)
    monkeypatch.setenv("TERM", place)
    monkeypatch.setattr(sys, "stderr", file)
    work = Work(clock, 100)
    work.run()
    Work(clock, 29).run()
    assert file.getvalue().splitlines() == [
        "stepwell: 30%  30 <steps>  1:10 left",
        "stepwell: 60%  60 <steps>  0:40 left",
        "stepwell: 90%  90 <steps>  0:10 left",
    ]
    assert work.looks == 3


def test_a_program_without_standard_error_works_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Work(clock, 100).run()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    Work(clock, 100).run()


def test_a_terminal_that_is_gone_does_not_end_the_work(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise OSError(5, "Input/output error")

    gone = Gone()
    monkeypatch.setattr(sys, "stderr", gone)
    Work(clock, 300).run()
    assert gone.writes == 1


@pytest.mark.parametrize("writes", [0, 1, 5, 20])
def test_a_terminal_that_goes_away_leaves_the_streams_as_they_were(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    class Going(Terminal):
        left = writes

        def write(self, text: str) -> int:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")
            return super().write(text)

    files = Going(), Going()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", files[0])
    monkeypatch.setattr(sys, "stderr", files[1])
    work = Work(clock, 100)
    work.run()
    assert (sys.stdout, sys.stderr) == files
    assert files[1].left < 0
    assert work.looks < 100  # nothing is tried again


# The argument.


@pytest.mark.parametrize("wrong", [3, 1, "yes", [print]])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with (
        pytest.raises(TypeError, match=rf"^progress: .*True.*got {re.escape(repr(wrong))}"),
        progress_function(wrong, nothing_known),
    ):
        pass


class Reports(list[int]):
    """A function that looks like nothing."""

    def __call__(self, report: int) -> None:
        self.append(report)


@pytest.mark.parametrize(
    ("given", "called"), [(None, None), (False, None), (print, print), (made := Reports(), made)]
)
def test_what_is_given_is_called_itself(given: Any, called: Any) -> None:
    with progress_function(given, nothing_known) as report:
        assert report is called


# Notebooks.


def test_a_notebook_with_widgets_is_drawn_in_by_rich(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_notebook(monkeypatch, has_widgets=True)
    drawn: list[str] = []
    monkeypatch.setattr(
        module._Line, "show", lambda line, status: drawn.append(status.line()[0].text)
    )
    Work(clock, 20).run()
    assert drawn[-1] == "100%"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("seconds", [0.9, 1.1])
def test_short_work_shows_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    drawn: list[Status] = []
    monkeypatch.setattr(module, "_place", module._Line)
    monkeypatch.setattr(module._Line, "show", lambda line, status: drawn.append(status))
    with progress_function(True, lambda: Status([Part("1 step")])) as report:
        assert report is not None
        clock.now += seconds
        report()
    assert bool(drawn) == (seconds > 1)


def test_a_slow_display_is_drawn_less_often(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[float] = []

    class Slow(module._TextLines):
        interval = delay = 0.0

        def show(self, status: Status) -> None:
            draws.append(clock.now)
            clock.now += 0.1

    monkeypatch.setattr(module, "_place", Slow)
    began = clock.now
    with LiveLine() as line:
        while clock.now < began + 1_000:
            clock.now += 0.01
            line.show(lambda: Status([]))
    assert 0.1 * len(draws) <= 0.01 * 1_000
    assert len(draws) > 10


def test_a_handler_that_interrupts_a_drawing_does_not_wait_for_it(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveLine() as line:
        clock.now += 31

        def status() -> Status:
            line.show(lambda: Status([Part("inner")]))  # as a signal handler would
            return Status([Part("outer")])

        line.show(status)
    assert capsys.readouterr().err == "stepwell: outer\n"


# Terminals.

BEGIN = """
import os, signal, sys, threading
import numpy as np
import stepwell as sw
from stepwell.buffers.base import progress
progress._DELAY = 0
progress._TIMES_THE_COST = 0
progress._Line.interval = 0
from stepwell.collectors.loop import collector as _collector
_collector._PROGRESS_SECONDS = _collector._TIMES_THE_COST = 0
def collector(**more):
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    return sw.Collector(envs, sw.RandomPolicy(), seed=0, **more)
print("before")
"""
COLLECT = """
with collector() as made:
    made.collect(steps=400, progress=True)
print("after" if (sys.stdout, sys.stderr) == (sys.__stdout__, sys.__stderr__) else "not put back")
"""
RAISES = """
def policy(observation, is_first):
    policy.calls += 1
    if policy.calls == 50: STOP
    return np.zeros(len(is_first), np.int64)
policy.calls = 0
envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
try:
    with sw.Collector(envs, policy) as made:
        made.collect(steps=400, progress=True)
except BaseException as error:
    print(type(error).__name__)
"""
NESTED = """
def on_episode(report):
    if report.episode % 5 == 0:
        print("episode", report.episode)
        sw.evaluate("CartPole-v1", sw.RandomPolicy(), episodes=2, num_envs=1, progress=True)
        print("unfinished [/b]", end="")
        sys.stderr.write(" of %d\\n" % report.episode)
        print()
with collector(on_episode=on_episode) as made:
    made.collect(episodes=12, progress=True)
print("after")
"""


def check_clean(shown: Shown, lines: list[str], *, is_shown: bool = True) -> None:
    """The line was there, and nothing of it is left."""
    assert (shown.code, shown.screen.has_cursor) == (0, True), shown.raw
    assert shown.screen.text == lines
    assert (shown.screen.row, shown.screen.column) == (len(lines), 0)
    seen = any(
        re.search(r"\d+ / \d+ (steps|episodes)", "".join(one)) for one in shown.screen.frames
    )
    assert seen == is_shown


@pytest.mark.proof
@pytest.mark.parametrize("columns", [30, 100])
def test_in_a_terminal_the_line_goes_away_again(columns: int) -> None:
    shown = in_terminal(BEGIN + COLLECT, columns=columns)
    check_clean(shown, ["before", "after"])
    assert max(len(line) for frame in shown.screen.frames for line in frame) < columns
    assert "\x1b[?25l" in shown.raw


FORK = """
with progress.LiveLine() as line:
    line.show(lambda: progress.Status([progress.Part("5 / 9 steps")]))
    held, done = threading.Event(), threading.Event()
    def hold():
        with progress._DISPLAY.lock:
            held.set()
            done.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(5)
        print("child")
        os._exit(0)
    code = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
print("after", code)
"""


STOPS = {
    **{name: f"raise {name}(3)" for name in ("KeyError", "KeyboardInterrupt", "SystemExit")},
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)",
}


@pytest.mark.proof
@pytest.mark.parametrize("name", STOPS)
def test_an_error_leaves_a_clean_terminal(name: str) -> None:
    shown = in_terminal(BEGIN + RAISES.replace("STOP", STOPS[name]))
    check_clean(shown, ["before", name.replace("Ctrl-C", "KeyboardInterrupt")])


@pytest.mark.proof
def test_nested_displays_and_prints_do_not_garble_each_other() -> None:
    shown = in_terminal(BEGIN + NESTED)
    lines = [line for n in (0, 5, 10) for line in (f"episode {n}", f" of {n}", "unfinished [/b]")]
    # A line that is begun on one stream appears when it ends.
    assert sorted(shown.screen.text) == sorted(["before", *lines, "after"])
    check_clean(shown, shown.screen.text)
    both = [[line for line in frame if " / " in line] for frame in shown.screen.frames]
    assert any("/ 12 ep" in one[0] and "/ 2 ep" in one[1] for one in both if one[1:])


@pytest.mark.proof
def test_a_forked_process_can_print() -> None:
    shown = in_terminal("import warnings; warnings.simplefilter('ignore')\n" + BEGIN + FORK)
    assert shown.screen.text[-1] == "after 0"
    assert "child" in "".join(shown.screen.text)


@pytest.mark.proof
def test_a_redirected_output_is_left_alone() -> None:
    shown = in_terminal(BEGIN + NESTED, is_output_piped=True)
    assert shown.screen.text == [" of 0", " of 5", " of 10"]
    assert shown.output.splitlines()[:2] == ["before", "episode 0"]
    assert shown.output.count("unfinished [/b]\n") == 3


@pytest.mark.proof
def test_in_a_terminal_short_work_shows_nothing_and_loads_nothing() -> None:
    begin = BEGIN.replace("progress._DELAY = 0", "")
    end = "print('rich' in sys.modules)"
    shown = in_terminal(begin + COLLECT + end)
    check_clean(shown, ["before", "after", "False"], is_shown=False)
    assert "\x1b" not in shown.raw
