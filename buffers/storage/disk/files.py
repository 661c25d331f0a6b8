"""The few system calls of the disk store, and nothing else: tests put their faults here."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import shutil
import stat
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np

from ...base.errors import StoreCorrupt

# A parent that is killed must not leave its lock to the workers that it forked.
_LOCKS: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


class Files:
    """The system calls that a disk store makes, one method each."""

    # Only `pwrite` may write less than all bytes, as the system call may; all others raise OSError.
    # A folder is not trusted: no link in it is followed, and only regular files are opened.

    def open(self, path: Path) -> io.FileIO:
        """Open an existing file for reading."""
        return _opened(path, "rb", 0)

    def open_to_write(self, path: Path) -> io.FileIO:
        """Open a file for reading and writing; an empty one is made where there is none."""
        return _opened(path, "rb+", os.O_CREAT)

    def create(self, path: Path) -> io.FileIO:
        """Open a new, empty file for reading and writing, replacing any file of that name."""
        try:
            return _opened(path, "rb+", os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            # Never the same file emptied: it might have a second name elsewhere.
            _remove_name(path)
            return _opened(path, "rb+", os.O_CREAT | os.O_EXCL)

    def pread(self, file: io.FileIO, nbytes: int, offset: int) -> bytes:
        """Read up to ``nbytes`` bytes; fewer only at the end of the file."""
        parts: list[bytes] = []
        while nbytes > 0 and (part := os.pread(file.fileno(), nbytes, offset)):
            parts.append(part)
            nbytes, offset = nbytes - len(part), offset + len(part)
        return b"".join(parts)

    def pwrite(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        """Write some of the bytes and return how many."""
        return os.pwrite(file.fileno(), data, offset)

    def allocate(self, file: io.FileIO, nbytes: int) -> None:
        """Make a file of zeros whose room on the disk is taken."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return
        if shutil.disk_usage(Path(os.fsdecode(file.name)).parent).free < nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file.fileno(), nbytes)

    def truncate(self, file: io.FileIO, nbytes: int) -> None:
        """Give a file another length."""
        try:
            os.ftruncate(file.fileno(), nbytes)
        except OSError as error:
            error.filename = file.name
            raise

    def size(self, file: io.FileIO) -> int:
        """Length of a file."""
        return os.fstat(file.fileno()).st_size

    def fdatasync(self, file: io.FileIO) -> None:
        """Wait until a file's bytes, and the metadata needed to read them, are on the medium."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(file.fileno())
        else:  # macOS: fsync alone leaves the bytes in the drive's own memory
            self.fsync(file)

    def begin_sync(self, file: io.FileIO, offset: int, nbytes: int) -> None:
        """Let the disk begin with bytes that `fdatasync` will wait for; only a hint."""
        if hasattr(os, "posix_fadvise"):
            # Linux starts to write dirty pages that it should drop, and drops none meanwhile.
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), offset, nbytes, os.POSIX_FADV_DONTNEED)

    def fsync(self, file: io.FileIO) -> None:
        """Wait until a file is on the medium."""
        full_sync = getattr(_fcntl(), "F_FULLFSYNC", None)
        if full_sync is not None:
            _fcntl().fcntl(file.fileno(), full_sync)
        else:
            os.fsync(file.fileno())

    def fsync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Make one folder, in a parent that exists."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of the file that has it."""
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name."""
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Remove a file; its bytes stay for those who have it mapped."""
        _remove_name(path)

    def has_other_name(self, file: io.FileIO) -> bool:
        """The file has a second name, perhaps in a folder that is none of ours."""
        return os.fstat(file.fileno()).st_nlink > 1

    def map(self, file: io.FileIO) -> np.ndarray:
        """A file that is not empty as memory that cannot be written; freed with the last view."""
        flags, protection = mmap.MAP_SHARED, mmap.PROT_READ
        if sys.version_info >= (3, 13):  # before, every map holds a file descriptor
            memory = mmap.mmap(file.fileno(), 0, flags, protection, trackfd=False)
        else:
            memory = mmap.mmap(file.fileno(), 0, flags, protection)
        return np.frombuffer(memory, np.uint8)

    def lock(self, file: io.FileIO) -> bool:
        """Take the lock of a file, or return False if another process holds it."""
        # The kernel frees it when the file is closed, and when the process ends in any way.
        try:
            _fcntl().flock(file.fileno(), _fcntl().LOCK_EX | _fcntl().LOCK_NB)
        except BlockingIOError:
            return False
        _LOCKS.add(file)
        return True

    def is_locked(self, file: io.FileIO) -> bool:
        """True if a process holds the lock of a file, which must be closed at once."""
        # If none does, this holds a shared lock until then.
        _LOCKS.add(file)
        try:
            _fcntl().flock(file.fileno(), _fcntl().LOCK_SH | _fcntl().LOCK_NB)
        except BlockingIOError:
            return True
        return False


class LateFiles(Files):
    """The system calls for a folder that `publish` makes: it is durable only as a whole."""

    # A crash leaves nothing of the folder, so that the order of its writes does not matter.
    # `publish` waits for every file and folder before it gives the folder its name.

    def fsync(self, file: io.FileIO) -> None:
        """Do not wait: `publish` does."""

    def fsync_folder(self, path: Path) -> None:
        """Do not wait: `publish` does."""

    def fdatasync(self, file: io.FileIO) -> None:
        """Do not wait: `truncate` and `publish` do."""

    def truncate(self, file: io.FileIO, nbytes: int) -> None:
        """Give a file another length, once its bytes are on the medium."""
        # Its last writer sees all errors of the disk, another one perhaps not.
        super().fdatasync(file)
        super().truncate(file, nbytes)


def write_at(files: Files, file: io.FileIO, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes."""
    rest = memoryview(data)
    while len(rest):
        written = files.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Give a file new contents, so that after a crash it holds either the old or the new."""
    temporary = path.with_name(path.name + ".tmp")
    with files.create(temporary) as file:
        write_at(files, file, data, 0)
        files.fsync(file)
    files.rename(temporary, path)
    files.fsync_folder(path.parent)


def as_bytes(memory: np.ndarray) -> memoryview:
    """A view of an array of bytes."""
    return memoryview(cast("bytes", memory))


def check_platform() -> None:
    """Refuse Windows, where the store could not keep its guarantees."""
    if sys.platform == "win32":
        raise OSError(
            "a store in a folder needs Linux or macOS, for Windows has no flock and no sync of "
            "folders: keep the replay in memory (path=None)"
        )


def path_kind(path: Path) -> str | None:
    """The kind of a path without following links: "file" for a regular one, None for nothing."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    for is_kind, word in _KINDS:
        if is_kind(mode):
            return word
    return "device"


def not_a_file(path: Path, kind: str) -> StoreCorrupt:
    """The error for a path that is not a regular file."""
    return StoreCorrupt(
        f"{path} is a {kind}, expected a file: links are not followed; remove it, or restore the "
        f"file from a copy"
    )


def _remove_name(path: Path) -> None:
    """Remove a name of anything but a folder."""
    if path_kind(path) == "folder":
        raise not_a_file(path, "folder")
    path.unlink()


_KINDS = (
    (stat.S_ISREG, "file"),
    (stat.S_ISLNK, "symbolic link"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
)


def _opened(path: Path, mode: str, flags: int) -> io.FileIO:
    """Open a regular file only; without blocking, as opening a pipe would."""

    def opener(name: str, mode_flags: int) -> int:
        return os.open(name, mode_flags | flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    try:
        file = io.FileIO(path, mode, opener=opener)
    except OSError as error:
        # A link is ELOOP, a folder EISDIR, a pipe without a reader and a socket are ENXIO.
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        kind = path_kind(path)
        if kind is None or kind == "file":
            raise
        raise not_a_file(path, kind) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise not_a_file(path, path_kind(path) or "device")
    return file


def _fcntl() -> ModuleType:
    """Import `fcntl`, which Windows does not have."""
    import fcntl

    return fcntl


def _close_locks_in_child() -> None:
    for file in list(_LOCKS):
        with contextlib.suppress(OSError):
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_in_child)
