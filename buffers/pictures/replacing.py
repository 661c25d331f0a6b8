"""Files that replace others when they are complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A new file in the target's folder, which replaces the target if the block succeeds."""
    # Else it is removed, and the target is as it was. No other file is touched.
    # A name of its own: a file of the user's may be called strip.png.part.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.open("xb").close()
    except OSError as error:  # the user knows only the target
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
