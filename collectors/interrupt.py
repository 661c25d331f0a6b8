"""Delays Ctrl-C until a step is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from stepwell.buffers.row_guard import is_default_handler

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """Delays a first Ctrl-C until `check` is called, so that no row is torn; a second one raises.

    Work after the second one, such as storing whole rows, is guarded in the same way. Outside of
    the main thread, where Python delivers no signals, the guard does nothing.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._before: Any = None

    def check(self) -> None:
        """Raise the delayed KeyboardInterrupt, if there is one."""
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def finish(self) -> None:
        """Drop a delayed Ctrl-C: the work is done, so it comes too late."""
        self._is_pending = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if is_default_handler(before):  # else the program has its own handler
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
        self._is_pending = not self._is_pending
        if not self._is_pending:
            raise KeyboardInterrupt
