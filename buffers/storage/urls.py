"""URLs of stores on the Hub or an object store, told from the paths of folders."""

from __future__ import annotations

import os
import re

__all__ = ["url_of"]

_SCHEMES = ("hf", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "file")
# `Path` makes one of several slashes, so one must do here, too.
_URL = re.compile(rf"({'|'.join(_SCHEMES)}):/+(.+)", re.DOTALL)
_SOME_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def url_of(path: object) -> str | None:
    """The URL that a text or a path names; None for a path of this machine.

    Raises:
        ValueError: It is a URL of another kind.

    Example:
        >>> from pathlib import Path
        >>> url_of("s3://bucket/run/"), url_of(Path("file:///tmp/run")), url_of("runs/a")
        ('s3://bucket/run', 'file:///tmp/run', None)
    """
    if not isinstance(path, str | os.PathLike):
        return None
    text = str(path)
    found = _URL.fullmatch(text)
    if found is not None:
        slashes = ":///" if found[1] == "file" else "://"
        return f"{found[1]}{slashes}{found[2].rstrip('/')}"
    if _SOME_URL.match(text):
        raise ValueError(
            f"{text}: expected a folder, or a URL of one of {', '.join(_SCHEMES)}, got another "
            f"kind; give one of these"
        )
    return None
