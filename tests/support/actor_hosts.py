"""Objects that live in actors, for tests of engines; and what is left of processes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np


class Host:
    """Does what a test asks for.

    Args:
        memory: Bytes that the process may use beyond what it uses at first.
    """

    def __init__(self, memory: int | None = None) -> None:
        self.total = 0
        if memory is not None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def pids(self) -> tuple[int, ...]:
        """Ids of the keeper, of this process and of a child of it."""
        child = subprocess.Popen(["sleep", "1000"])
        return os.getppid(), os.getpid(), child.pid

    def arrays(self, size: int) -> tuple[int, dict[str, np.ndarray]]:
        return size, {"a": np.arange(size), "b": np.arange(3, dtype=np.int8)}

    def sum(self, values: np.ndarray) -> float:
        return float(values.sum())

    def say(self, text: str) -> None:
        print(f"out {text}")
        print(f"err {text}", file=sys.stderr)

    def sockets(self) -> set[str]:
        """Sockets that the keeper and this process have open."""
        found = set[str]()
        for pid in (os.getppid(), os.getpid()):
            found |= sockets_of(pid)
        return found

    def lambda_(self) -> object:
        return lambda: 0

    def fail(self) -> None:
        raise ValueError("no such door")

    def leave(self) -> None:
        raise SystemExit(3)

    def exit(self, code: int) -> None:
        os._exit(code)

    def signal(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def allocate(self, size: int) -> int:
        return len(bytearray(size))

    def sleep(self) -> None:
        time.sleep(1000)

    def sleep_in_c(self) -> None:
        """Sleep with Python's lock held: no thread of this process runs."""
        ctypes.PyDLL(None).sleep(1000)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def failing_make() -> Host:
    raise KeyError("no such world")


def sockets_of(pid: int | str) -> set[str]:
    """Names of the sockets that a process has open."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink())
    return {link for link in links if link.startswith("socket:")}


def is_running(pid: int) -> bool:
    """True for a process that is neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_of(pids: Iterable[int], seconds: float = 10.0) -> list[int]:
    """Those of the processes that still run after so many seconds."""
    deadline = time.monotonic() + seconds
    left = list(pids)
    while (left := [pid for pid in left if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, directly or not, and that run."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2]
        except OSError:
            continue
        parents[int(path.parent.name)] = int(rest.split()[1])
    found, rest_ = list[int](), [pid]
    while rest_:
        parent = rest_.pop()
        children = [one for one, its in parents.items() if its == parent]
        found += children
        rest_ += children
    return [one for one in found if is_running(one) and not is_tracker(one)]


def is_tracker(pid: int) -> bool:
    """True for the standard library's helper, which lives as long as the interpreter."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
