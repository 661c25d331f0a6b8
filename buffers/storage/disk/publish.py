"""Files and folders that get their name when they are complete, and otherwise never appear.

The new file or folder is made in a folder next to its place: ``x.part`` for ``x``. That folder
holds the file ``UNFINISHED``, which the process keeps locked. The kernel frees the lock when the
process ends in any way, so that the next process can distinguish leftovers from work in progress,
and replaces them.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import os
import shutil
import socket
import stat
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

from ...base.errors import StoreFailed, StoreLocked, StoreNotFound
from .files import Files, check_platform

Kind = Literal["folder", "file"]

_SUFFIX = ".part"
_LOCK = "UNFINISHED"
# Hidden, as Minari takes any other folder with data in it for a data set.
_NEW = ".new"
_LOCK_BEGINS = b"pid "
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 5, 0.005
_RACES = 100
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def publish(
    target: Path,
    doing: str,
    *,
    kind: Kind = "folder",
    outside: Path | None = None,
    goes_on: bool = False,
) -> Generator[Path]:
    """Create a folder or file that gets its name if the block succeeds, and else is removed."""
    # Until then it is in ``<target>.part``. Its contents are durable before it gets its name.
    # Leftovers of a process that was killed are removed first, or with ``goes_on`` given to the
    # block, which checks each file: after an OSError or Ctrl-C they stay for the next call. A link
    # to an empty folder stays: the folder that it names is replaced.
    check_platform()
    is_inner = outside is not None and is_inside(target, outside)
    if target.name in ("", "..") or is_inner:
        where = "" if outside is None else f", outside of {outside}"
        raise ValueError(
            f"{target}: expected a {kind} with a name of its own{where}, got another path; choose "
            f"another {kind}"
        )
    check_unused(target, kind)
    place = Path(os.path.realpath(target)) if target.is_symlink() else target
    if os.path.ismount(place):
        raise ValueError(
            f"{target}: expected a folder that can be replaced, got the root of a filesystem; "
            f"choose a folder in it, such as {target / 'new'}"
        )
    made = _make_folders(place.parent)
    part: _Part | None = None
    try:
        part = _Part(place, doing, kind, goes_on=goes_on)
        check_unused(target, kind)  # again: who had the lock until now may have made it
        part.make(kind)
        yield part.new
        try:
            _make_durable(part.new)
        except OSError as error:
            raise StoreFailed(f"{part.new} is not on the disk") from error
        check_unused(target, kind)
        part.publish()
    except BaseException as error:
        is_there = part is not None and part.is_published
        is_to_go_on = goes_on and isinstance(error, OSError | KeyboardInterrupt)
        if is_to_go_on and part is not None and not is_there and part.has_files:
            part.pause()
            raise
        error.add_note(f"kept: {f'all of it, in {target}' if is_there else 'nothing'}")
        if part is not None:
            part.leave()
        if not is_there:
            _remove_empty(made)
        if part is not None and not is_there and isinstance(error, StoreFailed):
            # Its message assumes that the store still exists.
            why = error.__cause__ or error
            left = (
                f"what is left of it in {part.path} is replaced by the next one"
                if os.path.lexists(part.new)
                else "nothing of it is left"
            )
            raise StoreFailed(
                f"{target} was not made ({getattr(why, 'strerror', None) or why}), and {left}; "
                f"fix the cause, then start again"
            ) from error
        raise
    part.leave()


def is_inside(path: Path, folder: Path) -> bool:
    """True for a path in a folder, or for the folder itself; links in a circle are accepted."""
    # `Path.resolve` raises RuntimeError where links form a circle.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_unused(target: Path, kind: Kind = "folder") -> None:
    """Refuse a path that is in use; a folder may be empty, or a link to an empty one."""
    try:  # a single call, as another process may create the target now
        found = os.stat(target, follow_symlinks=kind == "folder")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        if not target.is_symlink():
            return
        found = os.lstat(target)
    if stat.S_ISDIR(found.st_mode):
        if kind == "folder" and not any(target.iterdir()):
            return
        got = "is not empty" if kind == "folder" else "is a folder"
    else:
        got = "is a file or a link" if kind == "folder" else "is there already"
    expected = "a new or an empty folder" if kind == "folder" else "a new file"
    raise ValueError(f"{target} {got}: expected {expected}; choose another {kind}")


def check_complete(path: Path) -> None:
    """Refuse a folder that `publish` has not completed."""
    path = path.absolute()
    part = path.parent if path.name == _NEW else path
    if part.suffix != _SUFFIX:
        return
    try:
        with io.FileIO(part / _LOCK, opener=_open_to_read) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            is_alive = Files().is_locked(file)
            holder = _holder(file)
    except OSError:
        return
    target = part.with_suffix("")
    if is_alive:
        got, advice = f"what {holder} is making", f"wait until {target} is there"
    elif os.path.lexists(part / _NEW) or not os.path.lexists(target):
        got = f"what a process that was killed has left of {target}"
        advice = "run its command again, which starts from the beginning"
    else:
        got, advice = f"what is left of the making of {target}, which is complete", "remove it"
    raise StoreNotFound(f"{path} is not complete: expected a store, got {got}; {advice}")


def disk_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    if not path.is_dir():
        return path.lstat().st_size
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


class _Part:
    """The folder ``<target>.part``, locked against other processes."""

    # Its contents are removed through an open descriptor, as another folder may get its name.

    def __init__(
        self,
        place: Path,  # the target
        doing: str,  # a name for the work
        kind: Kind,
        *,
        goes_on: bool = False,  # leftovers are not removed
    ) -> None:
        self.path = place.with_name(place.name + _SUFFIX)
        self.new = self.path / _NEW
        self._place = place
        self._doing = doing
        self._kind = kind
        self._is_publishing = self._had_folder = False
        self._folder = -1
        self._lock: io.FileIO | None = None
        try:
            # What others do at the same time can remove the folder between two of these calls.
            if not any(self._take() for _ in range(_RACES)):
                raise self._in_the_way("what changes all the time")
            self._check_ours()
        except BaseException:
            self._close()
            raise
        try:
            if not goes_on:
                self._sweep()
            self._sign()
        except BaseException:
            self.leave()
            raise

    @property
    def is_published(self) -> bool:
        """True once the target has its name, also if an interrupt followed at once."""
        return self._is_publishing and not os.path.lexists(self.new)

    @property
    def has_files(self) -> bool:
        """True if the new folder is there, and not empty."""
        return self.new.is_dir() and any(self.new.iterdir())

    def make(self, kind: Kind) -> None:
        """Create the empty folder or file."""
        if kind == "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(_NEW, flags, 0o666, dir_fd=self._folder))
            return
        try:
            os.mkdir(_NEW, dir_fd=self._folder)
        except FileExistsError:  # leftovers to go on with
            if not stat.S_ISDIR(os.lstat(self.new).st_mode):
                raise self._in_the_way(f"a file or a link {_NEW}") from None
        self._had_folder = self._place.is_dir()
        if self._had_folder:  # which may be there to be shared
            self.new.chmod(stat.S_IMODE(self._place.stat().st_mode))

    def publish(self) -> None:
        """Give the new folder or file its name, durably, or take it back."""
        self._is_publishing = True
        # In place of an empty folder, but never of another one.
        os.rename(self.new, self._place)
        try:
            Files().fsync_folder(self._place.parent)
        except OSError as error:
            self._take_back()
            raise StoreFailed(f"{self._place} is not on the disk") from error

    def _take_back(self) -> None:
        """Remove the folder or file that was given its name."""
        mode = stat.S_IMODE(self._place.stat().st_mode)
        try:
            os.rename(self._place, self.new)
        except OSError:  # a full disk may have no room for a name
            if self._kind == "file":
                self._place.unlink()
            else:
                shutil.rmtree(self._place)
        self._is_publishing = False
        if self._had_folder:
            self._place.mkdir()
            self._place.chmod(mode)

    def pause(self) -> None:
        """Let the folder be, for a process that goes on with it."""
        self._close()

    def leave(self) -> None:
        """Remove the folder and its contents."""
        try:
            with contextlib.suppress(OSError):
                self._sweep()
                # Last, as it identifies the folder.
                os.unlink(_LOCK, dir_fd=self._folder)
                self.path.rmdir()
        finally:
            self._close()

    def _take(self) -> bool:
        """Create the folder, or use an existing one, and lock it; False if it was removed."""
        self._close()
        try:
            self.path.mkdir()
            is_new = True
        except FileExistsError:
            is_new = False
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._folder = os.open(self.path, flags)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise self._in_the_way("a file or a link") from None
        self._check_ours()
        try:
            self._lock = io.FileIO(_LOCK, "rb+", opener=self._open_lock)
        except FileNotFoundError:  # the folder is removed, though still open here
            return False
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                with contextlib.suppress(OSError):  # if it is empty
                    self.path.rmdir()
                raise
            raise self._in_the_way(f"a folder with another {_LOCK}") from None
        self._check_lock(self._lock)
        if not self._is_locked(self._lock, is_new):
            holder = _holder(self._lock)
            raise StoreLocked(
                f"{self._place} is being made by {holder}: expected no other process; wait for its "
                f"end, or choose another {self._kind}",
                holder=holder,
            )
        return self._is_in_place(self._lock)

    def _open_lock(self, name: str, _: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o666, dir_fd=self._folder)

    def _is_locked(self, lock: io.FileIO, is_new: bool) -> bool:
        """Take the lock; another process that tests it may hold it for a moment."""
        for _ in range(_LOCK_TRIES):
            try:
                if Files().lock(lock):
                    return True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                # A filesystem without locks: only a new folder is surely our own.
                if is_new:
                    return True
                raise ValueError(
                    f"{self.path} is there already: expected none where files cannot be locked, "
                    f"got what {self._doing} has left that was killed or is running still; remove "
                    f"it if none is running"
                ) from None
            time.sleep(_LOCK_PAUSE_SECONDS)
        return False

    def _is_in_place(self, lock: io.FileIO) -> bool:
        """True if the folder and its lock file still have their names."""
        with contextlib.suppress(FileNotFoundError):
            named = os.stat(_LOCK, dir_fd=self._folder, follow_symlinks=False)
            return os.path.samestat(named, os.fstat(lock.fileno())) and os.path.samestat(
                os.lstat(self.path), os.fstat(self._folder)
            )
        return False

    def _check_ours(self) -> None:
        """Refuse a folder with other contents."""
        names = set(os.listdir(self._folder))
        others = sorted(names - {_LOCK, _NEW}) or sorted(names if _LOCK not in names else ())
        if others:
            raise self._in_the_way(f"a folder with {others[0]}")

    def _check_lock(self, lock: io.FileIO) -> None:
        """Refuse a lock file that is a user's file, perhaps by a second name."""
        found = os.fstat(lock.fileno())
        is_ours = stat.S_ISREG(found.st_mode) and found.st_nlink <= 1
        if is_ours and found.st_size:
            # The process may have been killed, or lost power, while it wrote the file.
            begins = os.pread(lock.fileno(), len(_LOCK_BEGINS), 0).rstrip(b"\0")
            is_ours = _LOCK_BEGINS.startswith(begins)
        if not is_ours:
            raise self._in_the_way(f"a folder with another {_LOCK}")

    def _in_the_way(self, got: str) -> ValueError:
        return ValueError(
            f"{self.path} is in the way: expected nothing there, or what {self._doing} that was "
            f"killed has left, got {got}; move it away, or choose another {self._kind}"
        )

    def _sweep(self) -> None:
        """Remove the new folder or file."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(_NEW, dir_fd=self._folder, follow_symlinks=False).st_mode):
                shutil.rmtree(_NEW, dir_fd=self._folder)
            else:
                os.unlink(_NEW, dir_fd=self._folder)

    def _sign(self) -> None:
        """Write the process into the lock file, before anything else is durable."""
        assert self._lock is not None
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = f"pid {os.getpid()} on {socket.gethostname()} since {now}\n{self._doing}\n"
        os.ftruncate(self._lock.fileno(), 0)
        os.pwrite(self._lock.fileno(), text.encode(), 0)
        os.fsync(self._lock.fileno())
        os.fsync(self._folder)

    def _close(self) -> None:
        """Free the lock."""
        if self._lock is not None:
            self._lock.close()
        if self._folder >= 0:
            os.close(self._folder)
        self._lock, self._folder = None, -1


def _open_to_read(path: str, _: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _holder(lock: io.FileIO) -> str:
    """The process that is named in the lock file."""
    first = os.pread(lock.fileno(), 1000, 0).decode(errors="replace").partition("\n")[0]
    return first.strip() or "another process"


def _make_folders(path: Path) -> list[Path]:
    """Create a folder with its parents, durably, and return those that are new."""
    missing: list[Path] = []
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            try:
                folder.mkdir()
            except FileExistsError:
                if folder.is_symlink() and not folder.exists():
                    raise ValueError(
                        f"{folder}: expected a folder, got a link that leads to none, or in a "
                        f"circle; remove it, or choose another folder"
                    ) from None
                if not folder.is_dir():
                    raise
            else:
                made.append(folder)
            with contextlib.suppress(PermissionError):  # creating a folder needs no read permission
                Files().fsync_folder(folder.parent)
    except BaseException:
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove nested folders as far as they are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make_durable(path: Path) -> None:
    """Make all written files and folders durable."""
    files = Files()
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if each.is_dir():
            files.fsync_folder(each)
        else:
            with each.open("rb", buffering=0) as file:
                files.fsync(file)
