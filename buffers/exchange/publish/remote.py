"""Files at a place that is not trusted: what it lists, checked before any of it is used."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ...base.progress import format_bytes

_MOST_DEPTH, _MOST_NAME_BYTES, _MOST_PATH_BYTES = 32, 255, 1_024
_RUN_BYTES = 1 << 20


Tell: TypeAlias = "Callable[[int], None]"


class RemoteFile(NamedTuple):
    """A file that a place lists."""

    path: str  # in the new folder, with slashes; checked
    size: int  # in bytes
    algorithm: str  # "sha256", "git" (SHA-1, behind the length) or "blake2b" (16 bytes of it)
    checksum: str  # in hexadecimal digits


class Listing(NamedTuple):
    """The files of a place in one state, which does not change."""

    commit: str  # name of the state: a commit of the Hub, or a manifest at a URL
    files: dict[str, RemoteFile]  # by path, without hidden ones
    hidden: int = 0  # files whose path has a part that begins with a dot

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def is_hidden(path: str) -> bool:
    """True for a path with a part that begins with a dot, such as ``.gitattributes``."""
    return any(part.startswith(".") for part in path.split("/"))


def check_path(path: object) -> str:
    """The path, if it may be written below a folder; else a ValueError says why not."""
    if not isinstance(path, str) or not path.isprintable() or "\\" in path:
        raise unsafe(path, "is no plain text")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise unsafe(path, "leads out of the folder")
    if (
        len(parts) > _MOST_DEPTH
        or max(len(part.encode()) for part in parts) > _MOST_NAME_BYTES
        or len(path.encode()) > _MOST_PATH_BYTES
    ):
        raise unsafe(path, "is too long")
    return path


def check_paths(files: Iterable[str]) -> None:
    """Refuse two paths that some file systems take for one, and a file in a file."""
    names: dict[str, str] = {}
    for path in files:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            known = names.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if known != name:
                raise unsafe(path, f"cannot be told from {repr(known)[:200]} on every disk")
    for path in files:
        parents = path.split("/")[:-1]
        if any("/".join(parents[:depth]) in files for depth in range(1, len(parents) + 1)):
            raise unsafe(path, "lies in a file")


def differs(path: Path, file: RemoteFile) -> str | None:
    """The difference between a regular file on the disk and one of a listing, if there is one."""
    size = path.stat().st_size
    if size != file.size:
        return f"expected {format_bytes(file.size)}, got {format_bytes(size)}"
    digest: Any = hashlib.blake2b(digest_size=16)
    if file.algorithm == "git":
        digest = hashlib.sha1(b"blob %d\0" % size)
    elif file.algorithm == "sha256":
        digest = hashlib.sha256()
    with path.open("rb") as opened:
        while run := opened.read(_RUN_BYTES):
            digest.update(run)
    got = digest.hexdigest()
    return None if got == file.checksum else f"expected the checksum {file.checksum}, got {got}"


def unsafe(path: object, why: str) -> ValueError:
    """The error for a listed file that is not fetched."""
    return ValueError(
        f"expected a listing of files that are safe to write, but {repr(path)[:200]} {why}; "
        f"nothing was fetched, tell its owner"
    )
