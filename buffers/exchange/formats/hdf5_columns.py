"""Columns of rows in HDF5 files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...base.untrusted_files import GivenFiles, MemoryBudget
from .pictures import picture_bytes

_CHUNK_BYTES: Final = 256 << 10
_BATCH_BYTES: Final = 32 << 20
_SMALL_BYTES: Final = 512  # less is not worth compressing


class NewHdf5:
    """A file that HDF5 writes: the Python file that h5py uses, and the h5py file."""

    # HDF5 delays writes until a file is closed. If one fails then, HDF5 keeps half of the file's
    # state and crashes the process when it ends. So errors are hidden from HDF5: data that cannot
    # be written is kept in memory, `check` and `close` raise the error, and the file is abandoned.

    def __init__(self, h5py: Any, path: Path, *, track_order: bool = False) -> None:
        self._raw = path.open("w+b", buffering=0)
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []
        self.file: Any = h5py.File(self, "w", track_order=track_order)

    def check(self) -> None:
        """Raise the first error of a write."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write buffered data. Can be called twice."""
        if self.file is not None:
            file, self.file = self.file, None
            file.close()
            self._raw.close()
            self.check()

    def seek(self, offset: int, whence: int = 0) -> int:
        """As in `io.RawIOBase`."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """As in `io.RawIOBase`."""
        return self._raw.tell()

    def read(self, count: int) -> bytes:
        """As in `io.RawIOBase`; h5py requires the method, but calls `readinto`."""
        into = bytearray(count)
        return bytes(into[: self.readinto(memoryview(into))])

    def readinto(self, into: memoryview) -> int:
        """As in `io.RawIOBase`; includes the data that could not be written."""
        start = self._raw.tell()
        count = self._raw.readinto(into) or 0
        for offset, data in self._unwritten:
            first, last = max(start, offset), min(start + len(into), offset + len(data))
            if first < last:
                into[first - start : last - start] = data[first - offset : last - offset]
                count = max(count, last - start)
        self._raw.seek(start + count)
        return count

    def write(self, data: memoryview) -> int:
        """As in `io.RawIOBase`, but an error is kept for `check`."""
        start, done = self._raw.tell(), 0
        data = memoryview(data).cast("B")
        try:
            while self._error is None and done < len(data):
                done += self._raw.write(data[done:]) or 0
        except OSError as error:
            self._error = error
        if done < len(data):
            self._unwritten.append((start + done, bytes(data[done:])))
            self._raw.seek(start + len(data))
        return len(data)

    def truncate(self, size: int) -> int:
        """As in `io.RawIOBase`, but an error is kept for `check`."""
        try:
            return self._raw.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def put_column(group: Any, name: str, rows: np.ndarray, compress: bool) -> None:
    """Write rows [T, ...] as a new ``h5py.Dataset``; each ``/`` in its name makes a group."""
    # The rows may be a view that takes more memory when it is copied. HDF5 decompresses
    # transparently; small columns are never deflated.
    if not compress or rows.nbytes < _SMALL_BYTES:
        group.create_dataset(name, data=rows)
        return
    row_bytes = rows.nbytes // len(rows)
    chunk_rows = max(1, min(len(rows), _CHUNK_BYTES // row_bytes))
    column = group.create_dataset(
        name,
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=(chunk_rows, *rows.shape[1:]),
        compression="gzip",
        compression_opts=1,
        shuffle=rows.dtype.itemsize > 1,
    )
    # Stacks are views: a full copy takes k times the memory of the episode.
    batch_rows = max(chunk_rows, _BATCH_BYTES // row_bytes // chunk_rows * chunk_rows)
    for start in range(0, len(rows), batch_rows):
        column[start : start + batch_rows] = rows[start : start + batch_rows]


def open_given(h5py: Any, files: GivenFiles, path: Path) -> Any:
    """Open an untrusted ``h5py.File`` for reading, if it is whole in itself, see `check_group`."""
    # HDF5 follows links within a file into other files of the user, and reads the rows of a dataset
    # from any file that it names.
    if not path.exists() or path.is_dir():
        raise FileNotFoundError(f"{path}: expected an HDF5 file, got no file")
    try:
        file = h5py.File(files.file(path), "r")
    except OSError as error:
        raise ValueError(f"{path}: expected an HDF5 file, got another ({error})") from error
    try:
        check_group(h5py, file, str(path))
    except BaseException:
        file.close()
        raise
    return file


def check_group(h5py: Any, group: Any, where: str) -> None:
    """Raise unless all below an ``h5py.Group`` is in this file, and numbers, texts or pictures."""
    seen: set[int] = set()
    left = [group]
    while left:
        now = left.pop()
        for name in now:
            place = f"{where}: {now.name.rstrip('/')}/{name}"
            link = now.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(
                    f"{place}: expected an object in this file, got a link to another one; "
                    f"remove it"
                )
            node = now[name]
            if isinstance(node, h5py.Dataset):
                _check_dataset(h5py, node, place)
                continue
            address = h5py.h5o.get_info(node.id).addr
            if not isinstance(node, h5py.Group) or address in seen:
                raise ValueError(
                    f"{place}: expected a dataset, or a group with one parent, got "
                    f"something else; the file is damaged"
                )
            seen.add(address)
            left.append(node)


def datasets_of(group: Mapping[str, Any]) -> Iterator[Any]:
    """All datasets below a group that `check_group` has accepted."""
    for node in group.values():
        if isinstance(node, Mapping):
            yield from datasets_of(node)
        else:
            yield node


def read_column(node: Any, budget: MemoryBudget) -> Any:
    """All rows of a dataset that `check_group` has accepted, if there is memory for it."""
    take_column(node, budget)
    return node[()]


def read_rows(node: Any, start: int, stop: int, budget: MemoryBudget) -> Any:
    """Some rows of a dataset of numbers that `check_group` has accepted, if there is memory."""
    chunk = math.prod(getattr(node, "chunks", None) or ())  # an array in memory has none
    budget.take(((stop - start) * math.prod(node.shape[1:]) + chunk) * node.dtype.itemsize)
    return node[start:stop]


def take_column(node: Any, budget: MemoryBudget) -> None:
    """Count the memory of a dataset that `check_group` has accepted."""
    count = math.prod(node.shape)
    # HDF5 allocates memory for a whole chunk, even for a few rows.
    chunk = math.prod(node.chunks or ()) * node.dtype.itemsize
    if node.dtype.kind != "O":
        budget.take(count * node.dtype.itemsize + chunk)
        return
    budget.take(count * 64 + chunk)  # the least size of a Python object
    if not node.shape:
        budget.take(picture_bytes(bytes(node[()])))
        return
    for start in range(0, len(node), 8):  # the length of a text is known only when it is read
        for value in np.asarray(node[start : start + 8]).reshape(-1):
            budget.take(picture_bytes(bytes(value)))


def as_text(value: Any) -> str:
    """A text as h5py returns it, in bytes or in an array of one."""
    found = value.item() if hasattr(value, "item") and value.shape == () else value
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _check_dataset(h5py: Any, node: Any, place: str) -> None:
    """Raise for a dataset that is not a column, or whose rows are in another file."""
    if node.is_virtual or node.external:
        raise ValueError(f"{place}: expected rows in this file, got rows of another; remove it")
    if node.shape is None:
        raise ValueError(f"{place}: expected rows, got an empty dataspace; remove it")
    kind = node.dtype.kind
    is_text = h5py.check_vlen_dtype(node.dtype) or h5py.check_string_dtype(node.dtype)
    if kind not in "biufc" and not is_text:
        raise ValueError(f"{place}: expected numbers, got {node.dtype}; remove it")
