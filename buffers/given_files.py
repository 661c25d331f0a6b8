"""Opens the files of an untrusted data set, and limits the memory that they take."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np

from stepwell.buffers import json_values
from stepwell.buffers.free_memory import free_memory

__all__ = ["GivenFiles", "MemoryBudget", "parse_object"]

_TEXT_BYTES: Final = 64 << 20
"""Limit of a JSON file, whose values take many times as much memory."""
_HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class MemoryBudget:
    """A budget of memory for one episode, checked before memory is allocated.

    Args:
        what: The file, for error messages: ``"data/3.npz"``.
        most: Bytes.

    Example:
        >>> budget = MemoryBudget("3.npz", 1 << 30)
        >>> budget.take(1 << 29)
        >>> budget.take(1 << 32)
        Traceback (most recent call last):
        ...
        ValueError: 3.npz: expected at most 1,024 MiB of memory for an episode, got 4,608 MiB or \
more; if that is right, import it where more memory is free, or allow more by max_bytes \
(--max-bytes)
    """

    def __init__(self, what: object, most: int) -> None:
        self._what = what
        self._most = most
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are to be read next.

        Raises:
            ValueError: The budget is exceeded.
        """
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
    """Read a JSON object that is shallow enough to be written again.

    Args:
        text: JSON.
        where: Its file, for error messages.

    Raises:
        ValueError: It is something else.

    Example:
        >>> parse_object("[1]", "facts.json")
        Traceback (most recent call last):
        ...
        ValueError: facts.json: JSON: expected an object, got a list of 1; fetch the data set again
    """
    try:
        return json_values.parse(text.encode() if isinstance(text, str) else text, is_finite=False)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error)[:200]}; fetch the data set again") from error


def _heads_of(file: IO[bytes], path: Path) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """The archive entry of each array in an npz file, and the bytes of its elements.

    Raises:
        ValueError: It is no npz file of plain arrays.
    """
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
    """Bytes of an array's elements, according to its header.

    Raises:
        ValueError: It is no array of numbers, or the archive contains another length.
    """
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
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
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
