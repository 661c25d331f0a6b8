"""The command line: `stepwell collect`, `info`, `envs`, `merge`, `filter`, `copy`, ..."""

from __future__ import annotations

import signal

from .early_interrupt import leave_at_once

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process; see `stepwell.collectors.cli.app.main`."""
    # Python's own handler raises inside the modules that are being loaded; some of them turn that
    # into another error, or print it. A process that ignores a signal, as under nohup, still does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        python = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) == python:
            signal.signal(number, leave_at_once)
    from .app import main

    return main()
