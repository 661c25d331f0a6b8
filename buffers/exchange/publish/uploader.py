"""Stores at a URL: sends what is sealed in a store's folder, and lists and fetches what is there.

A segment is an object named by its number and its fingerprint, so that it never changes. A small
numbered manifest, which names the objects, is written last, and only if no other object has its
number: whoever reads sees a whole store, and of two processes that send to one place one is
refused. What is there is not sent again, also after a kill.

``manifests/manifest-00000012.json`` has two lines: the manifest of the folder, as it would be with
only the uploaded segments, then an object of the same form with the names of the objects.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ...base.errors import StoreCorrupt, StoreLocked, StoreNotFound
from ...base.untrusted_json import items, json_text, member, parse, text, whole
from ...storage.disk.files import Files, as_bytes
from ...storage.disk.folder import StoreFolder
from ...storage.disk.format import (
    FORMAT,
    MOST_FACTS_BYTES,
    MOST_SLOTS,
    SLOT,
    Manifest,
    NextNumbers,
    align,
    too_new_error,
)
from ...storage.disk.segment import load, open_segment, read_header, segment_path
from .objects import Objects
from .remote import Listing, RemoteFile, Tell

_LOG = logging.getLogger("stepwell.buffers.storage")
_MANIFESTS_KEPT = 8
_RACES = 10
# An upload that was interrupted is continued for half a day: after a whole one its objects go.
_TRUSTED, _STRAY = datetime.timedelta(hours=12), datetime.timedelta(hours=24)


MANIFESTS, SEGMENTS = "manifests", "segments"
"""The folders of the objects."""

MANIFEST_FILE = "manifest.json"
"""The manifest in a store's folder."""

MOST_MANIFEST_BYTES = 2 * MOST_FACTS_BYTES
"""Length of a manifest at most."""

_MOST_MANIFESTS = 10**8
_MOST_TOP_BYTES = MOST_FACTS_BYTES + 2 * align(MOST_SLOTS * SLOT.itemsize)
_NAME = re.compile(rf"{MANIFESTS}/manifest-([0-9]{{8}})\.json")
_DIGEST = re.compile("[0-9a-f]{32}")


def manifest_name(number: int) -> str:
    """The name of the manifest with a number."""
    whole(number, "number of a manifest", 0, _MOST_MANIFESTS - 1)
    return f"{MANIFESTS}/manifest-{number:08}.json"


def manifest_number(name: str) -> int | None:
    """The number in the name of a manifest; None for another name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


class UploadedSegment(NamedTuple):
    """The object of a segment."""

    number: int
    digest: str
    """Fingerprint of its bytes, a part of the object's name: so it never changes."""
    top_bytes: int
    """Length of its header and slot tables, which come first."""

    @property
    def path(self) -> str:
        """The name of its file in the folder."""
        return segment_path(Path(), self.number).name

    @property
    def name(self) -> str:
        """Its name."""
        return f"{SEGMENTS}/segment-{self.number:08}-{self.digest}.bin"


@dataclass(frozen=True, slots=True)
class UploadedStore:
    """The part of a store that is uploaded."""

    number: int  # of this manifest: the one with the largest number counts
    writer: str  # name of the uploader that wrote it
    store: Manifest  # of the folder, with the uploaded segments alone; all of them are sealed
    segments: tuple[UploadedSegment, ...] = ()  # their objects, in the same order
    is_finished: bool = False  # all of the folder is uploaded, and it was not being written then

    @property
    def short_name(self) -> str:
        """Its name, for people."""
        return f"manifest-{self.number:08}"

    @property
    def names(self) -> dict[str, str]:
        """The names of all objects that it needs, by the names of the files in the folder."""
        return {each.path: each.name for each in self.segments}

    @property
    def files(self) -> list[RemoteFile]:
        """The files of the folder; its manifest comes last."""
        found = [
            RemoteFile(each.path, entry.nbytes, "blake2b", each.digest)
            for entry, each in zip(self.store.sealed, self.segments, strict=True)
        ]
        manifest = self.store.pack()
        digest = hashlib.blake2b(manifest, digest_size=16).hexdigest()
        return [*found, RemoteFile(MANIFEST_FILE, len(manifest), "blake2b", digest)]

    def pack(self) -> bytes:
        """The bytes of the object."""
        body = json_text(
            {
                "format": FORMAT,
                "least_reader": FORMAT,
                "number": self.number,
                "writer": self.writer,
                "segments": [[each.digest, each.top_bytes] for each in self.segments],
                "ledger": None,  # which version 0.1 expects
                "is_finished": self.is_finished,
            }
        )
        return self.store.pack() + b'{"body":%b,"crc":"%08x"}\n' % (body, crc32(body))

    @classmethod
    def unpack(cls, data: bytes, number: int, where: str) -> UploadedStore:
        """The manifest in an object at a URL, which has this number in its name."""
        first, line_end, second = data.partition(b"\n")
        store = Manifest.unpack(first + line_end, where)
        body = second[len(b'{"body":') : -len(b',"crc":"00000000"}\n')]
        if second != b'{"body":%b,"crc":"%08x"}\n' % (body, crc32(body)):
            raise StoreCorrupt(f"{where} is damaged: wrong checksum; push the store again")
        try:
            return cls._parsed(parse(body), store, number, where)
        except ValueError as error:
            raise StoreCorrupt(
                f"{where} is not what a writer has made: {error}; push the store again"
            ) from error

    @classmethod
    def _parsed(
        cls, body: dict[str, object], store: Manifest, number: int, where: str
    ) -> UploadedStore:
        least_reader = whole(member(body, "least_reader"), "least_reader")
        if least_reader > FORMAT:
            raise too_new_error(where, least_reader)
        if whole(member(body, "number"), "number") != number:
            raise ValueError(f"number: expected {number}, as in its name, got {body['number']!r}")
        if store.open is not None:
            raise ValueError(f"open: expected none, got segment {store.open}")
        places = items(member(body, "segments"), "segments", len(store.sealed))
        segments: list[UploadedSegment] = []
        for entry, place in zip(store.sealed, places, strict=True):
            digest, top_bytes = items(place, "segment", 2)
            top = whole(top_bytes, "header and slots", 4096, min(_MOST_TOP_BYTES, entry.nbytes))
            segments.append(UploadedSegment(entry.number, _digest(digest), top))
        is_finished = member(body, "is_finished")
        if not isinstance(is_finished, bool):
            raise ValueError("is_finished: expected true or false, got something else")
        writer = text(member(body, "writer"), "writer")
        return cls(number, writer, store, tuple(segments), is_finished)


def _digest(value: object) -> str:
    found = text(value, "digest")
    if not _DIGEST.fullmatch(found):
        raise ValueError(f"digest: expected 32 hexadecimal digits, got {found[:60]!r}")
    return found


class StoreAtUrl:
    """A store at a URL, as a place to fetch from, as a `Repository` is."""

    def __init__(self, objects: Objects) -> None:
        self.name = self.address = objects.url
        self._objects = objects
        self._newest: UploadedStore | None = None

    def listing(self, revision: str | None = None) -> Listing:
        """The files of the newest manifest."""
        if revision is not None:
            raise ValueError(
                f"revision: expected none, as {self.name} has one state, got {revision!r}; leave "
                f"it out"
            )
        newest = newest_manifest(self._objects)
        if newest is None:
            raise StoreNotFound(
                f"{self.name} holds no store, expected what stepwell push or Folders has sent "
                f"there: check the URL; those of a collector's groups are listed by "
                f"Folders({self.name!r}).stores()"
            )
        self._newest = newest
        return Listing(newest.short_name, {file.path: file for file in newest.files})

    def fetch(self, file: RemoteFile, folder: Path, tell: Tell | None, *, again: bool) -> Path:
        """Fetch a file of the last listing, as `Repository.fetch` does."""
        assert self._newest is not None
        folder.mkdir(exist_ok=True)
        path = folder / file.path
        if file.path == MANIFEST_FILE:
            path.write_bytes(self._newest.store.pack())
        else:
            self._objects.download(self._newest.names[file.path], path, file.size, tell)
        return path


class _EvictedError(Exception):
    """The folder's writer has evicted a segment since the manifest was read."""


class Uploader:
    """Sends what is sealed in a store's folder; it only reads the folder, and takes no lock."""

    # Every call can be repeated after an error, also by another process. With `keep_evicted` the
    # segments that are evicted from the folder stay at the place; a dry run compares everything,
    # and changes nothing.

    def __init__(
        self,
        folder: Path,
        objects: Objects,
        *,
        keep_evicted: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._folder = StoreFolder(folder, Files())
        self._objects = objects
        self._keep_evicted = keep_evicted
        self._is_dry = dry_run
        self.is_new = False
        """Nothing was there."""
        self.sent: dict[str, int] = {}
        """Bytes of the files that this object has sent, also of those evicted since, by name."""
        self.removed: set[str] = set()
        """The files that are there no longer, by the same names."""
        self._writer = secrets.token_hex(8)
        self.newest: UploadedStore | None = None
        """The newest manifest that this object has written, or found at first."""
        self._number = -1  # of the newest manifest that was found or written
        self._is_begun = False
        self._there: dict[str, int] = {}  # names and lengths of objects of an earlier upload
        self._sent: dict[int, UploadedSegment] = {}
        self._strays: list[str] = []

    @property
    def commit(self) -> str:
        """The name of that manifest."""
        return "" if self.newest is None else self.newest.short_name

    @property
    def files(self) -> dict[str, int]:
        """The lengths of the files that it names, by their names in the folder."""
        return {} if self.newest is None else {each.path: each.size for each in self.newest.files}

    def uploaded_numbers(self) -> set[int]:
        """Numbers of the segments that the newest manifest names."""
        return set() if self.newest is None else {each.number for each in self.newest.segments}

    def upload(
        self,
        *,
        is_finished: bool = False,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        """Send what is sealed now, and publish it; ``is_finished`` is noted in the manifest."""
        # `tell` is told, after each segment, the bytes that are there and those of all.
        while True:
            try:
                self._upload(is_finished, tell)
            except _EvictedError:
                continue
            return

    def _upload(self, is_finished: bool, tell: Callable[[int, int], None] | None) -> None:
        manifest = self._folder.read_newest_manifest()
        self._begin(manifest.store)
        sealed = manifest.sealed
        total, nbytes = sum(entry.nbytes for entry in sealed), 0
        for entry in sealed:
            if entry.number not in self._sent:
                self._send(manifest, entry.number)
            nbytes += entry.nbytes
            if tell is not None:
                tell(nbytes, total)
        if manifest.open is not None:
            is_finished = False
            manifest = self._without_open(manifest, manifest.open)
        self._publish(manifest, is_finished)
        if not self._is_dry:
            self._delete()

    def _begin(self, store: bytes) -> None:
        """Find out what is there."""
        if self._is_begun:
            return
        found = newest_manifest(self._objects)
        if found is not None and found.store.store != store:
            raise StoreLocked(
                f"{self._objects.url} holds the store {found.store.store.hex()}, expected none or "
                f"{store.hex()}, that of {self._folder.path}: choose another place",
                holder="another store",
            )
        number = -1 if found is None else found.number
        live = set[str]() if found is None else {*found.names.values()}
        now = datetime.datetime.now(datetime.UTC)
        for each in self._objects.listing(SEGMENTS):
            if each.name in live or now - each.modified < _TRUSTED:
                self._there[each.name] = each.nbytes
            elif now - each.modified > _STRAY:
                self._strays.append(each.name)
        for each in self._objects.listing(MANIFESTS):
            other = manifest_number(each.name)
            if other is not None and other <= number - _MANIFESTS_KEPT:
                self._strays.append(each.name)
        self.newest, self._number, self.is_new = found, number, found is None
        if found is not None:
            _LOG.info("%s: goes on after manifest %d", self._objects.url, found.number)
        self._is_begun = True

    def _without_open(self, manifest: Manifest, number: int) -> Manifest:
        """The manifest as it was before the open segment was begun."""
        path = segment_path(self._folder.path, number)
        with self._reading(number), open_segment(self._folder.files, path) as file:
            header = read_header(self._folder.files, file, path)
        numbers = NextNumbers(number, header.position, *header.counters)
        return replace(manifest, open=None, next=numbers)

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
        files, path = self._folder.files, segment_path(self._folder.path, number)
        with self._reading(number):
            loaded = load(files, self._folder.path, manifest, number)
            with open_segment(files, path) as file:
                memory = files.map(file)[: loaded.entry.nbytes]
        digest = hashlib.blake2b(as_bytes(memory), digest_size=16).hexdigest()
        uploaded = UploadedSegment(number, digest, loaded.segment.header.data_offset)
        self._put(path.name, uploaded.name, as_bytes(memory))
        self._sent[number] = uploaded

    def _put(self, path: str, name: str, data: bytes | memoryview) -> None:
        """Write a file as an object, unless an earlier upload did."""
        if self._there.get(name) == len(data):
            return
        if not self._is_dry:
            self._objects.put(name, data)
        self.sent[path] = len(data)
        self._there[name] = len(data)
        if name in self._strays:
            self._strays.remove(name)

    def _publish(self, manifest: Manifest, is_finished: bool) -> None:
        """Write the next manifest, if it says anything new."""
        before = self.newest
        segments = [self._sent[entry.number] for entry in manifest.sealed]
        if self._keep_evicted and before is not None:
            first = min((each.number for each in segments), default=manifest.next.segment)
            kept = [entry for entry in before.store.sealed if entry.number < first]
            manifest = replace(manifest, sealed=(*kept, *manifest.sealed))
            segments = [*before.segments[: len(kept)], *segments]
        new = UploadedStore(self._number + 1, self._writer, manifest, tuple(segments), is_finished)
        if before is None or before.store != manifest:
            self.sent[MANIFEST_FILE] = len(manifest.pack())
        self.removed = {each.path for each in before.files} if before is not None else set()
        self.removed -= {each.path for each in new.files}
        if self._is_dry:
            self.newest = new
            return
        # The first one always, so that an earlier uploader that is still alive is refused.
        while before is None or replace(new, number=before.number) != before:
            before = self._create(new)
            new = replace(new, number=before.number + 1)
        for number in set(self._sent) - {each.number for each in segments}:
            del self._sent[number]

    def _create(self, new: UploadedStore) -> UploadedStore:
        """Write a manifest, unless another uploader has gone on meanwhile; the one that counts."""
        # That is another one that this object has written with the same number, if the answer to
        # that was lost.
        name = manifest_name(new.number)
        if not self._objects.create(name, new.pack()):
            data = self._objects.get(name, MOST_MANIFEST_BYTES)
            new = UploadedStore.unpack(data, new.number, self._objects.place(name))
            if new.writer != self._writer:
                raise self._refused(new.number)
        # Manifests that old are deleted, so that a free number alone proves nothing.
        self._check_newest(new.number)
        before = {} if self.newest is None else self.newest.names
        gone = {*before.values()} - {*new.names.values()}
        self._strays += gone
        for each in gone:
            self._there.pop(each, None)
        if new.number >= _MANIFESTS_KEPT:
            self._strays.append(manifest_name(new.number - _MANIFESTS_KEPT))
        self.newest, self._number = new, new.number
        _LOG.debug("%s: manifest %d, %d segments", self._objects.url, new.number, len(new.segments))
        return new

    def _check_newest(self, number: int) -> None:
        later = self._objects.listing(MANIFESTS, after=manifest_name(number))
        if any(manifest_number(each.name) is not None for each in later):
            raise self._refused(number + 1)

    def _refused(self, number: int) -> StoreLocked:
        return StoreLocked(
            f"{self._objects.place(manifest_name(number))} was written by another process, "
            f"expected no other that sends to {self._objects.url}: end one of the two; what is "
            f"stored in {self._folder.path} stays there",
            holder="another process",
        )

    def _delete(self) -> None:
        """Remove objects that no manifest names any more."""
        if not self._strays:
            return
        self._check_newest(self._number)
        while self._strays:
            self._objects.delete(self._strays[-1])
            self._strays.pop()


def newest_manifest(objects: Objects) -> UploadedStore | None:
    """The manifest with the largest number."""
    name = MANIFESTS
    for _ in range(_RACES):
        numbers = [manifest_number(each.name) for each in objects.listing(MANIFESTS)]
        number = max((each for each in numbers if each is not None), default=None)
        if number is None:
            return None
        name = manifest_name(number)
        try:
            data = objects.get(name, MOST_MANIFEST_BYTES)
        except FileNotFoundError:  # many newer ones were written meanwhile
            continue
        return UploadedStore.unpack(data, number, objects.place(name))
    raise StoreCorrupt(
        f"{objects.place(name)} is listed, but not there; check who else writes to {objects.url}"
    )
