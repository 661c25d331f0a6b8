"""Fixtures of every test: deterministic, in its own folder, leaving no process behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from support.tiers import LEFT_OUT, REASONS, left_out, passed

# Few examples of each property by default, so that a newcomer soon sees green.
for name, number in (("default", 10), ("proofs", 40)):
    hypothesis.settings.register_profile(
        name, derandomize=True, deadline=None, max_examples=number, database=None, print_blob=True
    )
hypothesis.settings.register_profile("full", deadline=None, max_examples=400, print_blob=True)
# For bugs that are planted: to see that there is one, its shortest example is not needed.
hypothesis.settings.register_profile(
    "planted",
    hypothesis.settings.get_profile("default"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)

# Tests run side by side: threads of PyTorch that share a core with another test's wait by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Helpers of the standard library that live as long as the interpreter.
SERVICE_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
GRACE_SECONDS = 20.0  # on a busy machine; nothing waits for so long when all is well


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--proofs",
        action="store_true",
        help="also run the long proofs, and four times as many examples of each property",
    )
    parser.addoption("--full", action="store_true", help="run everything, with many examples")
    parser.addoption(
        "--except-passed",
        type=lambda text: Path(text).resolve(),
        metavar="FILE",
        help="leave out what has passed in an earlier run, which wrote FILE by --junit-xml",
    )
    parser.addoption(
        "--pictures",
        type=lambda text: Path(text).resolve(),  # here: each test has a working folder of its own
        metavar="DIR",
        help="keep the pictures that tests take of pages",
    )


def tier(config: pytest.Config) -> str:
    """Name of the run: ``default``, ``proofs`` or ``full``."""
    return next((name for name in ("full", "proofs") if config.getoption(f"--{name}")), "default")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CHILDREN] = {}
    # One test says that ale-py is another one than the tested; the others need not fail with it.
    config.addinivalue_line("filterwarnings", "ignore:ale-py:UserWarning")
    multiprocessing.get_start_method()  # settles it: else TorchRL makes it "spawn" for all tests
    # Ignored where the tests run in the background of a shell; then the children would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    if not config.getoption("--hypothesis-profile"):
        hypothesis.settings.load_profile(tier(config))


def module(path: Path) -> str:
    return path.with_suffix("").as_posix().replace("/", ".")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)  # the same in all workers
    if file := config.getoption("--except-passed"):
        before = passed(file)
        chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            path, *_, name = item.nodeid.split("::", 1)
            is_new = (module(Path(path)), name) not in before
            chosen[is_new].append(item)
        items[:] = chosen[True]
        config.hook.pytest_deselected(items=chosen[False])
    for item in items:
        for name in LEFT_OUT[tier(config)]:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=REASONS[name]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and how to run it."""
    told = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    for line in left_out([one[2] for one in told if isinstance(one, tuple | list)]):
        terminalreporter.write_line(line)


def pytest_collection_finish() -> None:
    # The libraries and all tests are some 800,000 objects: a walk over them takes half a second.
    # What tests make is collected as ever; what is there already is passed over.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_working_folder(  # pyright: ignore[reportUnusedFunction]
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a test writes to a relative path lands in its own temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))  # and not in the user's own


# Child processes: {pid: test after which it was first seen}. They must be gone by the end of the
# module, not of the test, because a module-wide fixture may own an env with workers.
CHILDREN = pytest.StashKey[dict[int, str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    yield
    seen = item.config.stash[CHILDREN]
    for pid in child_processes() - seen.keys():
        seen[pid] = item.nodeid
    if nextitem is None or nextitem.path != item.path:
        left = {pid: seen[pid] for pid in after_grace(child_processes()) if pid in seen}
        seen.clear()
        if left:
            lines = [f"pid {pid} ({command(pid)}), left by {test}" for pid, test in left.items()]
            pytest.fail("child processes still run: " + "; ".join(lines), pytrace=False)


def after_grace(pids: set[int]) -> set[int]:
    """Those of the processes that are still there after a moment in which they may end."""
    if pids:
        gc.collect()  # a caught error refers to its frames, and these to a loader with workers
    deadline = time.monotonic() + GRACE_SECONDS
    while pids and time.monotonic() < deadline:
        time.sleep(0.05)
        pids &= child_processes()
    return pids


def child_processes() -> set[int]:
    """Living child processes, less the standard library's own; empty where /proc is missing."""
    multiprocessing.active_children()  # reaps those that have ended
    own = {
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in read(task).split()
    }
    return {pid for pid in own if not is_service(command(pid))}


def is_service(command_line: str) -> bool:
    return not command_line or any(name in command_line for name in SERVICE_PROCESSES)


def command(pid: int) -> str:
    """The command line of a process; empty for a zombie or a process that is gone."""
    return read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
