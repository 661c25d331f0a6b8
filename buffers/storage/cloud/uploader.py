"""Uploads the sealed segments of a store's folder to an object store."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepwell.buffers.errors import StoreCorrupt, StoreLocked
from stepwell.buffers.storage.cloud.manifest import (
    LEDGERS,
    MANIFESTS,
    MOST_MANIFEST_BYTES,
    SEGMENTS,
    CloudManifest,
    UploadedLedger,
    UploadedSegment,
    manifest_name,
    manifest_number,
)
from stepwell.buffers.storage.cloud.objects import Objects
from stepwell.buffers.storage.disk.files import Files, as_bytes
from stepwell.buffers.storage.disk.folder import LEDGER, StoreFolder
from stepwell.buffers.storage.disk.format import Manifest, NextNumbers
from stepwell.buffers.storage.disk.segment import (
    LoadedSegment,
    load,
    open_segment,
    read_header,
    segment_path,
)

__all__ = ["UploadProgress", "Uploader", "newest_manifest"]

_LOG = logging.getLogger("stepwell.buffers.storage")
_PUBLISH_SECONDS = 60.0  # of a long upload: its first segments can be read before the last is there
_GRACE_SECONDS = 600.0  # for readers of the manifests before
_MANIFESTS_KEPT = 8
_RACES = 10
# An upload that was interrupted is continued for half a day: after a whole one its objects go.
_TRUSTED, _STRAY = datetime.timedelta(hours=12), datetime.timedelta(hours=24)


class UploadProgress(NamedTuple):
    """The progress of an upload.

    Args:
        segments: Sealed segments of the folder that are uploaded.
        of_segments: All sealed segments of the folder.
        nbytes: Bytes of the uploaded ones.
        of_nbytes: Bytes of all.
        sent_bytes: Bytes that this process has sent; an earlier one may have sent the rest.
    """

    segments: int
    of_segments: int
    nbytes: int
    of_nbytes: int
    sent_bytes: int


class _EvictedError(Exception):
    """The folder's writer has evicted a segment since the manifest was read."""


class _Local(NamedTuple):
    """The folder at one moment."""

    manifest: Manifest
    ledger: bytes | None


class Uploader:
    """Uploads what is sealed in a store's folder; it only reads the folder, and takes no lock.

    Segments go up as objects that never change, then a manifest that names them gets the next
    number, if no other object has it: so of two uploaders to one place, one is refused. A reader
    sees what the newest manifest names. Every call can be repeated after an error, also by
    another process: what is there is not sent again.

    Args:
        folder: The store's folder.
        objects: The place to upload to.
        keep_evicted: Segments that are evicted from the folder stay uploaded. Then the ledger is
            not uploaded: no rows are gone.
        clock: The time in seconds, for `seconds` between manifests and deletions.
    """

    def __init__(
        self,
        folder: Path,
        objects: Objects,
        *,
        keep_evicted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = StoreFolder(folder, Files())
        self._objects = objects
        self._keep_evicted = keep_evicted
        self._clock = clock
        self._writer = secrets.token_hex(8)
        self._newest: CloudManifest | None = None
        self._number = -1  # of the newest manifest that was found or written
        self._is_begun = False
        self._there: dict[str, int] = {}  # names and lengths of objects of an earlier upload
        self._sent: dict[int, UploadedSegment] = {}
        self._deletions: dict[str, float] = {}  # names, and when they are due
        self._published_at = clock()
        self._sent_bytes = 0

    @property
    def newest(self) -> CloudManifest | None:
        """The newest manifest that this object has written, or found at first."""
        return self._newest

    @property
    def sent_bytes(self) -> int:
        """Bytes of segments and ledgers that this object has sent."""
        return self._sent_bytes

    def uploaded_numbers(self) -> set[int]:
        """Numbers of the segments that the newest manifest names."""
        return set() if self._newest is None else {each.number for each in self._newest.segments}

    def upload(
        self,
        *,
        is_finished: bool = False,
        on_progress: Callable[[UploadProgress], None] = lambda progress: None,
    ) -> None:
        """Upload what is sealed now, and publish it.

        Args:
            is_finished: Note in the manifest that the folder is not being written any more.
            on_progress: Called after each segment.

        Raises:
            StoreNotFound: There is no store in the folder.
            StoreCorrupt: The folder, or what was uploaded, is damaged.
            StoreLocked: Another process uploads to the same place, or another store is there.
            OSError: The object store failed: call again later.
        """
        while True:
            try:
                self._upload(is_finished, on_progress)
            except _EvictedError:
                continue
            self._delete()
            return

    def _upload(self, is_finished: bool, on_progress: Callable[[UploadProgress], None]) -> None:
        local = self._look()
        self._begin(local.manifest.store)
        sealed = local.manifest.sealed
        total, nbytes = sum(entry.nbytes for entry in sealed), 0
        for count, entry in enumerate(sealed):
            if entry.number not in self._sent:
                newest = max(self.uploaded_numbers(), default=-1)
                is_due = self._clock() - self._published_at >= _PUBLISH_SECONDS
                if count and is_due and newest < entry.number:  # never less than before
                    # What is there so far, as if the next segment were still open.
                    self._publish(self._cut(local.manifest, count), local.ledger, False)
                self._send(local.manifest, entry.number)
            nbytes += entry.nbytes
            on_progress(UploadProgress(count + 1, len(sealed), nbytes, total, self._sent_bytes))
        if local.manifest.open is not None:
            is_finished = False
            local = local._replace(manifest=self._cut(local.manifest, len(sealed)))
        self._publish(local.manifest, local.ledger, is_finished)

    def _look(self) -> _Local:
        """Read manifest and ledger of the folder as they belong together."""
        while True:
            path = self._folder.path / LEDGER
            before = _identity(path)
            manifest = self._folder.read_newest_manifest()
            ledger: bytes | None = None
            if before is not None and not self._keep_evicted:
                with self._folder.files.open(path) as file:
                    size = self._folder.files.size(file)
                    ledger = self._folder.files.pread(file, size, 0)
            if _identity(path) == before:
                return _Local(manifest, ledger)

    def _begin(self, store: bytes) -> None:
        """Find out what is uploaded."""
        if self._is_begun:
            return
        found = newest_manifest(self._objects)
        if found is not None and found.store.store != store:
            raise StoreLocked(
                f"{self._objects.url} holds the store {found.store.store.hex()}, expected none or "
                f"{store.hex()}, that of {self._folder.path}: upload to another place",
                holder="another store",
            )
        number = -1 if found is None else found.number
        live = set[str]() if found is None else found.names
        now = datetime.datetime.now(datetime.UTC)
        there: dict[str, int] = {}
        strays: list[str] = []
        for folder in (SEGMENTS, LEDGERS):
            for each in self._objects.listing(folder):
                if each.name in live or now - each.modified < _TRUSTED:
                    there[each.name] = each.nbytes
                elif now - each.modified > _STRAY:
                    strays.append(each.name)
        for each in self._objects.listing(MANIFESTS):
            other = manifest_number(each.name)
            if other is not None and other <= number - _MANIFESTS_KEPT:
                strays.append(each.name)
        self._newest, self._number, self._there = found, number, there
        self._deletions = dict.fromkeys(strays, self._clock())
        if found is not None:
            _LOG.info("%s: goes on after manifest %d", self._objects.url, found.number)
        self._is_begun = True

    def _cut(self, manifest: Manifest, count: int) -> Manifest:
        """The manifest as it was when only so many segments were there, and all were sealed."""
        following = manifest.numbers[count]
        path = segment_path(self._folder.path, following)
        with self._reading(following), open_segment(self._folder.files, path) as file:
            header = read_header(self._folder.files, file, path)
        numbers = NextNumbers(following, header.position, *header.counters)
        return replace(manifest, sealed=manifest.sealed[:count], open=None, next=numbers)

    @contextlib.contextmanager
    def _reading(self, number: int) -> Generator[None]:
        """Distinguish a segment that the writer has evicted from a damaged one."""
        try:
            yield
        except StoreCorrupt as error:
            if number in self._folder.read_newest_manifest().numbers:
                raise
            raise _EvictedError from error

    def _send(self, manifest: Manifest, number: int) -> None:
        """Upload a segment."""
        files, path = self._folder.files, segment_path(self._folder.path, number)
        with self._reading(number):
            loaded = load(files, self._folder.path, manifest, number)
            with open_segment(files, path) as file:
                memory = files.map(file)[: loaded.entry.nbytes]
        digest = hashlib.blake2b(as_bytes(memory), digest_size=16).hexdigest()
        uploaded = UploadedSegment(number, digest, loaded.segment.header.data_offset)
        self._put(uploaded.heads_name, _heads(loaded, memory))
        self._put(uploaded.name, as_bytes(memory))
        self._sent[number] = uploaded

    def _put(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, unless an earlier upload did."""
        if self._there.get(name) == len(data):
            return
        self._objects.put(name, data)
        self._sent_bytes += len(data)
        self._there[name] = len(data)
        self._deletions.pop(name, None)

    def _publish(self, manifest: Manifest, ledger: bytes | None, is_finished: bool) -> None:
        """Write the next manifest, if it says anything new."""
        before = self._newest
        segments = [self._sent[entry.number] for entry in manifest.sealed]
        if self._keep_evicted and before is not None:
            first = min((each.number for each in segments), default=manifest.next.segment)
            kept = [entry for entry in before.store.sealed if entry.number < first]
            manifest = replace(manifest, sealed=(*kept, *manifest.sealed))
            segments = [*before.segments[: len(kept)], *segments]
        place: UploadedLedger | None = None
        if ledger is not None:
            digest = hashlib.blake2b(ledger, digest_size=16).hexdigest()
            place = UploadedLedger(digest, len(ledger))
            self._put(place.name, ledger)
        new = CloudManifest(
            self._number + 1, self._writer, manifest, tuple(segments), place, is_finished
        )
        # The first one always, so that an earlier uploader that is still alive is refused.
        while before is None or replace(new, number=before.number) != before:
            before = self._create(new)
            new = replace(new, number=before.number + 1)
        for number in set(self._sent) - {each.number for each in segments}:
            del self._sent[number]
        self._published_at = self._clock()

    def _create(self, new: CloudManifest) -> CloudManifest:
        """Write a manifest, unless another uploader has gone on meanwhile.

        Returns:
            The manifest, or another one that this object has written with the same number, if the
            answer to that was lost.

        Raises:
            StoreLocked: Another uploader has gone on.
        """
        name = manifest_name(new.number)
        if not self._objects.create(name, new.pack()):
            data = self._objects.get(name, MOST_MANIFEST_BYTES)
            new = CloudManifest.unpack(data, new.number, self._objects.place(name))
            if new.writer != self._writer:
                raise self._refused(new.number)
        # Manifests that old are deleted, so that a free number alone proves nothing.
        self._check_newest(new.number)
        gone = set[str]() if self._newest is None else self._newest.names - new.names
        self._deletions.update(dict.fromkeys(gone, self._clock() + _GRACE_SECONDS))
        for each in gone:
            self._there.pop(each, None)
        if new.number >= _MANIFESTS_KEPT:
            self._deletions[manifest_name(new.number - _MANIFESTS_KEPT)] = self._clock()
        self._newest, self._number = new, new.number
        _LOG.debug("%s: manifest %d, %d segments", self._objects.url, new.number, len(new.segments))
        return new

    def _check_newest(self, number: int) -> None:
        later = self._objects.listing(MANIFESTS, after=manifest_name(number))
        if any(manifest_number(each.name) is not None for each in later):
            raise self._refused(number + 1)

    def _refused(self, number: int) -> StoreLocked:
        return StoreLocked(
            f"{self._objects.place(manifest_name(number))} was written by another process, "
            f"expected no other that uploads to {self._objects.url}: end one of the two; what is "
            f"stored in {self._folder.path} stays there",
            holder="another process",
        )

    def _delete(self) -> None:
        """Remove objects that no manifest names any more, once their time has come."""
        due = [name for name, at in self._deletions.items() if at <= self._clock()]
        if not due:
            return
        self._check_newest(self._number)
        for name in due:
            self._objects.delete(name)
            self._there.pop(name, None)
            del self._deletions[name]


def newest_manifest(objects: Objects, known: CloudManifest | None = None) -> CloudManifest | None:
    """The manifest with the largest number.

    Args:
        objects: Where to look.
        known: A manifest that was read before: it is returned if there is no newer one.

    Raises:
        StoreCorrupt: It is damaged.
        StoreTooNew: A later version wrote it.
        OSError: The object store failed.
    """
    after = None if known is None else manifest_name(known.number)
    name = MANIFESTS
    for _ in range(_RACES):
        listed = objects.listing(MANIFESTS, after)
        numbers = [manifest_number(each.name) for each in listed]
        number = max((each for each in numbers if each is not None), default=None)
        if number is None:
            return known
        name = manifest_name(number)
        try:
            data = objects.get(name, MOST_MANIFEST_BYTES)
        except FileNotFoundError:  # many newer ones were written meanwhile
            continue
        return CloudManifest.unpack(data, number, objects.place(name))
    raise StoreCorrupt(
        f"{objects.place(name)} is listed, but not there; check who else writes to {objects.url}"
    )


def _heads(loaded: LoadedSegment, memory: np.ndarray) -> bytes:
    """The heads of a segment's chunks, one after the other."""
    slots = loaded.committed.slots
    begins, lengths = slots["offset"].tolist(), slots["head_bytes"].tolist()
    return b"".join(
        memory[begin : begin + length].tobytes().ljust(length, b"\0")
        for begin, length in zip(begins, lengths, strict=True)
    )


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Numbers that tell a file from one that replaces it, or from itself with more in it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size
