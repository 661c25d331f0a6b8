"""Envs that are slow or do harm, for groups in other processes, which are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import stepwell as sw
from stepwell.collectors.loop.vector_envs import Vector
from support.actor_hosts import descendants
from support.groups import Walk

NUM_ENVS = 4


class SlowWalk(Walk):
    """A walk that takes its time.

    Args:
        seconds: Time that a step takes.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)


def slow_walks(seconds: float = 0.0, num_workers: int = 0) -> Vector:
    return sw.make_vec(partial(SlowWalk, seconds), NUM_ENVS, num_workers=num_workers)


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
