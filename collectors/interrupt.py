"""Ctrl-C between two steps instead of within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """Holds a first Ctrl-C back until `check` is called, so that no row is torn; a second one acts.

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
        if self._came:
            raise KeyboardInterrupt
        self._came = True
