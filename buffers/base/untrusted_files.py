"""Opens the files of an untrusted data set, and limits the memory that they take."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np

from . import untrusted_json
from .memory_limit import free_memory

_TEXT_BYTES: Final = 64 << 20
"""Limit of a JSON file, whose values take many times as much memory."""
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


_DIGITS: Final = re.compile(r"([0-9]+)")
_SHARD: Final = re.compile(r"(.*?)([0-9]+)(-of-[0-9]+)(?![0-9]).*")


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Paths in the order of their names, of which numbers count as numbers."""

    def key(path: Path) -> tuple[object, str]:
        return [_pieces(part) for part in (*path.parent.parts, *_halves(path))], path.name

    return sorted(paths, key=key)


def is_next(path: Path, before: Path) -> bool:
    """True if the names say that a file goes on where the one before it ends."""
    # They do in one folder, where they differ in numbers alone, a single one by 1, or are shards of
    # one set: else a file between them may be missing. Names such as Spark's, which end in random
    # letters, do not.
    if path.parent != before.parent:
        return False
    shard, last = _SHARD.fullmatch(path.name), _SHARD.fullmatch(before.name)
    if shard is not None and last is not None:
        is_same_set = shard.group(1, 3) == last.group(1, 3)
        return is_same_set and int(shard[2]) == int(last[2]) + 1
    now, then = ([_pieces(half) for half in _halves(each)] for each in (path, before))
    if now <= then or [half[::2] for half in now] != [half[::2] for half in then]:
        return False
    steps = [
        number - last
        for halves in zip(now, then, strict=True)
        for number, last in zip(*(half[1::2] for half in halves), strict=True)
        if number != last
    ]
    return len(steps) > 1 or steps == [1]


def _halves(path: Path) -> tuple[str, str]:
    """A name in two: "part" comes before "part-1", also if both end in ".npz"."""
    return path.stem, path.suffix


def _pieces(name: str) -> list[Any]:
    """The texts of a name, with the numbers between them."""
    pieces: list[Any] = _DIGITS.split(name)
    pieces[1::2] = map(int, pieces[1::2])
    return pieces


class MemoryBudget:
    """A budget of memory for one episode, checked before memory is allocated."""

    def __init__(self, what: object, most: int) -> None:
        self._what = what  # the file, for messages
        self._most = most  # bytes
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are to be read next; ValueError if they exceed the budget."""
        self._taken += nbytes
        if self._taken > self._most:
            raise ValueError(
                f"{self._what}: expected at most {_mebibytes(self._most)} of memory for an "
                f"episode, got {_mebibytes(self._taken)} or more; if that is right, import it "
                f"where more memory is free, or allow more by max_bytes (--max-bytes)"
            )

    @property
    def left(self) -> int:
        """Bytes that can still be taken."""
        return self._most - self._taken


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes >> 20:,} MiB" if nbytes >= 1 << 20 else f"{nbytes:,} bytes"


class GivenFiles:
    """Opens only regular files at, or below, the path that the user named.

    The path itself may be a link, and may hold links to files in it. A FIFO or a device, whose
    opening may never return, is refused.

    Args:
        path: A folder or a file.
        max_bytes: Memory that one episode may take; None for half of what is free now: an import
            holds an episode about twice.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self._root = Path(os.path.realpath(path))  # accepts circular links
        self._most = free_memory() // 2 if max_bytes is None else max_bytes

    @property
    def max_bytes(self) -> int:
        """Memory that one episode may take."""
        return self._most

    def at(self, path: Path) -> GivenFiles:
        """The same limits for another path, such as the data set's parent folder."""
        return GivenFiles(path, self._most)

    def budget(self, what: object) -> MemoryBudget:
        """A new budget, for one episode or another unit that is read at once.

        Args:
            what: The unit, for error messages.
        """
        return MemoryBudget(what, self._most)

    def file(self, path: Path) -> Path:
        """The path, if it may be opened.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is no regular file, or a link out of the data set.
        """
        try:
            found = path.resolve(strict=True)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: expected a file of the data set, got none; fetch the data set again"
            ) from None
        except (OSError, RuntimeError, ValueError) as error:  # circular links, invalid names
            raise ValueError(
                f"{path}: expected a file of the data set, got a name that leads nowhere "
                f"({error}); remove it"
            ) from error
        if not found.is_relative_to(self._root):
            raise ValueError(
                f"{path}: expected a file in {self.path}, got a link to {found} "
                f"outside of it; if you trust it, copy the data set with its links followed "
                f"(cp -rL)"
            )
        if not stat.S_ISREG(found.stat().st_mode):
            raise ValueError(
                f"{path}: expected a regular file, got a folder, a pipe or a device; remove it"
            )
        return path

    def read_bytes(self, path: Path, most: int = _TEXT_BYTES) -> bytes:
        """All of a file.

        Raises:
            ValueError: It is no file that may be opened, or longer than ``most``.
        """
        with self.file(path).open("rb") as file:
            found = file.read(most + 1)
        if len(found) > most:
            raise ValueError(
                f"{path}: expected at most {most:,} bytes, got more; it is no such file"
            )
        return found

    def read_json(self, path: Path) -> dict[str, Any]:
        """The object that a JSON file holds.

        Raises:
            ValueError: It holds something else.
        """
        return parse_object(self.read_bytes(path), path)

    def read_arrays(self, path: Path, budget: MemoryBudget | None = None) -> dict[str, np.ndarray]:
        """All arrays of an npz file, whose names may be any.

        The archive and the array's own header both contain its size; they must agree, and the
        budget must suffice for all arrays, before memory is allocated.

        Args:
            path: The file.
            budget: Budget for them; by default that of an episode.

        Raises:
            ValueError: It is no npz file, damaged, holds objects, or is too large.
        """
        with self.file(path).open("rb") as file:
            heads = _heads_of(file, path)
            (budget or self.budget(path)).take(sum(size for _, size in heads.values()))
            try:
                with zipfile.ZipFile(file) as archive:
                    return {name: _array_of(archive, info) for name, (info, _) in heads.items()}
            except Exception as error:  # of zlib, zipfile or numpy, without a common base class
                raise _no_npz(path, str(error)) from error


def parse_object(text: str | bytes, where: object) -> dict[str, Any]:
    """Read a JSON object that is shallow enough to be written again."""
    try:
        return untrusted_json.parse(
            text.encode() if isinstance(text, str) else text, is_finite=False
        )
    except ValueError as error:
        raise ValueError(f"{where}: {str(error)[:200]}; fetch the data set again") from error


def _heads_of(file: IO[bytes], path: Path) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """The archive entry of each array in an npz file, and the bytes of its elements."""
    found: dict[str, tuple[zipfile.ZipInfo, int]] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in found:
                    raise ValueError(f"{name!r} appears twice")
                if info.flag_bits & 1 or info.compress_type not in (
                    zipfile.ZIP_STORED,
                    zipfile.ZIP_DEFLATED,
                ):
                    raise ValueError(f"{name!r} is encrypted, or not compressed by deflate")
                found[name] = info, _array_bytes(archive, info)
    except Exception as error:  # of zlib, zipfile or numpy, without a common base class
        raise _no_npz(path, str(error)) from error
    return found


def _array_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Bytes of an array's elements, according to its header."""
    with archive.open(info) as entry:
        # The header is short: numpy reads many bytes only where its length field says so.
        head = io.BytesIO(entry.read(1 << 16))
    read = _HEADERS.get(np.lib.format.read_magic(head))
    if read is None:
        raise ValueError(f"{info.filename!r} is of a version that no array of numbers needs")
    shape, _, dtype = read(head)
    if dtype.hasobject:
        raise ValueError(f"{info.filename!r} holds objects, which only pickle could read")
    if dtype.kind == "V" or any(size < 0 for size in shape):
        raise ValueError(f"{info.filename!r} is {dtype} {shape}, no plain array")
    nbytes = dtype.itemsize * math.prod(shape)
    if head.tell() + nbytes != info.file_size:
        raise ValueError(
            f"{info.filename!r} is {dtype} {shape}, but has {info.file_size - head.tell():,} bytes"
        )
    return nbytes


def _array_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as entry:
        array: np.ndarray = np.lib.format.read_array(cast("Any", entry), allow_pickle=False)
    return array


def _no_npz(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path}: expected an npz file of plain arrays, got another or a damaged one "
        f"({' '.join(why.split())[:200]}); put it back from a copy, or remove it"
    )
