"""Ctrl-C, SIGTERM and SIGHUP before a command has begun.

In a file of its own, without heavy imports: it is in place before the rest is loaded, which takes
most of the first second.
"""

from __future__ import annotations

import os
from types import FrameType


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Handle a signal while nothing has been done yet that needs cleaning up: exit."""
    os.write(2, b"stepwell: interrupted; nothing kept\n")
    os._exit(128 + number)
