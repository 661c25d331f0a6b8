"""Envs that are slow or do harm, for groups in other processes, which are killed."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import stepwell as sw
from stepwell.collectors.loop.vector_envs import Vector
from support.actor_hosts import descendants
from support.groups import Walk

NUM_ENVS = 4


class FaultyWalk(Walk):
    """A walk that takes its time; in its twentieth step it does something else, once.

    Args:
        seconds: Time that a step takes.
        fault: The name of what it does.
        flag: A file, which it makes before that; where it is there, nothing happens.
    """

    def __init__(self, seconds: float, fault: str = "none", flag: Path = Path()) -> None:
        super().__init__()
        self._seconds, self._fault, self._flag = seconds, fault, flag
        self._taken = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._taken += 1
        if self._taken == 20 and not self._flag.exists():
            self._flag.touch()
            FAULTS[self._fault]()
        return super().step(action)


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(1000),
    "hang in C": lambda: ctypes.PyDLL(None).sleep(1000),
}


def slow_walks(seconds: float = 0.0, num_workers: int = 0) -> Vector:
    return sw.make_vec(partial(FaultyWalk, seconds), NUM_ENVS, num_workers=num_workers)


def faulty_walks(fault: str, flag: Path) -> Vector:
    return sw.make_vec(partial(FaultyWalk, 0.0, fault, flag), NUM_ENVS, num_workers=0)


@contextmanager
def killing(seed: int, within: float, count: int = 1) -> Generator[list[int]]:
    """Kill processes of actors at random times, in a thread; yields the list of the killed.

    Args:
        seed: Of the times and victims.
        within: Seconds from now on in which they are killed.
        count: Number of kills.
    """
    draws = random.Random(seed)
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        for moment in sorted(draws.uniform(0, within) for _ in range(count)):
            if is_over.wait(max(0.0, began + moment - time.monotonic())):
                return
            victims = descendants(os.getpid())
            if victims:
                victim = draws.choice(victims)
                killed.append(victim)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    killed.pop()

    began = time.monotonic()
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()
