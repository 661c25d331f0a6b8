"""Numbers and rows in few bytes, before they are compressed. Pure: uses no files.

`docs/archive-format.md` describes every byte. What is unpacked comes from a file: anything that was
not packed here is a ValueError.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from stepwell.buffers.provenance.archive_file import compress
from stepwell.buffers.spec import Field

__all__ = ["Cursor", "pack_numbers", "pack_rows", "unpack_numbers", "unpack_rows"]

_COLUMN = struct.Struct("<BBq")
_VALUES, _DIFFERENCES, _OF_ORDER = 0, 1, 2
"""Codings of numbers; the last one is added where they are in another order."""

_ROWS = struct.Struct("<B")
_ELEMENT = struct.Struct("<QH")
_BYTES, _DIGITS, _BIG = 0, 1, 2
"""Codings of rows."""
_SOME_ROWS: Final = 128  # added to the coding where rows of zeros are left out
_MOST_ELEMENTS, _MOST_BASE = 64, 256
_GROUP = 1000
_WORD = 1 << 63


class Cursor:
    """Reads some bytes from their first one to their last.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self._data) - self._at

    def take(self, nbytes: int) -> memoryview:
        """The next bytes.

        Raises:
            ValueError: There are fewer.
        """
        if not 0 <= nbytes <= self.left:
            raise ValueError(f"expected {nbytes} more bytes, got {self.left}")
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]

    def finish(self) -> None:
        """Refuse bytes that are left.

        Raises:
            ValueError: There are some.
        """
        if self.left:
            raise ValueError(f"expected an end, got {self.left} more bytes")


def pack_numbers(values: np.ndarray, order: np.ndarray | None = None) -> bytes:
    """Whole numbers [n], int64, as bytes that compress well.

    Args:
        values: The numbers.
        order: An order [n] in which they may be alike, which the reader knows, too.

    Example:
        >>> packed = pack_numbers(np.arange(1000))
        >>> len(packed), len(compress(packed)) < 40
        (1010, True)
        >>> unpack_numbers(Cursor(packed), 1000).sum()
        np.int64(499500)
    """
    orders = [(0, values)] if order is None else [(0, values), (_OF_ORDER, values[order])]
    found = [
        _pack_column(coding + step, each)
        for coding, each in orders
        for step in (_VALUES, _DIFFERENCES)
    ]
    return min(found, key=lambda packed: len(compress(packed)))


def unpack_numbers(cursor: Cursor, count: int, order: np.ndarray | None = None) -> np.ndarray:
    """The numbers [count], int64, that `pack_numbers` has packed.

    Raises:
        ValueError: It has packed none.
    """
    coding, width, least = _COLUMN.unpack(cursor.take(_COLUMN.size))
    if coding > (1 if order is None else 3) or not 1 <= width <= 8:
        raise ValueError(f"numbers of coding {coding} and {width} bytes")
    planes = np.frombuffer(cursor.take(count * width), np.uint8).reshape(width, count)
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = planes.T
    values = wide.view("<u8")[:, 0] + np.uint64(least % (1 << 64))
    if coding & _DIFFERENCES:
        values = np.cumsum(values, dtype=np.uint64)
    numbers: np.ndarray = values.view(np.int64)
    if coding & _OF_ORDER and order is not None:
        placed = np.empty_like(numbers)
        placed[order] = numbers
        return placed
    return numbers


def pack_rows(rows: np.ndarray, has_value: np.ndarray) -> bytes:
    """Rows [n, ...] of one field as bytes that compress well.

    Args:
        rows: The rows.
        has_value: [n] bool: False for rows that are zeros as a rule.
    """
    mark, kept = 0, rows
    if not has_value.all() and not rows[~has_value].tobytes().strip(b"\0"):
        mark, kept = _SOME_ROWS, rows[has_value]
    found = [_ROWS.pack(coding + mark) + packed for coding, packed in _packings(kept)]
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda packed: len(compress(packed)))


def unpack_rows(data: bytes, field: Field, has_value: np.ndarray) -> np.ndarray:
    """The rows [n, ...] of a field that `pack_rows` has packed.

    Args:
        data: The bytes.
        field: The field.
        has_value: As for `pack_rows`.

    Raises:
        ValueError: It has packed no such rows.
    """
    cursor = Cursor(data)
    (coding,) = _ROWS.unpack(cursor.take(_ROWS.size))
    count = int(np.count_nonzero(has_value)) if coding & _SOME_ROWS else len(has_value)
    kept = _unpack(cursor, coding & ~_SOME_ROWS, field, count)
    cursor.finish()
    if not coding & _SOME_ROWS:
        return kept
    rows = np.zeros((len(has_value), *field.shape), field.numpy_dtype)
    rows[has_value] = kept
    return rows


def _pack_column(coding: int, values: np.ndarray) -> bytes:
    numbers = values.astype(np.int64).view(np.uint64)
    if coding & _DIFFERENCES and len(numbers):
        numbers = np.diff(numbers, prepend=np.uint64(0))
    least = int(numbers.view(np.int64).min()) if len(numbers) else 0
    numbers = numbers - np.uint64(least % (1 << 64))
    most = int(numbers.max()) if len(numbers) else 0
    width = max(1, -(-most.bit_length() // 8))
    planes = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
    return _COLUMN.pack(coding, width, least) + planes.tobytes()


def _packings(rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Codings with the bytes of the rows."""
    elements = math.prod(rows.shape[1:])
    data = rows.astype(rows.dtype.newbyteorder("<"), copy=False).tobytes()
    planes = np.frombuffer(data, np.uint8).reshape(len(rows), elements * rows.itemsize).T
    yield _BYTES, planes.tobytes()
    if rows.dtype.kind not in "iub" or not len(rows) or not 1 <= elements <= _MOST_ELEMENTS:
        return
    columns = rows.reshape(len(rows), elements).T
    least = [int(column.min()) for column in columns]
    bases = [int(column.max()) - low + 1 for column, low in zip(columns, least, strict=True)]
    if max(bases) > _MOST_BASE:
        return
    digits, big = b"", b""
    for column, low, base in zip(columns, least, bases, strict=True):
        head = _ELEMENT.pack(low % (1 << 64), base)
        values = (column.astype(np.uint64) - np.uint64(low % (1 << 64))).astype(np.uint8)
        digits += head + _digits_of(values, base)
        big += head + _big_of(values, base)
    yield _DIGITS, digits
    yield _BIG, big


def _unpack(cursor: Cursor, coding: int, field: Field, count: int) -> np.ndarray:
    dtype = field.numpy_dtype.newbyteorder("<")
    elements = math.prod(field.shape)
    if coding == _BYTES:
        data = cursor.take(count * field.row_bytes)
        planes = np.frombuffer(data, np.uint8).reshape(field.row_bytes, count)
        return np.frombuffer(planes.T.tobytes(), dtype).reshape(count, *field.shape)
    if (
        coding not in (_DIGITS, _BIG)
        or not 1 <= elements <= _MOST_ELEMENTS
        or dtype.kind not in "iub"
    ):
        raise ValueError(f"rows of {field} in coding {coding}")
    unpack = _of_digits if coding == _DIGITS else _of_big
    rows = np.empty((count, elements), dtype)
    for element in range(elements):
        low, base = _ELEMENT.unpack(cursor.take(_ELEMENT.size))
        if not 1 <= base <= _MOST_BASE:
            raise ValueError(f"digits of base {base}")
        values = unpack(cursor, base, count).astype(np.uint64) + np.uint64(low)
        rows[:, element] = values.astype(dtype)
    return rows.reshape(count, *field.shape)


def _digits_a_byte(base: int) -> int:
    return max(1, int(math.log(256.5, max(2, base))))


def _digits_of(values: np.ndarray, base: int) -> bytes:
    """Digits [n], several in a byte, the first one the most significant."""
    each = _digits_a_byte(base)
    padded = np.zeros(-(-len(values) // each) * each, np.int64)
    padded[: len(values)] = values
    packed: np.ndarray = padded.reshape(-1, each) @ _powers(base, each)
    return packed.astype(np.uint8).tobytes()


def _of_digits(cursor: Cursor, base: int, count: int) -> np.ndarray:
    each = _digits_a_byte(base)
    packed = np.frombuffer(cursor.take(-(-count // each)), np.uint8).astype(np.int64)
    if len(packed) and packed.max() >= base**each:
        raise ValueError(f"a byte of {packed.max()}, which is no {each} digits of base {base}")
    digits: np.ndarray = packed[:, None] // _powers(base, each) % base
    return digits.reshape(-1)[:count].astype(np.uint8)


def _big_of(values: np.ndarray, base: int) -> bytes:
    """Digits [n] as big-endian numbers of up to 1,000 digits, the first the most significant."""
    parts: list[bytes] = []
    each = _word_digits(base)
    for start in range(0, len(values), _GROUP):
        group = values[start : start + _GROUP].astype(np.int64)
        lead = -len(group) % each  # zeros in front change nothing
        words = np.pad(group, (lead, 0)).reshape(-1, each) @ _powers(base, each)
        number, step = 0, base**each
        for word in words.tolist():
            number = number * step + word
        parts.append(number.to_bytes(_big_bytes(base, len(group)), "big"))
    return b"".join(parts)


def _of_big(cursor: Cursor, base: int, count: int) -> np.ndarray:
    each = _word_digits(base)
    step, powers = base**each, _powers(base, each)
    digits = np.empty(count, np.uint8)
    for start in range(0, count, _GROUP):
        length = min(_GROUP, count - start)
        number = int.from_bytes(cursor.take(_big_bytes(base, length)), "big")
        words: list[int] = []
        for _ in range(-(-length // each)):
            number, word = divmod(number, step)
            words.append(word)
        group = (np.array(words[::-1], np.int64)[:, None] // powers % base).reshape(-1)
        lead = -length % each
        if number or group[:lead].any():
            raise ValueError(f"a number of more than {length} digits of base {base}")
        digits[start : start + length] = group[lead:]
    return digits


@lru_cache(_MOST_BASE)
def _word_digits(base: int) -> int:
    """Digits whose number fits 63 bits."""
    count = 1
    while base > 1 and base ** (count + 1) <= _WORD:
        count += 1
    return count


@lru_cache(1 << 10)
def _big_bytes(base: int, digits: int) -> int:
    """Bytes of the largest number of so many digits."""
    most: int = base**digits - 1
    return -(-most.bit_length() // 8)


@lru_cache(1 << 10)
def _powers(base: int, count: int) -> np.ndarray:
    return np.array([base**power for power in range(count)][::-1], np.int64)
