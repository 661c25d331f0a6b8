"""Ctrl-C is held back until it suits."""

from __future__ import annotations

import signal

import pytest

from stepwell.buffers.base.row_guard import InterruptGuard


def test_a_first_ctrl_c_waits_for_the_check() -> None:
    with InterruptGuard() as guard:
        guard.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            guard.check()
        guard.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_acts_at_once() -> None:
    held: list[bool] = []
    with pytest.raises(KeyboardInterrupt), InterruptGuard():  # noqa: PT012  # the order matters
        signal.raise_signal(signal.SIGINT)
        held.append(True)
        signal.raise_signal(signal.SIGINT)
        held.append(True)
    assert held == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_without_a_check_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), InterruptGuard():
        signal.raise_signal(signal.SIGINT)


def test_an_error_is_not_replaced_by_it() -> None:
    with pytest.raises(ZeroDivisionError), InterruptGuard():  # noqa: PT012  # the order matters
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_other_code_stays_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with InterruptGuard() as guard:
            signal.raise_signal(signal.SIGINT)
            guard.check()
        assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
