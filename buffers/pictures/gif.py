"""Frames as an animated GIF file."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import BinaryIO

import numpy as np

from stepwell.buffers.pictures.changes import Clock, changed_part

__all__ = ["GIF_FPS", "GifWriter"]

GIF_FPS = 50
"""Frames a second, at most: browsers show a frame of less than two hundredths for ten."""

_COLOURS = 256
_MOST_CODES = 1 << 12
_TICKS = 100  # a second
_FOR_EVER = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


class GifWriter:
    """Writes an animated GIF that repeats for ever, frame by frame.

    A frame with at most 256 colours is exact: so is every grey one. The colours of others are
    rounded, as little as it takes. Above 50 frames a second it plays more slowly.

    Args:
        file: The file, written from its present position on.
        fps: Frames a second.

    Example:
        >>> from io import BytesIO
        >>> file = BytesIO()
        >>> writer = GifWriter(file, Fraction(15))
        >>> for level in (0, 255):
        ...     writer.add(np.full((8, 8), level, np.uint8))
        >>> writer.close()
        >>> file.getvalue()[:6], len(file.getvalue()) < 1000
        (b'GIF89a', True)
    """

    def __init__(self, file: BinaryIO, fps: Fraction) -> None:
        self._file = file
        self._clock = Clock(min(fps, Fraction(GIF_FPS)), _TICKS)
        self._before: np.ndarray | None = None

    def add(self, frame: np.ndarray) -> None:
        """Write a frame, uint8 ``[H, W]`` or ``[H, W, 3]``, of the same shape as the first one."""
        if self._before is None:
            self._file.write(b"GIF89a" + struct.pack("<HH", frame.shape[1], frame.shape[0]))
            # Grey frames share a table of all levels; others have one each.
            levels = np.arange(256, dtype=np.uint8).repeat(3).tobytes()
            self._file.write(b"\xf7\0\0" + levels if frame.ndim == 2 else b"\0\0\0")
            self._file.write(_FOR_EVER)
        top, left, part = changed_part(self._before, frame, even=False)
        indices, table, bits = (part, b"", 8) if part.ndim == 2 else _indexed(part)
        height, width = indices.shape
        self._file.write(
            struct.pack("<BBBBHBB", 0x21, 0xF9, 4, 1 << 2, self._clock.ticks(), 0, 0)
            + struct.pack("<BHHHH", 0x2C, left, top, width, height)
            + (bytes([0x80 | bits - 1]) + table if table else b"\0")
            + bytes([bits])
        )
        data = _compressed(indices.tobytes(), bits)
        for begin in range(0, len(data), 255):
            block = data[begin : begin + 255]
            self._file.write(bytes([len(block)]) + block)
        self._file.write(b"\x00")
        self._before = frame.copy()

    def close(self) -> None:
        """Write the end; the file stays open."""
        self._file.write(b"\x3b")


def _indexed(pixels: np.ndarray) -> tuple[np.ndarray, bytes, int]:
    """Indices uint8 ``[H, W]`` of colours, their table, and the bits of an index."""
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, indices = np.unique(codes, return_inverse=True)
    # One bit less of blue, red and green in turns, until there are few enough.
    mask, groups, places = 0xFFFFFF, colours, np.arange(len(colours))
    for step in range(24):
        if len(groups) <= _COLOURS:
            break
        mask &= ~(1 << (0, 16, 8)[step % 3] + step // 3)
        groups, places = np.unique(colours & mask, return_inverse=True)
    counts = np.bincount(indices.reshape(-1), minlength=len(colours))
    weights = np.bincount(places, counts)
    palette = np.stack(
        [np.bincount(places, (colours >> shift & 0xFF) * counts) / weights for shift in (16, 8, 0)],
        1,
    )
    bits = max(2, (len(palette) - 1).bit_length())
    table = np.zeros((1 << bits, 3), np.uint8)
    table[: len(palette)] = np.rint(palette)
    return places[indices].reshape(pixels.shape[:2]).astype(np.uint8), table.tobytes(), bits


def _compressed(data: bytes, bits: int) -> bytes:
    """Indices as the codes of GIF's variant of LZW."""
    clear = 1 << bits
    table: dict[int, int] = {}
    following, width = clear + 2, bits + 1
    out = bytearray()
    waiting, count = clear, width  # bits that are not yet written
    prefix = data[0]
    for index in memoryview(data)[1:]:
        key = prefix << 8 | index
        code = table.get(key)
        if code is not None:
            prefix = code
            continue
        waiting |= prefix << count
        count += width
        if following < _MOST_CODES:
            # A decoder knows an entry one code later, so the width grows one entry later.
            if following == 1 << width:
                width += 1
            table[key] = following
            following += 1
        else:
            waiting |= clear << count
            count += width
            table.clear()
            following, width = clear + 2, bits + 1
        prefix = index
        if count >= 64:
            out += (waiting & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
            waiting >>= 64
            count -= 64
    waiting |= prefix << count
    count += width
    if following == 1 << width and width < 12:
        width += 1
    waiting |= clear + 1 << count
    count += width
    return bytes(out) + waiting.to_bytes((count + 7) // 8, "little")
