"""Stores that lie somewhere, in a folder or at a URL, for whoever reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from stepwell.buffers.storage.cloud.storage import CloudStorage
from stepwell.buffers.storage.disk.publish import disk_bytes
from stepwell.buffers.storage.disk.storage import DiskStorage, OnCorrupt
from stepwell.buffers.storage.urls import url_of

__all__ = ["PlacedStorage", "check_different", "open_to_read", "placed_bytes"]

PlacedStorage: TypeAlias = DiskStorage | CloudStorage
"""A storage with a `path`, which is a folder or a URL, and a name: `store`."""


def open_to_read(path: str | os.PathLike[str], *, on_corrupt: OnCorrupt = "raise") -> PlacedStorage:
    """Open the store in a folder, or at a URL, for reading.

    Raises:
        StoreNotFound: There is none.
        StoreCorrupt: It is damaged.
    """
    url = url_of(path)
    if url is not None:
        return CloudStorage.open(url, on_corrupt=on_corrupt)
    return DiskStorage.open(path, read_only=True, on_corrupt=on_corrupt)


def check_different(name: str, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse paths or URLs of which two name the same store.

    Args:
        name: Name of the argument or command, for the message.
        paths: Folders and URLs.

    Raises:
        ValueError: Two of them are the same, with the place that they name.
    """
    seen: dict[str, str] = {}
    for path in paths:
        place = url_of(path) or os.path.realpath(path)
        if place in seen:
            first = seen[place]
            also = "twice" if first == str(path) else f"and {path}, which is the same one"
            raise ValueError(
                f"{name}: expected different stores, got {first} {also}; name each once"
            )
        seen[place] = str(path)


def placed_bytes(storage: PlacedStorage) -> int:
    """Bytes of all files of a folder, or of the objects that a manifest names."""
    if isinstance(storage, DiskStorage):
        return disk_bytes(storage.path)
    return storage.nbytes + storage.ledger_bytes
