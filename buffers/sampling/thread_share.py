"""Splits the work on a large batch over threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["ThreadShare"]


# A batch smaller than this is copied before another thread has woken up.
_WORTHWHILE_BYTES = 1 << 20
_MOST_BY_DEFAULT = 4


class ThreadShare:
    """Runs work on ranges of a batch, in this thread and in others.

    Copying and decompressing let other threads run, so large batches gain by it. Nothing runs
    between two calls.

    Args:
        threads: Threads to use, this one included; 1 starts none; None takes the cores that this
            process may use, at most four.

    Raises:
        ValueError: Fewer than one thread is asked for.
    """

    def __init__(self, threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected a whole number >= 1 or None, got {threads}")
        self._threads = min(_MOST_BY_DEFAULT, _cores()) if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, work: Callable[[range], None], count: int, nbytes: int) -> None:
        """Call ``work`` with ranges that make up ``range(count)``; returns when all are done.

        Args:
            work: Called once a thread; what it raises is raised here.
            count: Length of the whole.
            nbytes: Bytes that the whole amounts to: little work is not split.
        """
        parts = min(self._threads, count)
        if parts < 2 or nbytes < _WORTHWHILE_BYTES:
            work(range(count))
            return
        from concurrent.futures import wait  # loads in milliseconds, which few callers need

        borders = [count * part // parts for part in range(parts + 1)]
        ranges = [range(low, high) for low, high in pairwise(borders)]
        others = [self._executor().submit(work, part) for part in ranges[1:]]
        try:
            work(ranges[0])
        finally:
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads; a later `run` starts them again."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _executor(self) -> ThreadPoolExecutor:
        # A forked child inherits the pool but not its threads.
        if self._pool is None or self._process != os.getpid():
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads - 1, "stepwell-batch")
            self._process = os.getpid()
        return self._pool


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
