"""What can be said when a store is made or opened, checked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping
from io import FileIO
from typing import Literal, cast

from stepwell.buffers.storage.disk.format import json_text
from stepwell.buffers.storage.memory import check_capacity

__all__ = ["OnCorrupt", "check_limits", "check_on_corrupt", "closing_on_error", "plain_json"]

OnCorrupt = Literal["raise", "skip"]
"""What to do about damaged chunks of a store that is opened to read."""

_MIN_CAPACITY_BYTES = 1 << 20
_MOST_DEPTH = 90  # the manifest, which it will be a part of, may have a few levels more


def check_limits(capacity: int | None, capacity_bytes: int | None) -> None:
    """Refuse capacities that no folder can keep."""
    check_capacity(capacity, capacity_bytes)
    if capacity_bytes is not None and capacity_bytes < _MIN_CAPACITY_BYTES:
        raise ValueError(
            f"capacity_bytes: expected at least {_MIN_CAPACITY_BYTES} for a folder, got "
            f"{capacity_bytes}; raise it, or keep the replay in memory"
        )


def plain_json(value: Mapping[str, object]) -> dict[str, object]:
    """The value as it comes back from a file."""
    return cast("dict[str, object]", json.loads(json_text(dict(value), _MOST_DEPTH)))


def check_on_corrupt(on_corrupt: str, *, read_only: bool) -> bool:
    """Whether damaged chunks are to be skipped.

    Raises:
        ValueError: It is no known word, or the store is to be written into.
    """
    if on_corrupt not in ("raise", "skip"):
        raise ValueError(f"on_corrupt: expected 'raise' or 'skip', got {on_corrupt!r}")
    if on_corrupt == "skip" and not read_only:
        raise ValueError(
            "on_corrupt='skip': expected read_only=True, got a store to write into; run "
            "`stepwell repair` on it first"
        )
    return on_corrupt == "skip"


@contextlib.contextmanager
def closing_on_error(file: FileIO) -> Generator[None]:
    """Close a file when what follows fails."""
    try:
        yield
    except BaseException:
        file.close()
        raise
