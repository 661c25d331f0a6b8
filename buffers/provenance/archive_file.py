"""The file of an archive: sections of bytes, each under a checksum, and all under a digest.

`docs/archive-format.md` describes every byte. Nothing in a file is used before it is checked.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
from pathlib import Path
from typing import IO, NamedTuple, Self
from zlib import crc32

import zstandard

from stepwell.buffers.errors import StoreCorrupt, StoreTooNew
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.storage.disk.files import Files

__all__ = ["FORMAT", "ArchiveFile", "SectionWriter", "compress"]

FORMAT = 1
"""The version that is written, and the newest that is read."""

_MAGIC = b"\x93SWA\r\n\x1a\n"
_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<8sIQQI")
_COUNT = struct.Struct("<I")
_DIGEST_BYTES = hashlib.sha256().digest_size
_MOST_SECTIONS = 1 << 20
# The contents of a section are at most so large, so that none takes much memory by surprise.
_CONTENT_BYTES, _MOST_RATIO = 64 << 20, 1 << 10
# A zstd frame begins with 6 bytes at least, and 4 bytes hold 128 KiB at most.
_FRAME_BYTES, _PART_BYTES, _PART_HOLDS = 6, 4, 1 << 17
_LEVEL, _FAST_LEVEL, _LONG_BYTES = 19, 9, 1 << 20
_RUN_BYTES = 1 << 20


class _Entry(NamedTuple):
    """The place of a section: ``nbytes`` bytes of the file that hold ``content_bytes`` bytes."""

    offset: int
    nbytes: int
    content_bytes: int
    crc: int


def compress(contents: bytes) -> bytes:
    """The bytes of a section: a zstd frame, or the contents themselves if they are as short."""
    level = _LEVEL if len(contents) <= _LONG_BYTES else _FAST_LEVEL
    packed = zstandard.ZstdCompressor(level=level, write_content_size=True).compress(contents)
    return packed if len(packed) < len(contents) else contents


class SectionWriter:
    """Writes the sections of a new archive.

    Args:
        file: An empty file that is open for writing.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._table: list[bytes] = []
        self._write(_HEADER.pack(_MAGIC, FORMAT, 0))

    def add(self, kind: str, contents: bytes, number: int = 0) -> None:
        """Write a section.

        Args:
            kind: Up to eight letters.
            contents: What it holds.
            number: Distinguishes sections of one kind.
        """
        packed = compress(contents)
        if len(contents) > _most_contents(len(packed)):
            raise ValueError(
                f"an archive would hold {len(contents):,} bytes in one section of kind {kind}, "
                f"expected at most {_CONTENT_BYTES:,}: archive fewer episodes"
            )
        self._table.append(
            _ENTRY.pack(kind.encode(), number, len(packed), len(contents), crc32(packed))
        )
        self._write(packed)

    def finish(self) -> None:
        """Write the table of the sections, and the digest of the whole file."""
        for entry in self._table:
            self._write(entry)
        self._write(_COUNT.pack(len(self._table)))
        self._file.write(self._digest.digest())

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


class ArchiveFile:
    """The sections of an archive, opened for reading.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no archive.
        StoreTooNew: A later version wrote it.
        StoreCorrupt: Any of its bytes has changed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not stat.S_ISREG(self.path.stat().st_mode):  # opening a pipe may never return
            raise ValueError(
                f"{self.path} is no archive: expected a file of `stepwell archive`, got a folder, "
                f"a pipe or a device; name another"
            )
        self._files = Files()
        self._file = io.FileIO(self.path, "rb")
        try:
            self.nbytes = self._files.size(self._file)
            self._entries = self._read_table()
        except BaseException:
            self._file.close()
            raise

    def __contains__(self, section: tuple[str, int]) -> bool:
        return section in self._entries

    @property
    def sections(self) -> list[tuple[str, int]]:
        """Kind and number of all sections, in the order of the file."""
        return list(self._entries)

    def read(self, kind: str, number: int = 0) -> bytes:
        """The contents of a section.

        Raises:
            StoreCorrupt: There is no such section, or it holds something else than it declares.
        """
        entry = self._entries.get((kind, number))
        if entry is None:
            raise self.error(f"section {kind} {number} is missing")
        check_free_memory(entry.content_bytes, f"section {kind} of {self.path}")
        packed = self._files.pread(self._file, entry.nbytes, entry.offset)
        if crc32(packed) != entry.crc:
            raise self.error(f"section {kind} {number} has another checksum")
        if entry.nbytes == entry.content_bytes:
            return packed
        try:
            holds = zstandard.frame_content_size(packed)
            if holds != entry.content_bytes:
                raise self.error(
                    f"section {kind} {number} holds {holds} bytes, expected {entry.content_bytes}"
                )
            return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise self.error(f"section {kind} {number} cannot be decompressed: {error}") from error

    def error(self, what: str) -> StoreCorrupt:
        """The error for a file that no writer has made, or that has changed since."""
        return StoreCorrupt(f"{self.path} is damaged: {what}; restore it from a copy")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_table(self) -> dict[tuple[str, int], _Entry]:
        self._check_header()
        after = _COUNT.size + _DIGEST_BYTES
        room = self.nbytes - _HEADER.size - after
        if room < 0:
            raise self.error(f"it has {self.nbytes} bytes, expected {_HEADER.size + after} or more")
        (count,) = _COUNT.unpack(self._files.pread(self._file, _COUNT.size, self.nbytes - after))
        self._check_digest()
        if count > min(_MOST_SECTIONS, room // _ENTRY.size):
            raise self.error(f"it declares {count} sections, which do not fit in it")
        table_bytes = count * _ENTRY.size
        table = self._files.pread(self._file, table_bytes, self.nbytes - after - table_bytes)
        found: dict[tuple[str, int], _Entry] = {}
        offset = _HEADER.size
        for kind, number, nbytes, content_bytes, crc in _ENTRY.iter_unpack(table):
            name = kind.rstrip(b"\0").decode("ascii", "replace")
            entry = _Entry(offset, nbytes, content_bytes, crc)
            if (name, number) in found or not _is_plausible(entry):
                raise self.error(
                    f"section {name!r} {number} comes twice, or declares {content_bytes} bytes in "
                    f"{nbytes}"
                )
            found[name, number] = entry
            offset += nbytes
        if offset + table_bytes + after != self.nbytes:
            raise self.error(f"its sections end at {offset}, expected another place")
        return found

    def _check_header(self) -> None:
        start = self._files.pread(self._file, _HEADER.size, 0)
        if not start.startswith(_MAGIC[:4]):
            raise ValueError(
                f"{self.path} is no archive: expected a file of `stepwell archive`, which begins "
                f"with {_MAGIC!r}, got one that begins with {start[: len(_MAGIC)]!r}; name another"
            )
        if len(start) < _HEADER.size or not start.startswith(_MAGIC):
            raise self.error("its first bytes have changed, as if it had been sent as text")
        _, version, _ = _HEADER.unpack(start)
        if version != FORMAT:
            raise StoreTooNew(
                f"{self.path} is format {version}, this stepwell reads {FORMAT}: upgrade stepwell"
            )

    def _check_digest(self) -> None:
        """Compare the digest of all bytes."""
        digest, end = hashlib.sha256(), self.nbytes - _DIGEST_BYTES
        for offset in range(0, end, _RUN_BYTES):
            digest.update(self._files.pread(self._file, min(_RUN_BYTES, end - offset), offset))
        if digest.digest() != self._files.pread(self._file, _DIGEST_BYTES, end):
            raise self.error("its bytes have another digest than its last 32 bytes say")


def _most_contents(nbytes: int) -> int:
    """The most bytes that a section of ``nbytes`` bytes may hold."""
    return _CONTENT_BYTES + _MOST_RATIO * nbytes


def _is_plausible(entry: _Entry) -> bool:
    """True if the section can hold as much as it declares."""
    nbytes, content_bytes = entry.nbytes, entry.content_bytes
    least = _FRAME_BYTES + _PART_BYTES * (content_bytes // _PART_HOLDS)
    return nbytes <= content_bytes <= _most_contents(nbytes) and min(least, content_bytes) <= nbytes
