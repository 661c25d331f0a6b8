"""Ctrl-C between two steps instead of within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """Holds a first Ctrl-C back until `check` is called, so that no row is torn; a second one acts.

    What is done after that one, such as storing what is whole, is guarded in the same way.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if there was one."""
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def finish(self) -> None:
        """All is done: a Ctrl-C that is still held back comes too late to change anything."""
        self._came = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if before is signal.default_int_handler:  # else somebody has plans of their own
                self._before = before
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
        if kind is None:
            self.check()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came = not self._came
        if not self._came:
            raise KeyboardInterrupt
