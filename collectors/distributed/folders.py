"""Folders as the destination of distributed collectors: each group writes a store of its own."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread

from ...buffers.base.errors import StoreCorrupt, StoreLocked, StoreNotFound
from ...buffers.base.number_checks import check_positive
from ...buffers.base.untrusted_json import member, parse, whole
from ...buffers.exchange.publish.objects import Objects
from ...buffers.exchange.publish.uploader import UploadedStore, Uploader, newest_manifest
from ...buffers.storage.disk.folder import url_of
from ...buffers.storage.disk.storage import DiskStorage

_LOG = logging.getLogger("stepwell.collectors")
_MOST_RECORD_BYTES = 1 << 16
_GROUP = re.compile("group-[0-9]{5,9}")
# Below the URL of all groups, a record of each attempt.
_RECORDS = "groups"
_RECORD = re.compile(rf"{_RECORDS}/group-([0-9]{{5,9}})-attempt-([0-9]{{1,9}})\.json")
_CLOSE_SECONDS = 600.0
_TELL_SECONDS, _WAIT_SECONDS = 30.0, 1.0
_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0
_SEGMENT = re.compile(r"segment-([0-9]{8})\.bin")


@dataclass(frozen=True)
class Folders:
    """A folder, or a URL, below which each group of a collector writes a store of its own.

    Group 7 writes into ``path/group-00007``. At a URL it writes into a folder of its machine, from
    which complete segments are uploaded to ``path/group-00007/attempt-0``. A group that begins
    again after its process died writes into ``attempt-1``, and so on.

    Args:
        path: The folder, or a URL: ``"s3://bucket/run"``, ``"gs://..."``, ``"az://..."``,
            ``"file:///..."``.
        seal_seconds: At a URL: rows wait for so long at most until they are uploaded.
        scratch: At a URL: the folder of each machine for rows that are not uploaded yet; None is
            ``stepwell/scratch`` in the user's cache, ``~/.cache``.
        most_local_bytes: At a URL: bytes of rows of a group on its machine at most. Uploaded ones
            are removed there first; if the object store is down for so long that the others take
            more, the group waits.

    Raises:
        ValueError: A number is not positive, or the path is empty.
        TypeError: The path is no path.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> Folders(folder).stores()
        []
    """

    path: str | os.PathLike[str]
    seal_seconds: float = 60.0
    scratch: str | os.PathLike[str] | None = None
    most_local_bytes: int = 10 << 30

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"path: expected a folder or a URL, got {self.path!r}")
        if not os.fspath(self.path):
            raise ValueError("path: expected a folder or a URL, got an empty name")
        if self.url is None:  # the program, or an actor, may go to another folder
            object.__setattr__(self, "path", os.path.abspath(self.path))
        check_positive("seal_seconds", self.seal_seconds)
        check_positive("most_local_bytes", self.most_local_bytes)

    @property
    def url(self) -> str | None:
        """The URL; None for a folder."""
        return url_of(self.path)

    def stores(self) -> list[str]:
        """The stores that are there now: folders to open, or URLs to pull.

        Of several attempts of a group that played the same rows, the one with the most rows is
        listed.

        Raises:
            StoreCorrupt: A record of an attempt is damaged.
            ConnectionError: The object store failed.
        """
        if self.url is None:
            found = sorted(Path(self.path).glob("group-*"))
            return [
                str(each)
                for each in found
                if _GROUP.fullmatch(each.name) and DiskStorage.exists(each)
            ]
        return [url for url, _ in _stores_at(self.url)]


def sessions_in(folders: Folders) -> int:
    """Number of sessions that the groups' stores have; ValueError where it is no folder of them."""
    if folders.url is None and os.path.lexists(folders.path):
        is_folder = os.path.isdir(folders.path)
        if not is_folder or DiskStorage.exists(Path(folders.path)):
            raise ValueError(
                f"replay: expected a folder of the groups' stores, got {os.fspath(folders.path)}, "
                f"which is {'a store itself' if is_folder else 'no folder'}; choose another one"
            )
    if folders.url is not None:
        return next((len(one.store.facts.sessions) for _, one in _stores_at(folders.url)), 0)
    for path in folders.stores():
        with DiskStorage.open(path, read_only=True) as storage:
            return len(storage.sessions)
    return 0


class GroupFolder:
    """The folder in which one attempt of a group writes, and its way to the URL."""

    # The group makes a store in `path`, calls `after_add` after each call of its `add`, and `close`
    # after closing the store. An attempt that ``supersedes`` plays the rows of the one before
    # again: only one of them counts, else both do. StoreLocked: this attempt, or a later one, has
    # begun elsewhere already.

    def __init__(
        self,
        folders: Folders | str,
        group: int,
        attempt: int,
        *,
        supersedes: bool = True,
    ) -> None:
        self._folders = folders if isinstance(folders, Folders) else Folders(folders)
        self._group, self._attempt = group, attempt
        url = self._folders.url
        self.url = None if url is None else _attempt_url(url, group, attempt)
        """The URL of the group's store; None where it is the folder itself."""
        self._thread: UploadThread | None = None
        self._sealed_at = time.monotonic()
        if url is None:
            self.path = Path(self._folders.path) / f"group-{group:05}"
            """The folder to write into, with room for one store."""
            return
        objects = Objects(url, is_writer=True)
        _begin(objects, group, attempt, supersedes=supersedes)
        scratch = self._folders.scratch
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        below = cache / "stepwell" / "scratch" if scratch is None else Path(scratch)
        name = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
        self._scratch = below / name / f"group-{group:05}"
        self.path = self._scratch / f"attempt-{attempt}"
        shutil.rmtree(self.path, ignore_errors=True)  # of a run that left no record
        self._scratch.mkdir(parents=True, exist_ok=True)

    def after_add(self, storage: DiskStorage) -> None:
        """Complete the newest segment if it is time to; wait while too much is not uploaded."""
        # The storage is that in `path`; this is called in the thread that adds to it.
        if self.url is None:
            return
        if self._thread is None:
            objects = Objects(self.url, is_writer=True)
            uploader = Uploader(self.path, objects, keep_evicted=not storage.facts.is_ring)
            self._thread = UploadThread(uploader, self.url, self._upload_leftovers)
        self._thread.check()
        if time.monotonic() - self._sealed_at >= self._folders.seal_seconds:
            self._seal(storage)
        if self._bytes(self._thread, storage) > self._folders.most_local_bytes:
            self._make_room(self._thread, storage)

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Upload the rest, once the store is closed, and remove the folder where that is done."""
        # If the object store fails, it is tried for so many seconds; then the rows stay in `path`.
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if not thread.finish(seconds):
            raise ConnectionError(
                f"{self.url}: not all rows could be uploaded in {seconds:g} s ({thread.trouble}); "
                f"they are in {self.path}: send them with: stepwell push {self.path} "
                f"{self.url}"
            )
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in (self._scratch, self._scratch.parent):
            with contextlib.suppress(OSError):  # if it is empty
                folder.rmdir()

    def _seal(self, storage: DiskStorage) -> None:
        assert self._thread is not None
        storage.seal()
        self._sealed_at = time.monotonic()
        self._thread.wake()

    def _make_room(self, thread: UploadThread, storage: DiskStorage) -> None:
        """Remove what is uploaded; wait while the rest is too much."""
        most = self._folders.most_local_bytes
        told = -_TELL_SECONDS
        began = time.monotonic()
        self._seal(storage)
        while True:
            thread.check()
            newest = thread.uploader.newest
            if newest is not None and not storage.facts.is_ring:
                storage.drop_before(newest.store.next.row_id)
            waiting = self._bytes(thread, storage)
            if waiting <= most:
                return
            seconds = time.monotonic() - began
            if seconds - told >= _TELL_SECONDS:
                told = seconds
                _LOG.warning(
                    "%s: group %d waits: %d bytes are not uploaded, expected at most %d (%s)",
                    *(self.url, self._group, waiting, most, thread.trouble or "slow"),
                )
            thread.wake()
            thread.wait(_WAIT_SECONDS)

    def _bytes(self, thread: UploadThread, storage: DiskStorage) -> int:
        """Bytes of the segments in the folder; of a ring, which keeps all, of those that wait."""
        done = thread.uploader.uploaded_numbers() if storage.facts.is_ring else set[int]()
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                found = _SEGMENT.fullmatch(entry.name)
                if found is not None and int(found[1]) not in done:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    def _upload_leftovers(self) -> None:
        """Upload what earlier attempts on this machine have stored, and not uploaded."""
        assert self._folders.url is not None
        for attempt in range(self._attempt):
            path = self._scratch / f"attempt-{attempt}"
            if not DiskStorage.exists(path):
                continue
            url = _attempt_url(self._folders.url, self._group, attempt)
            try:
                with DiskStorage.open(path) as storage:  # recovers it, and seals what is there
                    keep_evicted = not storage.facts.is_ring
                Uploader(path, Objects(url, is_writer=True), keep_evicted=keep_evicted).upload(
                    is_finished=True
                )
            except StoreLocked as error:
                _LOG.warning("%s: not uploaded, as it is in use: %s", path, error)
                continue
            except (StoreCorrupt, StoreNotFound) as error:
                _LOG.warning("%s: not uploaded: %s", path, error)
                continue
            shutil.rmtree(path, ignore_errors=True)


def _stores_at(url: str) -> Iterator[tuple[str, UploadedStore]]:
    """The URLs and newest manifests of the groups' stores that count."""
    try:
        objects = Objects(url)
    except FileNotFoundError:
        return
    for group, chains in sorted(_chains(objects).items()):
        for chain in chains:
            there: dict[int, UploadedStore] = {}
            for attempt in chain:
                with contextlib.suppress(FileNotFoundError):  # a folder that is not made yet
                    newest = newest_manifest(Objects(_attempt_url(url, group, attempt)))
                    if newest is not None:
                        there[attempt] = newest
            if there:
                longest = max(there, key=lambda one: (there[one].store.next.row_id, one))
                yield _attempt_url(url, group, longest), there[longest]


def _begin(objects: Objects, group: int, attempt: int, *, supersedes: bool) -> None:
    """Record that an attempt begins; StoreLocked where it, or a later one, has begun already."""
    begun = [other for chain in _chains(objects, group).get(group, []) for other in chain]
    data = {
        "group": group,
        "attempt": attempt,
        "supersedes": supersedes,
        "by": f"pid {os.getpid()} on {socket.gethostname()}",
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
    }
    name = f"{_RECORDS}/group-{group:05}-attempt-{attempt}.json"
    is_late = max(begun, default=-1) >= attempt
    if is_late or not objects.create(name, json.dumps(data).encode()):
        raise StoreLocked(
            f"{objects.url} has attempt {max(begun, default=attempt)} of group {group} already, "
            f"expected none from {attempt} on: collect to another URL, or, if this process was "
            f"taken for dead, let it end",
            holder="another process",
        )


def _chains(objects: Objects, group: int | None = None) -> dict[int, list[list[int]]]:
    """The attempts of the groups, or of one, in chains: those of a chain played the same rows."""
    numbers: list[tuple[int, int, str]] = []
    for each in objects.listing(_RECORDS):
        found = _RECORD.fullmatch(each.name)
        if found is not None and group in (None, int(found[1])):
            numbers.append((int(found[1]), int(found[2]), each.name))
    chains: dict[int, list[list[int]]] = {}
    for number, attempt, name in sorted(numbers):
        of_group = chains.setdefault(number, [])
        if of_group and _supersedes(objects, name, number, attempt):
            of_group[-1].append(attempt)
        else:
            of_group.append([attempt])
    return chains


def _supersedes(objects: Objects, name: str, group: int, attempt: int) -> bool:
    try:
        data = parse(objects.get(name, _MOST_RECORD_BYTES))
        for key, expected in (("group", group), ("attempt", attempt)):
            whole(member(data, key), key, expected, expected)
        supersedes = member(data, "supersedes")
        if not isinstance(supersedes, bool):
            raise ValueError("supersedes: expected true or false, got something else")
    except ValueError as error:
        raise StoreCorrupt(
            f"{objects.place(name)} is not what a group has written: {error}; remove it"
        ) from error
    return supersedes


def _attempt_url(url: str, group: int, attempt: int) -> str:
    return f"{url}/group-{group:05}/attempt-{attempt}"


def next_pause(seconds: float) -> float:
    """The pause after another failure: twice as long, up to a minute."""
    return min(2 * seconds, _MOST_PAUSE_SECONDS)


class UploadThread:
    """Uploads what is sealed in a folder whenever `wake` is called."""

    # While the object store fails it tries again, with growing pauses; `first` is called before all
    # else, and again while it fails so. Any other error ends the thread, and is raised by `check`.

    def __init__(self, uploader: Uploader, place: str, first: Callable[[], None]) -> None:
        self.uploader = uploader
        self._place = place
        self._first: Callable[[], None] | None = first
        self._changed = Condition()
        self._is_awake = self._is_ending = self._is_stopped = False
        self._failure: BaseException | None = None
        self.trouble: OSError | None = None
        """The error of the last try; None if it succeeded."""
        self._thread = Thread(target=self._run, name="stepwell-upload", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Upload what is sealed now."""
        with self._changed:
            self._is_awake = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something was uploaded, or the thread has failed; at most so long."""
        with self._changed:
            if self._failure is None:
                self._changed.wait(seconds)

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self._failure is not None:
            raise self._failure

    def finish(self, seconds: float) -> bool:
        """Upload the rest as finished, and end; False if that takes longer than these seconds."""
        with self._changed:
            self._is_ending = self._is_awake = True
            self._changed.notify_all()
        self._thread.join(seconds)
        is_done = not self._thread.is_alive()
        self.stop()
        self.check()
        return is_done

    def stop(self) -> None:
        """End soon, without uploading the rest."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_awake or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._is_awake, is_last = False, self._is_ending
                try:
                    if self._first is not None:
                        self._first()
                        self._first = None
                    self.uploader.upload(is_finished=is_last)
                except OSError as error:
                    self.trouble = error
                    _LOG.warning("%s; trying again in %g s", error, pause)
                    with self._changed:
                        self._is_awake = True
                        self._changed.wait_for(lambda: self._is_stopped, pause)
                    pause = next_pause(pause)
                    continue
                if self.trouble is not None:
                    _LOG.info("%s: uploads work again", self._place)
                pause, self.trouble = _FIRST_PAUSE_SECONDS, None
                with self._changed:
                    self._changed.notify_all()
                if is_last:
                    return
        except BaseException as error:  # it is raised where rows are added
            with self._changed:
                self._failure = error
                self._changed.notify_all()
