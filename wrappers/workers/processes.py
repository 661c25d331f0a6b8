"""The common side of processes, of envs and of actors: how they begin, obey, and end."""

import contextlib
import importlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, cast

CLOSE_SECONDS = 5.0  # that processes have to end by themselves
PROCESS_NAME = "stepwell-worker-"
NO_MAIN_GUARD = 97  # exit code of a worker that ran the top level of the script again
# One thread for each library, since the processes use all cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def available_cores() -> int:
    """Return the number of cores available to this process, by affinity and container quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no such file, or no limit ("max")
    return max(1, cores)


def checked_start_method(context: str | None) -> str:
    """Return the start method; the default is fork on Linux, else spawn."""
    if context is None:
        return "fork" if sys.platform == "linux" else "spawn"
    methods = multiprocessing.get_all_start_methods()
    if context not in methods:
        raise ValueError(f"context is unknown: expected one of {methods}, got {context!r}")
    return context


def is_daemon() -> bool:
    """Return True in a daemonic process, which cannot start processes."""
    return multiprocessing.current_process().daemon


def has_open_window() -> bool:
    """Return True if pyglet has a window here: a fork would talk over its connection to X."""
    # MiniWorld's and other windows.
    return getattr(sys.modules.get("pyglet.gl"), "current_context", None) is not None


def check_can_start(start_method: str) -> None:
    """Raise where no process may start: in a daemonic one, or one that runs the script again."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name.startswith(PROCESS_NAME):
            # The parent raises the error; a fork server would swallow SystemExit.
            os._exit(NO_MAIN_GUARD)
        raise RuntimeError(no_main_guard(start_method))
    if is_daemon():
        raise RuntimeError(
            f"worker processes cannot be started: expected a process that may have children, got "
            f"the daemonic process {process.name!r}; use num_workers=0, or start it with "
            f"daemon=False"
        )


def no_main_guard(start_method: str) -> str:
    """Return the error message for a script that starts itself again in each worker."""
    return (
        f"the script started itself again in a worker process: expected its top level to be under "
        f'`if __name__ == "__main__":`, which start method {start_method!r} needs, got a call at '
        f"top level; add that line, or use context='fork'"
    )


def cloudpickle_dumps() -> Callable[[object], bytes]:
    """The function that pickles lambdas and the like, too; gymnasium depends on its library."""
    return cast("Callable[[object], bytes]", importlib.import_module("cloudpickle").dumps)


def start(process: BaseProcess, start_method: str, *, needs_main: bool) -> None:
    """Start a process; one that does not need the script does not run it again."""
    with warnings.catch_warnings():
        # Python 3.12 warns about any fork in a process with threads, NumPy's idle ones too; so
        # does JAX once it runs, but envs that compute with it are not forked.
        warnings.filterwarnings("ignore", ".*fork.*")
        try:
            with contextlib.nullcontext() if needs_main else _without_main():
                process.start()
        except (EOFError, ConnectionError):  # the fork server failed on the script
            raise RuntimeError(no_main_guard(start_method)) from None


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the script again, so that it needs no main guard."""
    spawn: Any = multiprocessing.spawn
    prepare = spawn.get_preparation_data

    def prepare_without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    spawn.get_preparation_data = prepare_without_main
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare


def leave_signals_to_parent() -> None:
    """Go on after Ctrl-C, SIGTERM and SIGHUP: terminals and job schedulers send them to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # By a handler, and not for forked processes: what an env starts ends when the env tells it to.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_restore_in_child)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _restore_in_child() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)


def limit_threads() -> None:
    """Limit loaded libraries to one thread, since the processes use all cores."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and cv2.getNumThreads() > 1:
        # 0 (not 1): run sequentially, without waiting for threads that are missing after a fork.
        cv2.setNumThreads(0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def exit_in_words(code: int | None) -> str:
    """Describe the exit code of a process, which is below 0 after a signal."""
    if code is None or code >= 0:
        return f"exit code {code}"
    names = {one.value: f", {one.name}" for one in signal.Signals}
    return f"signal {-code}{names.get(-code, '')}"


def ends_with(owner: object, end: Callable[[float], None]) -> "weakref.finalize[..., object]":
    """Return what calls `end` with a deadline (time.monotonic), once: if called, or at the end."""
    return weakref.finalize(owner, _end, os.getpid(), end)


def _end(process: int, end: Callable[[float], None]) -> None:
    if os.getpid() == process:  # else a forked child, which has a copy of the owner
        end(time.monotonic() + CLOSE_SECONDS)
