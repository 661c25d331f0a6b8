"""Bytes <-> what a learner needs to go on: plain data and arrays. Pure: no files, no clock.

::

    magic       8 bytes
    checksum    u32, crc32 of all that follows
    lengths     u32 bytes of JSON
    JSON        the value; an array stands as {"$array": [dtype, shape, offset, bytes]}
    arrays      one after the other, each at a multiple of 8

All numbers are little-endian; offsets count from the end of the JSON, rounded up to 8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import numpy as np

from stepwell.buffers.errors import StoreCorrupt

__all__ = ["pack", "unpack"]

_MAGIC = b"\x93SWCHK\r\n"
_HEAD = struct.Struct("<8sII")
_ARRAY = "$array"


def pack(state: Mapping[str, object]) -> bytes:
    """The bytes of nested mappings and lists of plain JSON values and numpy arrays.

    Raises:
        TypeError: Something else is in it.

    Example:
        >>> state = {"step": 7, "priorities": np.array([0.5, 1.0])}
        >>> unpack(pack(state), "a checkpoint")
        {'step': 7, 'priorities': array([0.5, 1. ])}
    """
    arrays: list[bytes] = []
    tree = _without_arrays(state, arrays)
    try:
        text = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"a checkpoint holds plain JSON values and numpy arrays, got something else: {error}; "
            f"convert it first"
        ) from error
    body = b"".join([text + _padding(_HEAD.size + len(text)), *arrays])
    lengths = struct.pack("<I", len(text))
    return _MAGIC + struct.pack("<I", crc32(lengths + body)) + lengths + body


def unpack(data: bytes, where: str) -> dict[str, Any]:
    """The state in the bytes of a file; its arrays own their memory.

    Raises:
        StoreCorrupt: The bytes are not what was written.
    """
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise StoreCorrupt(f"{where} is no checkpoint of a replay; remove it, or restore it")
    _, crc, length = _HEAD.unpack_from(data)
    if crc32(data[12:]) != crc:
        raise StoreCorrupt(f"{where} is damaged: wrong checksum; restore it from a copy")
    start = _HEAD.size + length
    arrays = memoryview(data)[start + len(_padding(start)) :]
    return cast("dict[str, Any]", _with_arrays(json.loads(data[_HEAD.size : start]), arrays))


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


def _with_arrays(value: Any, arrays: memoryview) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            dtype, shape, offset, nbytes = value[_ARRAY]
            part = arrays[offset : offset + nbytes]
            return np.frombuffer(part, np.dtype(dtype)).reshape(shape).copy()
        return {key: _with_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_arrays(part, arrays) for part in value]
    return value


def _padding(nbytes: int) -> bytes:
    return b"\0" * (-nbytes % 8)
