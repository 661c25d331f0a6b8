"""The command line: `stepwell collect`, `info`, `envs`, `merge`, `filter`, `drop`, `copy`, ..."""

from __future__ import annotations

import os
import signal
import sys

from stepwell.collectors.cli.early_interrupt import leave_at_once

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process; see `stepwell.collectors.cli.app.main`."""
    # Python's own handler raises inside the modules that are being loaded; some of them turn that
    # into another error, or print it. A process that ignores Ctrl-C, as under nohup, still does.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)
    if "_STEPWELL_COMPLETE" in os.environ:
        # Imported here: no other run needs it.
        from stepwell.collectors.cli.completion import answer

        answered = answer(os.environ)
        if answered is not None:
            sys.stdout.buffer.write(os.fsencode(answered[0]))
            return answered[1]
    from stepwell.collectors.cli.app import main

    return main()
