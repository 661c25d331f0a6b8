"""TFRecord files, and the ``tf.train.Example`` messages in them, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np

from ...base.optional_libraries import load_library
from ...base.untrusted_files import MemoryBudget

_MASK: Final = 0xA282EAD8


def load_crc32c() -> Any:
    """Return a function that computes the CRC-32C of bytes."""
    library = load_library(
        "google_crc32c", "format rlds", install="'stepwell[rlds]'", package="google-crc32c"
    )
    return library.value


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord files."""
    crc: int = load_crc32c()(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def write_record(file: BinaryIO, record: bytes) -> None:
    """Append a record."""
    length = struct.pack("<Q", len(record))
    for data in (length, record):
        file.write(data)
        file.write(_checksum(data))


def read_records(path: Path) -> Iterator[bytes]:
    """All records of a file."""
    with path.open("rb") as file:
        size = path.stat().st_size
        while head := file.read(8):
            (length,) = struct.unpack("<Q", head.ljust(8, b"\0"))
            is_right = file.read(4) == _checksum(head) and length <= size - file.tell()
            record = file.read(length) if is_right else b""
            if not is_right or file.read(4) != _checksum(record):
                raise ValueError(
                    f"{path}: expected a TFRecord file, got another or a damaged one: a checksum "
                    f"is wrong; fetch it again"
                )
            yield record


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


Value: TypeAlias = "list[bytes] | np.ndarray"
"""A list of bytes, or an array [n] of float32 or int64."""

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_LENGTH_OF: Final = {1: 8, 5: 4}  # wire types of fixed length
_MAX_BYTES: Final = 2**31 - 1
_VALUE_BYTES: Final = 256


def encoded(features: Mapping[str, Value]) -> bytes:
    """An Example, features in the order of their names: equal ones have equal bytes."""
    parts: list[bytes] = []
    for name in sorted(features):
        value = _value(features[name])
        key = _field(1, [name.encode()])
        parts += _field(1, [*key, *_field(2, value)])
    found = b"".join(_field(1, parts))
    if len(found) > _MAX_BYTES:
        raise ValueError(
            f"expected an episode of less than 2 GiB, got {len(found) / 2**30:.1f} GiB: a record "
            f"of a TFRecord file holds no more; leave it out, or collect with a time limit"
        )
    return found


def decoded(example: bytes, budget: MemoryBudget | None = None) -> dict[str, Value]:
    """The lists of an Example, by name."""
    budget = budget or MemoryBudget("an example", _MAX_BYTES)
    found: dict[str, Value] = {}
    try:
        for features in _fields(memoryview(example), 1):
            for entry in _fields(features, 1):
                name = b"".join(_fields(entry, 1)).decode()
                # Several parts of a message are joined, as protobuf defines.
                found[name] = _list(memoryview(b"".join(_fields(entry, 2))), budget)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a tf.train.Example, got something else ({error})") from error
    return found


def _value(value: Value) -> list[bytes]:
    """A Feature."""
    if isinstance(value, list):
        parts = [part for one in value for part in _field(1, [one])]
        return _field(_BYTES, parts)
    if value.dtype == np.float32:
        return _field(_FLOATS, _field(1, [value.astype("<f4").tobytes()]))
    return _field(_INTEGERS, _field(1, [_varints(value.astype(np.int64))]))


def _field(number: int, parts: list[bytes]) -> list[bytes]:
    """A field of a message: tag, length and bytes."""
    return [_varint(number << 3 | 2) + _varint(sum(map(len, parts))), *parts]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _varints(values: np.ndarray) -> bytes:
    """Integers [n], seven bits a byte; negative ones take ten bytes."""
    left = values.view(np.uint64).copy()
    sizes = np.ones(len(left), np.int64)
    for place in range(1, 10):
        sizes += left >= np.uint64(1 << 7 * place)
    ends = np.cumsum(sizes)
    found = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(sizes.max()) if len(sizes) else 0):
        goes_on = sizes > place
        last = sizes[goes_on] == place + 1
        low = (left[goes_on] & np.uint64(127)).astype(np.uint8)
        found[(ends - sizes)[goes_on] + place] = np.where(last, low, low | 128)
        left >>= np.uint64(7)
    return found.tobytes()


def _read_varints(data: memoryview) -> np.ndarray:
    """The integers that `_varints` wrote, [n] int64."""
    values = np.frombuffer(data, np.uint8)
    ends = np.nonzero(values < 128)[0] + 1
    if len(values) and (not len(ends) or ends[-1] != len(values)):
        raise IndexError("integers break off")
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    sizes = ends - starts
    found = np.zeros(len(ends), np.uint64)
    for place in range(min(10, int(sizes.max())) if len(sizes) else 0):
        goes_on = sizes > place
        bits = (values[starts[goes_on] + place] & 127).astype(np.uint64)
        found[goes_on] |= bits << np.uint64(7 * place)
    return found.view(np.int64)


def _list(feature: memoryview, budget: MemoryBudget) -> Value:
    """The list of a Feature, packed or not."""
    for kind in (_BYTES, _FLOATS, _INTEGERS):
        for part in _fields(feature, kind):
            values: list[memoryview] = []
            for value in _fields(part, 1):
                budget.take(_VALUE_BYTES + len(value))  # a Python object is larger than a few bytes
                values.append(value)
            if kind == _BYTES:
                return [bytes(value) for value in values]
            joined = memoryview(b"".join(values))
            if kind == _FLOATS:
                return np.frombuffer(joined, "<f4").astype(np.float32)
            budget.take(32 * len(joined))  # temporary arrays of numpy
            return _read_varints(joined)
    return []


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The bytes of each field of that number."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, stop = _read_varint(message, place)
        elif kind == 2:
            length, place = _read_varint(message, place)
            stop = place + length
        elif kind in _LENGTH_OF:
            stop = place + _LENGTH_OF[kind]
        else:
            raise IndexError(f"a field of type {kind}")
        if stop > len(message):
            raise IndexError("a field breaks off")
        if number == wanted:
            yield message[place:stop]
        place = stop


def _read_varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift >= 70:
            raise IndexError("an integer of more than 64 bits")
