"""The manifest of an uploaded store, and the names of its objects. Pure: no calls, no clock.

``manifests/manifest-00000012.json`` has two lines: the manifest of the folder, as it would be with
only the uploaded segments, then an object of the same form with the names of the objects.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ...base.errors import StoreCorrupt
from ...base.untrusted_json import items, member, parse, text, whole
from ...storage.disk.format import (
    FORMAT,
    MOST_FACTS_BYTES,
    MOST_SLOTS,
    SLOT,
    Manifest,
    align,
    json_text,
    too_new_error,
)
from ...storage.disk.segment import segment_path
from .remote import RemoteFile

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
