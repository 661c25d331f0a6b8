"""Keeps rows whole: one thread writes at a time, and Ctrl-C waits until the row is written.

SIGTERM and SIGHUP, which job schedulers and closed terminals send, are handled as Ctrl-C is: Python
itself would end at once, without closing anything. They raise `KeyboardInterrupt` with their name.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_Handler = Callable[[int, FrameType | None], None]

_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class RowGuard:
    """Holds a lock while rows are written, and delays Ctrl-C in the main thread meanwhile."""

    # From `install` to `remove` a handler is in place that acts as Python's own of Ctrl-C does, but
    # for the time in which rows are written. So a row costs no system call. Without it, with
    # another handler of the program, or outside of the main thread, only the lock is held.

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_installed = False

    def install(self) -> None:
        """Put the handler in place, once for all guards."""
        main = threading.main_thread()
        if self._is_installed or threading.current_thread() is not main:
            return
        if _state.guards == 0:
            _state.main, _state.depth, _state.pending = main.ident, 0, None
            _state.before = replace_handlers(_hold)
        _state.guards += 1
        self._is_installed = True

    def remove(self) -> None:
        """Restore the handlers when no guard needs the other one."""
        if not self._is_installed:
            return
        self._is_installed = False
        _state.guards -= 1
        if _state.guards == 0 and threading.current_thread() is threading.main_thread():
            for number, handler in _state.before.items():
                if signal.getsignal(number) is _hold:
                    signal.signal(number, handler)

    def __enter__(self) -> None:
        if threading.get_ident() == _state.main:
            _state.depth += 1  # first: from here on nothing interrupts
        self._lock.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.release()
        if threading.get_ident() != _state.main:
            return
        _state.depth -= 1
        if _state.pending is not None and _state.depth == 0:
            number, _state.pending = _state.pending, None
            if kind is None:  # an error is not replaced
                interrupt(number, None)


class _State:
    """State of the handler, of which a process has one."""

    def __init__(self) -> None:
        self.main: int | None = None  # the main thread, known once the handler is installed
        self.guards = 0  # that need the handler
        self.depth = 0  # guards that the main thread is in
        self.pending: int | None = None  # a signal that came meanwhile
        self.before: dict[int, Any] = {}  # the handlers before, by the number of their signal
        self.newest: _Handler = interrupt  # the newest handler that took the place of another


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal as Python handles Ctrl-C; the error of another one has its name."""
    raise KeyboardInterrupt(*[] if number == signal.SIGINT else [signal.Signals(number).name])


_state = _State()


def replace_handlers(handler: _Handler) -> dict[int, Any]:
    """Handle Ctrl-C, SIGTERM and SIGHUP where the program does not; the handlers before."""
    _state.newest = handler
    before: dict[int, Any] = {}
    for number, python in _DEFAULTS.items():
        was = signal.getsignal(number)
        if was in (python, interrupt, _hold):
            before[number] = was
            signal.signal(number, handler)
    return before


def _hold(number: int, frame: FrameType | None) -> None:
    """Interrupt at once, unless a row is being written; a second signal interrupts then, too."""
    if _state.depth and _state.pending is None:
        _state.pending = number
        return
    _state.pending = None
    interrupt(number, frame)


def _before_fork() -> None:
    """Let signals wait: one that came while a child still has these handlers would be lost."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    """Let a forked process end when it is told to, as multiprocessing tells its own."""
    for number, python in _DEFAULTS.items():
        if signal.getsignal(number) in (_state.newest, interrupt, _hold):
            signal.signal(number, python)
    _after_fork()


_forking = threading.local()
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)


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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
