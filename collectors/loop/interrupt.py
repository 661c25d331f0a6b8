"""Delays Ctrl-C until a step is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from ...buffers.base.row_guard import interrupt, replace_handlers


class InterruptGuard:
    """Delays a first Ctrl-C until `check` is called, so that no row is torn; a second raises."""

    # Work after the second one, such as storing whole rows, is guarded in the same way. SIGTERM and
    # SIGHUP are handled as Ctrl-C is. Outside of the main thread, where Python delivers no signals,
    # the guard does nothing.

    def __init__(self) -> None:
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise the delayed KeyboardInterrupt, if there is one."""
        if self._pending is not None:
            number, self._pending = self._pending, None
            interrupt(number, None)

    def finish(self) -> None:
        """Drop a delayed Ctrl-C: the work is done, so it comes too late."""
        self._pending = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = replace_handlers(self._hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if kind is None:
            self.check()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        is_second = self._pending is not None
        self._pending = None if is_second else number
        if is_second:
            interrupt(number, frame)
