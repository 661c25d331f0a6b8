"""Chunks of DreamerV3's replay: their names, the chains that they form, and their arrays."""

from __future__ import annotations

import datetime
import hashlib
import re
import string
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from stepwell.buffers.given_files import GivenFiles

__all__ = [
    "NO_CHUNK",
    "Chains",
    "Chunk",
    "base62",
    "chains_of",
    "from_base62",
    "read_chunk",
    "write_arrays",
]

NO_CHUNK: Final = bytes(16)
"""Stands in a name where no chunk follows."""

_DIGITS: Final = string.digits + string.ascii_letters
_NAME: Final = re.compile(r"([^-]+)-([0-9A-Za-z]{22})-([0-9A-Za-z]{22})-([0-9]+)\.npz")
# Before any that DreamerV3 writes itself: it takes the newest, by their names, when not all fit.
_EPOCH: Final = datetime.datetime(2000, 1, 1)


def base62(uuid: bytes) -> str:
    """How a name tells the 16 bytes of a chunk.

    Example:
        >>> base62(NO_CHUNK), base62(bytes(15) + bytes([63]))
        ('0000000000000000000000', '0000000000000000000011')
        >>> from_base62(base62(bytes(range(16)))) == bytes(range(16))
        True
    """
    number = int.from_bytes(uuid)
    digits = ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits


def from_base62(text: str) -> bytes:
    """The 16 bytes that a name tells.

    Raises:
        ValueError: They are no 16 bytes.
    """
    number = 0
    for char in text:
        number = number * 62 + _DIGITS.index(char)
    try:
        return number.to_bytes(16)
    except OverflowError:
        raise ValueError(f"expected a chunk's number below 2**128, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file of consecutive rows of one stream, as its name tells it.

    Args:
        file: The file.
        uuid: 16 bytes that no other chunk has.
        follows: Those of the chunk that goes on; `NO_CHUNK` in the end.
        rows: How many there are.
    """

    file: Path
    uuid: bytes
    follows: bytes
    rows: int

    @classmethod
    def named(cls, file: Path) -> Chunk:
        """What a file's name tells.

        Raises:
            ValueError: It is no chunk's name.
        """
        match = _NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(
                f"{file}: expected a name such as 20260131T235959F000000-<22 letters>-<22 letters>-"
                f"1024.npz, got another; remove the file if it is no chunk of DreamerV3's"
            )
        _, uuid, follows, rows = match.groups()
        return cls(file, from_base62(uuid), from_base62(follows), int(rows))


class Chains:
    """Writes rows of several streams, each as a chain of chunks.

    Names and bytes follow from the source and the rows: the same export gives the same files.

    Args:
        folder: Where the files go.
        rows: Rows of a chunk; the last one of a stream has the rest.
        source: Where the rows come from; chunks of another source have other numbers.
    """

    def __init__(self, folder: Path, rows: int, source: str) -> None:
        self._folder = folder
        self._rows = rows
        self._source = source.encode()
        self._chunks = 0
        self._open: dict[int, _Chain] = {}

    def append(self, stream: int, rows: Mapping[str, np.ndarray]) -> None:
        """Add rows [T, ...] to a stream; they are copied."""
        chain = self._open.setdefault(stream, _Chain())
        count, start = len(next(iter(rows.values()))), 0
        while start < count:
            if not chain.count:
                chain.number = self._chunks
                self._chunks += 1
            stop = min(count, start + self._rows - chain.count)
            chain.blocks.append({key: np.array(column[start:stop]) for key, column in rows.items()})
            chain.count += stop - start
            start = stop
            if chain.count == self._rows:
                self._write(stream, chain)

    def finish(self) -> None:
        """Write what is left."""
        for stream, chain in self._open.items():
            if chain.count:
                self._write(stream, chain)

    def _write(self, stream: int, chain: _Chain) -> None:
        """Write a chunk, and tell the one before what follows it."""
        keys = list(chain.blocks[0])
        arrays = {key: np.concatenate([block[key] for block in chain.blocks]) for key in keys}
        before = self._source if chain.last is None else chain.last.uuid
        uuid = _uuid_of(stream, before, arrays)
        arrays["stepid"] = _step_ids(uuid, chain.count)
        chunk = Chunk(self._folder, uuid, NO_CHUNK, chain.count)
        chunk = replace(chunk, file=self._folder / _file_name(chain.number, chunk))
        write_arrays(chunk.file, arrays)
        if chain.last is not None:
            last = replace(chain.last, follows=uuid)
            chain.last.file.rename(self._folder / _file_name(chain.last_number, last))
        chain.last, chain.last_number = chunk, chain.number
        chain.blocks, chain.count = [], 0


class _Chain:
    """Rows of one stream that are not written yet, and the chunk that was written last."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, np.ndarray]] = []
        self.count = 0
        self.number = 0
        self.last: Chunk | None = None
        self.last_number = 0


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file, compressed; numpy's own function takes no array called ``file``."""
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            # opened by its name, an entry has no time in it
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def read_chunk(given: GivenFiles, chunk: Chunk) -> dict[str, np.ndarray]:
    """All arrays of a chunk, without ``stepid``.

    Raises:
        ValueError: It is damaged, or not as its name tells.
    """
    file = chunk.file
    arrays = given.read_arrays(file)
    ids = arrays.pop("stepid", None)
    # its length first: a name may tell any number of rows
    if (
        ids is None
        or ids.shape != (chunk.rows, 20)
        or not np.array_equal(ids, _step_ids(chunk.uuid, chunk.rows))
    ):
        raise ValueError(
            f"{file}: expected 'stepid' to tell the chunk and the rows 0 to {chunk.rows - 1:,}, as "
            f"the name does, got other ones; the file was renamed or changed: restore it"
        )
    for name, array in arrays.items():
        if not array.ndim or len(array) != chunk.rows:
            raise ValueError(
                f"{file}: expected {chunk.rows:,} rows, as the name tells, got {name!r} of shape "
                f"{array.shape}; restore or remove it"
            )
    return arrays


def chains_of(folder: Path) -> list[list[Chunk]]:
    """The chunks of a folder in the order of their rows: one list for each stream.

    Raises:
        ValueError: There is none, or names contradict each other.
    """
    chunks = [Chunk.named(file) for file in sorted(folder.glob("*.npz"))]
    if not chunks:
        raise ValueError(f"{folder}: expected chunks of DreamerV3's named *.npz, got none")
    by_uuid = {chunk.uuid: chunk for chunk in chunks}
    followed = [chunk.follows for chunk in chunks if chunk.follows in by_uuid]
    if len(by_uuid) < len(chunks) or len(set(followed)) < len(followed):
        raise ValueError(
            f"{folder}: expected chunks of which each follows one other at most, got copies; "
            f"remove those that do not belong there"
        )
    later = set(followed)
    chains: list[list[Chunk]] = []
    for chunk in chunks:
        if chunk.uuid not in later:
            chains.append([chunk])
            while chunk.follows in by_uuid:
                chunk = by_uuid[chunk.follows]
                chains[-1].append(chunk)
    if sum(map(len, chains)) < len(chunks):
        raise ValueError(f"{folder}: expected chains of chunks, got a circle; restore the names")
    return chains


def _file_name(number: int, chunk: Chunk) -> str:
    """The name of the chunk that was begun after so many others."""
    time = (_EPOCH + datetime.timedelta(seconds=number)).strftime("%Y%m%dT%H%M%SF%f")
    return f"{time}-{base62(chunk.uuid)}-{base62(chunk.follows)}-{chunk.rows}.npz"


def _uuid_of(stream: int, before: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """16 bytes that follow from what a chunk holds, and from all before it."""
    found = hashlib.blake2b(before + stream.to_bytes(8), digest_size=16)
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype.str} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


def _step_ids(uuid: bytes, rows: int) -> np.ndarray:
    """uint8 [rows, 20]: the chunk, and the row's number, most significant byte first."""
    ids = np.empty((rows, 20), np.uint8)
    ids[:, :16] = np.frombuffer(uuid, np.uint8)
    ids[:, 16:] = np.arange(rows, dtype=">u4").view(np.uint8).reshape(rows, 4)
    return ids
