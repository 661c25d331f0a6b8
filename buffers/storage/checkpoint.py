"""The bytes of a checkpoint: JSON values and arrays. Pure: uses no files and no clock.

`docs/disk-format.md` describes every byte.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import numpy as np

from ..base.errors import StoreCorrupt
from ..base.untrusted_json import items, json_text, parse, whole
from ..base.untrusted_json import text as checked_text

_MAGIC = b"\x93SWCHK\r\n"
_HEAD = struct.Struct("<8sII")
_ARRAY = "$array"
_DTYPE_NAME = re.compile(r"[<|][A-Za-z][0-9]{0,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")


def pack(state: Mapping[str, object]) -> bytes:
    """The bytes of nested mappings and lists of plain JSON values and numpy arrays."""
    arrays: list[bytes] = []
    text = json_text(_without_arrays(state, arrays), name="a checkpoint of arrays and other values")
    body = b"".join([text + _padding(_HEAD.size + len(text)), *arrays])
    lengths = struct.pack("<I", len(text))
    return _MAGIC + struct.pack("<I", crc32(lengths + body)) + lengths + body


def unpack(data: bytes, where: str) -> dict[str, Any]:
    """The state in the bytes of a file; its arrays own their memory."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise StoreCorrupt(f"{where} is no checkpoint of a replay; remove it, or restore it")
    _, crc, length = _HEAD.unpack_from(data)
    if crc32(data[12:]) != crc:
        raise StoreCorrupt(f"{where} is damaged: wrong checksum; restore it from a copy")
    start = _HEAD.size + length
    arrays = _ArrayReader(memoryview(data)[start + len(_padding(start)) :])
    try:
        if start > len(data):
            raise ValueError(f"expected {length} bytes of JSON, got {len(data) - _HEAD.size}")
        return cast("dict[str, Any]", _with_arrays(parse(data[_HEAD.size : start]), arrays))
    except ValueError as error:
        raise StoreCorrupt(
            f"{where} is not what Stepwell writes: {error}; remove it, or restore it from a copy"
        ) from error


def _without_arrays(value: object, arrays: list[bytes]) -> object:
    if isinstance(value, np.ndarray):
        return {_ARRAY: _put(value, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if _ARRAY in value or not all(isinstance(key, str) for key in value):
            raise TypeError(
                f"a checkpoint's keys are texts other than {_ARRAY!r}, got {list(value)!r}; "
                f"rename them"
            )
        return {key: _without_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_without_arrays(part, arrays) for part in value]
    return value


def _put(array: np.ndarray, arrays: list[bytes]) -> list[object]:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"a checkpoint holds arrays of plain numbers, got {array.dtype}")
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    offset, data = sum(map(len, arrays)), little.tobytes()
    arrays.append(data + _padding(len(data)))
    return [little.dtype.str, list(array.shape), offset, len(data)]


def _with_arrays(value: Any, arrays: _ArrayReader) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays.take(value[_ARRAY])
        return {key: _with_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_arrays(part, arrays) for part in value]
    return value


class _ArrayReader:
    """The arrays of a file, one after the other, as `_without_arrays` found them."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._taken = 0

    def take(self, entry: object) -> np.ndarray:
        """A copy of the next array; ValueError if the entry describes something else."""
        name, lengths, offset, nbytes = items(entry, _ARRAY, 4)
        dtype = _plain_dtype(checked_text(name, "dtype of an array"))
        shape = tuple(
            whole(length, "shape of an array") for length in items(lengths, "shape of an array")
        )
        # No two arrays share bytes: a small file could otherwise allocate much memory.
        whole(offset, "offset of an array", self._taken, self._taken)
        size = whole(nbytes, "bytes of an array", 0, len(self._memory) - self._taken)
        expected = math.prod(shape) * dtype.itemsize
        if size != expected or len(shape) > 32:
            raise ValueError(
                f"array: expected {expected} bytes for {dtype} of {len(shape)} axes, got {size}"
            )
        part = self._memory[self._taken : self._taken + size]
        self._taken += size + len(_padding(size))
        return np.frombuffer(part, dtype).reshape(shape).copy()


def _plain_dtype(name: str) -> np.dtype[Any]:
    """A dtype that `pack` writes: plain values, no objects and no structures."""
    if not _DTYPE_NAME.fullmatch(name):
        raise ValueError(f"dtype of an array: expected a plain one, got {name[:60]!r}")
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise ValueError(f"dtype of an array: {error}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"dtype of an array: expected a plain one, got {name!r}")
    return dtype


def _padding(nbytes: int) -> bytes:
    return b"\0" * (-nbytes % 8)
