"""A folder with the chunks that were fetched last, which several processes may share."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.storage.disk.files import Files

__all__ = ["CachePlace", "ChunkCache", "default_cache"]

_LOG = logging.getLogger("stepwell.buffers.storage")
_STORE, _SEGMENT = re.compile("[0-9a-f]{32}"), re.compile("[0-9]{8}-[0-9a-f]{32}|ledgers")
_FILE = re.compile(r"[0-9a-f]+\.(chunk|ledger)(\.[0-9a-f]{8}\.tmp)?")
# It is looked through after so much of it was added, and emptied down to so much.
_LOOK_SHARE, _KEEP_SHARE = 1 / 16, 7 / 8


def default_cache() -> Path:
    """The folder of the user's cache: ``$XDG_CACHE_HOME/stepwell``, or ``~/.cache/stepwell``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepwell"


class CachePlace(NamedTuple):
    """The place of some bytes in the cache.

    Args:
        store: Name of the store.
        part: A segment's number and digest, or ``"ledgers"``.
        name: Name of the file.
    """

    store: str
    part: str
    name: str


class ChunkCache:
    """Keeps bytes in files below a folder.

    Nothing in the folder is trusted: the reader of the bytes compares their checksums. The files
    that were not used for longest are removed once all take more than ``most_bytes``; each process
    that shares the folder may add a 16th of that until it looks. Other files are not touched.

    Args:
        folder: The folder; it is made when it is needed.
        most_bytes: Bytes of all files at most.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._files = Files()
        self._most_bytes = most_bytes
        self._unseen_bytes = most_bytes  # added since the folder was looked through
        self._is_full = False

    def get(self, place: CachePlace, nbytes: int) -> np.ndarray | None:
        """The bytes at a place, mapped; None if they are not there, or not as many."""
        path = self._path(place)
        try:
            with self._files.open(path) as file:
                if self._files.size(file) != nbytes:
                    return None
                with contextlib.suppress(OSError):
                    os.utime(file.fileno())
                return self._files.map(file) if nbytes else np.empty(0, np.uint8)
        except (OSError, StoreCorrupt):  # another kind of file, too, is none of ours
            return None

    def put(self, place: CachePlace, data: bytes) -> np.ndarray:
        """Keep bytes, and return them; from memory where there is no room for them."""
        path = self._path(place)
        if len(data) > self._most_bytes * _LOOK_SHARE:
            return np.frombuffer(data, np.uint8)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
        except OSError as error:
            if not self._is_full:
                _LOG.warning(
                    "%s: nothing is kept here (%s)", self.folder, error.strerror or "it failed"
                )
            self._is_full = True
            return np.frombuffer(data, np.uint8)
        self._is_full = False
        self._unseen_bytes += len(data)
        found = self.get(place, len(data))
        if self._unseen_bytes > self._most_bytes * _LOOK_SHARE:
            self._shrink()
        return np.frombuffer(data, np.uint8) if found is None else found

    def remove(self, place: CachePlace) -> None:
        """Forget the bytes at a place, which are damaged."""
        with contextlib.suppress(OSError):
            self._path(place).unlink()

    def _path(self, place: CachePlace) -> Path:
        return self.folder.joinpath(*place)

    def _shrink(self) -> None:
        """Remove the files that were not used for longest."""
        found: list[tuple[float, int, Path]] = []
        for store in _entries(self.folder, _STORE):
            for part in _entries(store, _SEGMENT):
                for path in _entries(part, _FILE):
                    with contextlib.suppress(OSError):
                        facts = path.lstat()
                        found.append((facts.st_mtime, facts.st_size, path))
        total = sum(nbytes for _, nbytes, _ in found)
        self._unseen_bytes = 0
        if total <= self._most_bytes * (1 - _LOOK_SHARE):
            return
        for _, nbytes, path in sorted(found):
            if total <= self._most_bytes * _KEEP_SHARE:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= nbytes
            with contextlib.suppress(OSError):  # if it is empty now
                path.parent.rmdir()


def _entries(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """The paths in a folder whose names are ours; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            return [Path(each.path) for each in entries if name.fullmatch(each.name)]
    except OSError:
        return []
