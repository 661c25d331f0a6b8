"""The folder of a store: its manifest, its lock, and stray files."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fnmatch
import os
import re
import socket
import time
from collections.abc import Container
from io import FileIO
from pathlib import Path
from typing import Literal

from ...base.errors import StoreCorrupt, StoreLocked, StoreNotFound
from ...base.memory_limit import check_free_memory
from .files import Files, check_platform, not_a_file, path_kind, replace_file, write_at
from .format import MOST_FACTS_BYTES, Manifest, TableCopy, repair_advice
from .segment import read_header, segment_path

_SCHEMES = ("hf", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "file")
# `Path` makes one of several slashes, so one must do here, too.
_URL = re.compile(rf"({'|'.join(_SCHEMES)}):/+(.+)", re.DOTALL)
_SOME_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def url_of(path: object) -> str | None:
    """The URL that a text or a path names; None for a path of this machine."""
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


_MANIFEST = "manifest.json"
_LOCK = "LOCK"
_LEDGER = "ledger.bin"  # of earlier versions
_SEGMENT = re.compile(r"(segment|held)-([0-9]{8})\.bin")
_TEMPORARY = (
    *("segment-*.bin.tmp", "checkpoint-*.bin.tmp"),
    *(f"{_MANIFEST}.tmp", f"{_LEDGER}.tmp"),
)
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 5, 0.005
_NO_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS)


def ignored_file(folder: Path) -> str:
    """A sentence about a file of an earlier version that is not read any more; empty without."""
    if path_kind(folder / _LEDGER) is None:
        return ""
    return (
        f"{_LEDGER} is ignored: an earlier version kept actions of rows that are gone in it; you "
        f"may delete it"
    )


def folder_path(path: object) -> Path:
    """The path, if it is text or a path, and no URL."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: expected the path of a folder, got {path!r}")
    url = url_of(path)
    if url is not None:
        raise ValueError(
            f"{url} is a URL, expected a folder: fetch the store (stepwell pull {url} FOLDER), "
            f"then open that folder; or write into a folder, then push it (stepwell push FOLDER "
            f"{url})"
        )
    return Path(path)


class StoreFolder:
    """Reads and writes the files of a store's folder other than its segments."""

    def __init__(self, path: str | os.PathLike[str], files: Files) -> None:
        check_platform()
        self.path = folder_path(path).absolute()
        self.files = files

    def make(self) -> None:
        """Create the folder, or use an empty one."""
        self.check_unused()
        if self.path.is_dir():
            # The process that created it may have been killed before the name was durable.
            with contextlib.suppress(PermissionError):
                self.files.fsync_folder(self.path.parent)
        self._make_with_parents(self.path)

    def check_unused(self) -> None:
        """Refuse a path of a file, a store, or a folder that is not empty."""
        if self.is_store:
            raise ValueError(
                f"{self.path} holds a store already, expected a new or empty folder: "
                f"open it with DiskStorage.open, or choose another folder"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, expected a folder: choose another folder")
        # A crash during the creation of a store may have left these two.
        if self.path.is_dir() and set(os.listdir(self.path)) - {_LOCK, f"{_MANIFEST}.tmp"}:
            raise ValueError(
                f"{self.path} is not empty, expected a new or empty folder: choose another folder"
            )

    @property
    def is_store(self) -> bool:
        """True if there is a manifest."""
        return os.path.lexists(self.path / _MANIFEST)

    def check(self) -> None:
        """Refuse a folder without a store."""
        if not self.is_store:
            below = sorted(str(each.parent) for each in self.path.glob(f"*/{_MANIFEST}"))
            advice = "give the folder of a store, or make one"
            if below:
                advice = f"there is one in {below[0]}"
            elif self.path.is_file():
                advice = "this is a file; of an archive, stepwell restore makes a store"
            raise StoreNotFound(
                f"{self.path} holds no store, expected a folder with a {_MANIFEST}: {advice}"
            )

    def lock(self) -> FileIO:
        """Become the only writer, until the file is closed or the process ends."""
        message = (
            f"{self.path} cannot be written, expected a folder that can: change its permissions, "
            f"or open the store with read_only=True"
        )
        # In a folder that is not writable no file can be created or replaced.
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(message)
        try:
            file = self.files.open_to_write(self.path / _LOCK)
        except OSError as error:
            if error.errno not in _NO_WRITING:
                raise
            raise PermissionError(message) from error
        try:
            self._take(file)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def is_being_written(self) -> bool:
        """True if a running process, perhaps this one, has the store open for writing."""
        try:
            with self.files.open(self.path / _LOCK) as file:
                return self.files.is_locked(file)
        except FileNotFoundError:
            return False  # a copy of a store may lack it

    def read_manifest(self) -> Manifest:
        """Read the manifest."""
        self.check()
        with self.files.open(self.path / _MANIFEST) as file:
            size = self.files.size(file)
            if size > MOST_FACTS_BYTES:
                path = self.path / _MANIFEST
                raise StoreCorrupt(
                    f"{path} has {size} bytes, expected at most {MOST_FACTS_BYTES}; "
                    f"{repair_advice(path)}"
                )
            data = self.files.pread(file, size, 0)
        return Manifest.unpack(data, str(self.path / _MANIFEST))

    def segments(self, name: Literal["segment", "held"] = "segment") -> dict[int, Path]:
        """All paths with the name of a segment, listed in the manifest or not, in order."""
        there = sorted(os.listdir(self.path)) if self.path.is_dir() else []
        found = [each for each in map(_SEGMENT.fullmatch, there) if each is not None]
        return {int(each[2]): self.path / each[0] for each in found if each[1] == name}

    def hold(self, number: int) -> None:
        """Keep a segment that is not listed any more, for a checkpoint."""
        path = segment_path(self.path, number)
        self.files.rename(path, _held_path(path))

    def unhold(self, number: int) -> None:
        """Give a segment its own name again, if it was kept for a checkpoint."""
        path = segment_path(self.path, number)
        if path_kind(_held_path(path)) == "file" and path_kind(path) is None:
            self.files.rename(_held_path(path), path)

    def remove_held(self, needed: Container[int] = ()) -> None:
        """Remove the segments that were kept for checkpoints, except for those needed."""
        for number, path in self.segments("held").items():
            if number not in needed and path_kind(path) == "file":
                self.files.unlink(path)

    def read_newest_manifest(self) -> Manifest:
        """Read the manifest, and refuse one that is older than the segments."""
        # A writer may create a segment between the reads of manifest and folder. So only a problem
        # that is found twice is an error.
        seen = ""
        while True:
            manifest = self.read_manifest()
            try:
                self._check_strays(manifest)
            except StoreCorrupt as error:
                if str(error) == seen:
                    raise
                seen = str(error)
            else:
                return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest; when it returns the new one is durable."""
        replace_file(self.files, self.path / _MANIFEST, manifest.pack())

    def write_checkpoint(self, name: str, data: bytes) -> None:
        """Replace a checkpoint; when it returns the new one is durable."""
        replace_file(self.files, self.checkpoint_path(name), data)

    def read_checkpoint(self, name: str) -> bytes:
        """The bytes of a checkpoint."""
        path = self.checkpoint_path(name)
        try:
            with self.files.open(path) as file:
                size = self.files.size(file)
                check_free_memory(size, str(path))
                return self.files.pread(file, size, 0)
        except FileNotFoundError as error:
            there = [each.name[11:-4] for each in sorted(self.path.glob("checkpoint-*.bin"))]
            raise StoreNotFound(
                f"{self.path} holds no checkpoint {name!r}, expected one of: "
                f"{', '.join(there) or 'none'}; save one first"
            ) from error

    def checkpoint_path(self, name: str) -> Path:
        """The file of a checkpoint of that name, which is checked."""
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
            raise ValueError(
                f"name of a checkpoint: expected letters, digits, - and _, got {name!r}"
            )
        return self.path / f"checkpoint-{name}.bin"

    def _check_strays(self, manifest: Manifest) -> None:
        """Refuse a manifest that does not list a segment with chunks."""
        live = set(manifest.numbers)
        for number, path in self.segments().items():
            # Evicted and never used segments may be there; any other one holds data.
            if number >= manifest.next.segment and number not in live:
                self._check_stray(path)

    def sweep(self, manifest: Manifest) -> None:
        """Remove the traces of a crash: temporary files, and segments that are not listed."""
        live = set(manifest.numbers)
        strays = {number: path for number, path in self.segments().items() if number not in live}
        names = os.listdir(self.path)
        if fnmatch.filter(names, "checkpoint-*.bin"):
            # The writer may have ended before it could keep one that a checkpoint needs.
            for number in [each for each in strays if each < manifest.next.segment]:
                if path_kind(strays[number]) == "file":
                    self.hold(number)
                    del strays[number]
        else:
            self.remove_held()
        gone = list(strays.values())
        gone += [self.path / name for each in _TEMPORARY for name in fnmatch.filter(names, each)]
        for path in gone:
            if path_kind(path) == "folder":
                raise not_a_file(path, "folder")
        for path in sorted(gone):
            self.files.unlink(path)

    def _check_stray(self, path: Path) -> None:
        """Refuse a segment that is not listed, if there is a chunk in it."""
        try:
            with self.files.open(path) as file:
                header = read_header(self.files, file, path)
                tables = [
                    TableCopy.parse(self.files.pread(file, header.table_bytes, offset), header)
                    for offset in header.table_offsets
                ]
        except FileNotFoundError:  # evicted since it was listed
            return
        if any(table.is_valid.any() for table in tables):
            raise StoreCorrupt(
                f"{path} holds chunks, but {_MANIFEST} does not list it, expected a manifest as "
                f"new as the segment: restore both from one copy, or run: stepwell repair "
                f"{self.path}"
            )

    def _take(self, file: FileIO) -> None:
        for _ in range(_LOCK_TRIES):  # a reader that tests the lock may hold it for a moment
            if self.files.lock(file):
                break
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            text = self.files.pread(file, 1000, 0).decode(errors="replace").strip()
            shown = "".join(letter if letter.isprintable() else "?" for letter in text)
            holder = shown or "another process"
            raise StoreLocked(
                f"{self.path} is written by {holder}, expected no other writer: wait for its end, "
                f"or open the store with read_only=True",
                holder=holder,
            )
        if self.files.has_other_name(file):
            return  # writing would change the other file, too
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.files.truncate(file, 0)
        text = f"pid {os.getpid()} on {socket.gethostname()} since {now}\n"
        write_at(self.files, file, text.encode(), 0)

    def _make_with_parents(self, path: Path) -> None:
        if path.is_dir():
            return
        self._make_with_parents(path.parent)
        with contextlib.suppress(FileExistsError):
            self.files.make_folder(path)
        self.files.fsync_folder(path.parent)


def _held_path(path: Path) -> Path:
    return path.with_name(path.name.replace("segment", "held"))
