"""TFRecord files, as TensorFlow writes them: records with lengths and check sums (CRC-32C)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

__all__ = ["crc32c", "masked_crc32c", "read_records", "write_record"]

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, bits reversed
_LANE: Final = 1024
"""Bytes that are summed one after the other, in many places of a record at the same time."""
_AT_ONCE: Final = 1 << 23
_MASK: Final = 0xA282EAD8
_HEAD: Final = struct.Struct("<QI")
_FOOT: Final = struct.Struct("<I")


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    Long ones are cut into lanes that are summed side by side and joined then, for which a CRC, as a
    linear map over GF(2), allows: the register after ``a + b`` is that after ``a``, moved on by
    ``len(b)`` zeros, xor that after ``b`` alone.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    register = 0xFFFFFFFF
    whole = len(data) // _LANE * _LANE
    for start in range(0, whole, _AT_ONCE):
        part = np.frombuffer(data, np.uint8, min(_AT_ONCE, whole - start), start)
        for lane in _lanes(part):
            a, b, c, d = _moved()
            register = (
                a[register & 255]
                ^ b[register >> 8 & 255]
                ^ c[register >> 16 & 255]
                ^ d[register >> 24]
                ^ lane
            )
    _, table = _tables()
    for byte in data[whole:]:
        register = table[(register ^ byte) & 255] ^ register >> 8
    return register ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The check sum as TFRecord files have it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def write_record(file: BinaryIO, record: bytes) -> None:
    """Append a record."""
    length = struct.pack("<Q", len(record))
    file.write(length + _FOOT.pack(masked_crc32c(length)))
    file.write(record)
    file.write(_FOOT.pack(masked_crc32c(record)))


def read_records(path: Path) -> Iterator[bytes]:
    """All records of a file.

    Raises:
        ValueError: It is no TFRecord file, or damaged.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise _damaged(path)
            length, crc = _HEAD.unpack(head)
            if masked_crc32c(head[:8]) != crc or length > size - file.tell():
                raise _damaged(path)
            record, foot = file.read(length), file.read(_FOOT.size)
            if len(record) < length or len(foot) < _FOOT.size:
                raise _damaged(path)
            if masked_crc32c(record) != _FOOT.unpack(foot)[0]:
                raise _damaged(path)
            yield record


def _damaged(path: Path) -> ValueError:
    return ValueError(
        f"{path}: expected a TFRecord file, got another or a damaged one: a check sum is wrong; "
        f"fetch it again"
    )


def _lanes(part: np.ndarray) -> list[int]:
    """The registers after each lane alone, begun at 0."""
    table, _ = _tables()
    lanes = np.ascontiguousarray(part.reshape(-1, _LANE).T)
    register = np.zeros(lanes.shape[1], np.uint32)
    for column in lanes:
        register = table[(register ^ column) & 255] ^ register >> 8
    found: list[int] = register.tolist()
    return found


@functools.cache
def _tables() -> tuple[np.ndarray, list[int]]:
    """What eight shifts make of each byte, for numpy and for Python."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table, table.tolist()


@functools.cache
def _moved() -> tuple[list[int], ...]:
    """What a lane of zeros makes of each of a register's four bytes."""
    table, _ = _tables()
    registers = (
        np.arange(256, dtype=np.uint32)[None] << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    )
    for _ in range(_LANE):
        registers = table[registers & 255] ^ registers >> 8
    return tuple(row.tolist() for row in registers)
