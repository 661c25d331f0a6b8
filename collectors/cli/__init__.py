"""The command line: `stepwell collect`, `info`, `envs`, `merge`, `filter`, `drop`, `copy`, ...

Only `main` is here, so that Ctrl-C is answered before the rest is loaded, which takes most of the
first second.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["leave_at_once", "main"]


def main() -> int:
    """Run the command line of this process; see `stepwell.collectors.cli.app.main`."""
    # Python's own handler raises inside the modules that are being loaded, some of which make
    # another error of it, or print it. Who ignores Ctrl-C, as nohup does, goes on ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)
    from stepwell.collectors.cli.app import main

    return main()


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Answer Ctrl-C before a command has begun, when there is nothing to put away."""
    os.write(2, b"stepwell: interrupted; nothing kept\n")
    os._exit(128 + number)
