"""Keeps rows whole: one thread writes at a time, and Ctrl-C waits until the row is written."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["RowGuard", "is_default_handler"]


class RowGuard:
    """Holds a lock while rows are written, and delays Ctrl-C in the main thread meanwhile.

    From `install` to `remove` a handler of Ctrl-C is in place that acts as Python's own does, but
    for the time in which rows are written. So a row costs no system call. Without it, with another
    handler of the program, or outside of the main thread, only the lock is held.

    Example:
        >>> guard = RowGuard()
        >>> guard.install()
        >>> with guard:
        ...     pass  # a KeyboardInterrupt is raised behind this
        >>> guard.remove()
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_installed = False

    def install(self) -> None:
        """Put the handler in place, once for all guards."""
        main = threading.main_thread()
        if self._is_installed or threading.current_thread() is not main:
            return
        if not is_default_handler(signal.getsignal(signal.SIGINT)):
            return  # the program has its own one
        if _state.guards == 0:
            _state.main, _state.depth, _state.is_pending = main.ident, 0, False
            signal.signal(signal.SIGINT, _hold)
        _state.guards += 1
        self._is_installed = True

    def remove(self) -> None:
        """Restore Python's handler when no guard needs the other one."""
        if not self._is_installed:
            return
        self._is_installed = False
        _state.guards -= 1
        if (
            _state.guards == 0
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is _hold
        ):
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> None:
        if threading.get_ident() == _state.main:
            _state.depth += 1  # first: from here on nothing interrupts
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
        if threading.get_ident() != _state.main:
            return
        _state.depth -= 1
        if _state.is_pending and _state.depth == 0:
            _state.is_pending = False
            if kind is None:  # an error is not replaced
                raise KeyboardInterrupt


class _State:
    """State of the handler, of which a process has one.

    Attributes:
        main: The main thread, known once the handler is installed.
        guards: Guards that need the handler.
        depth: Guards that the main thread is in.
        is_pending: A Ctrl-C came meanwhile.
    """

    def __init__(self) -> None:
        self.main: int | None = None
        self.guards = 0
        self.depth = 0
        self.is_pending = False


_state = _State()


def is_default_handler(handler: object) -> bool:
    """True for Python's own handler of Ctrl-C, and for the one that a `RowGuard` installs."""
    return handler is signal.default_int_handler or handler is _hold


def _hold(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: raise at once, unless a row is being written; a second one raises then."""
    if _state.depth and not _state.is_pending:
        _state.is_pending = True
        return
    _state.is_pending = False
    raise KeyboardInterrupt
