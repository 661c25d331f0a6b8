"""Pixels as PNG, WebP and GIF files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from io import SEEK_END, BytesIO
from typing import BinaryIO, Literal

import numpy as np

from stepwell.buffers.pictures.changes import Clock, changed_part, check_fps
from stepwell.buffers.pictures.gif import GifWriter

__all__ = ["MOST_SIDE", "WebpWriter", "animation", "block_size", "png", "sprite", "webp"]

MOST_SIDE = 16_383
"""Pixels of a side of a WebP file, at most."""
_MOST_PIXELS = 1 << 20  # of a sprite: one frame waits for all, and WebP takes up to 50 ns a pixel
_MOST_COLUMNS = 8
_LOSSLESS = 101  # OpenCV's name for it: a quality above 100
_MOST_BYTES = (1 << 32) - 2
_TICKS = 1000  # a second


def block_size(height: int, width: int) -> tuple[int, int]:
    """Columns and rows of frames in a sprite: 8 and 8, fewer for large frames.

    Example:
        >>> block_size(84, 84), block_size(240, 256), block_size(480, 640)
        ((8, 8), (4, 4), (1, 1))
    """
    side = min(_MOST_COLUMNS, math.isqrt(_MOST_PIXELS // (height * width)))
    side = max(1, min(side, MOST_SIDE // height, MOST_SIDE // width))
    return side, side


def sprite(pixels: np.ndarray) -> bytes:
    """Frames as one lossless WebP image, row by row, in the grid of `block_size`.

    Args:
        pixels: uint8 ``[n, H, W]`` or ``[n, H, W, 3]``; at most as many as the grid has places.
            Places without a frame are black.

    Raises:
        ValueError: There are no frames, or more than places.

    Example:
        >>> len(sprite(np.zeros((3, 84, 84), np.uint8))) < 100
        True
    """
    count, height, width = pixels.shape[:3]
    columns, rows = block_size(height, width)
    if not 1 <= count <= columns * rows:
        raise ValueError(f"sprite: expected 1 to {columns * rows} frames, got {count}")
    sheet = np.zeros((rows, height, columns, width, *pixels.shape[3:]), np.uint8)
    for place, frame in enumerate(pixels):
        sheet[place // columns, :, place % columns] = frame
    return webp(sheet.reshape(rows * height, columns * width, *pixels.shape[3:]))


def png(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a PNG file.

    Raises:
        ValueError: It is no such array, or a side has 0 pixels or more than 16,383.

    Example:
        >>> png(np.zeros((84, 84), np.uint8))[1:4]
        b'PNG'
    """
    return _encoded(".png", pixels, ())


def webp(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a lossless WebP file.

    Raises:
        ValueError: It is no such array, or a side has 0 pixels or more than 16,383.

    Example:
        >>> webp(np.zeros((84, 84), np.uint8))[8:12]
        b'WEBP'
    """
    import cv2

    return _encoded(".webp", pixels, (cv2.IMWRITE_WEBP_QUALITY, _LOSSLESS))


def _encoded(ending: str, pixels: np.ndarray, options: tuple[int, ...]) -> bytes:
    import cv2

    is_picture = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    is_sized = is_picture and 1 <= min(pixels.shape[:2]) <= max(pixels.shape[:2]) <= MOST_SIDE
    if not is_sized or pixels.dtype != np.uint8:
        raise ValueError(
            f"picture: expected uint8 [H, W] or [H, W, 3] with sides of 1 to {MOST_SIDE}, got "
            f"{pixels.dtype} {list(pixels.shape)}"
        )
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(ending, pixels, options)
    return data.tobytes()


class WebpWriter:
    """Writes an animated WebP that repeats for ever, frame by frame, without loss.

    Args:
        file: The file, written from its start on; it can be sought.
        fps: Frames a second; a frame is shown for whole milliseconds.

    Example:
        >>> from io import BytesIO
        >>> file = BytesIO()
        >>> writer = WebpWriter(file, Fraction(15))
        >>> for level in (0, 255):
        ...     writer.add(np.full((8, 8), level, np.uint8))
        >>> writer.close()
        >>> file.getvalue()[:4], file.getvalue()[8:12]
        (b'RIFF', b'WEBP')
    """

    def __init__(self, file: BinaryIO, fps: Fraction) -> None:
        self._file = file
        self._clock = Clock(fps, _TICKS)
        self._before: np.ndarray | None = None
        self._size = 0

    def add(self, frame: np.ndarray) -> None:
        """Write a frame, uint8 ``[H, W]`` or ``[H, W, 3]``, of the same shape as the first one."""
        if self._before is None:
            height, width = frame.shape[:2]
            sides = _three_bytes(width - 1) + _three_bytes(height - 1)
            self._write(b"RIFF\0\0\0\0WEBP" + _chunk(b"VP8X", b"\x02\0\0\0" + sides))
            self._write(_chunk(b"ANIM", bytes(6)))  # no background, for ever
        top, left, part = changed_part(self._before, frame, even=True)
        height, width = part.shape[:2]
        numbers = (left // 2, top // 2, width - 1, height - 1, self._clock.ticks())
        # The pixels replace those before, as no picture has transparent ones.
        head = b"".join(map(_three_bytes, numbers)) + b"\x02"
        # A picture's file is one chunk after 12 bytes.
        self._write(_chunk(b"ANMF", head + webp(part)[12:]))
        self._before = frame.copy()

    def close(self) -> None:
        """Write the length of all; the file stays open."""
        self._file.seek(4)
        self._file.write((self._size - 8).to_bytes(4, "little"))
        self._file.seek(0, SEEK_END)

    def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MOST_BYTES:
            raise ValueError("expected a WebP file of less than 4 GiB, got more frames; give fewer")
        self._file.write(data)


def animation(
    pixels: Iterable[np.ndarray], fps: float | Fraction, kind: Literal["webp", "gif"] = "webp"
) -> bytes:
    """Frames as an animated WebP or GIF file that repeats for ever.

    Args:
        pixels: Frames uint8 ``[H, W]`` or ``[H, W, 3]``, such as an array ``[T, H, W]``.
        fps: Frames a second.
        kind: ``"webp"`` is exact; ``"gif"`` is where a frame has at most 256 colours.

    Raises:
        ValueError: There are no frames, or the fps is not from 0.1 to 1000.

    Example:
        >>> frames = np.zeros((10, 84, 84), np.uint8)
        >>> len(animation(frames, fps=15)) < 1000
        True
    """
    check_fps(fps)
    file, count = BytesIO(), 0
    writer = (WebpWriter if kind == "webp" else GifWriter)(file, Fraction(fps))
    for frame in pixels:
        writer.add(frame)
        count += 1
    if not count:
        raise ValueError("expected at least one frame, got none")
    writer.close()
    return file.getvalue()


def _chunk(name: bytes, data: bytes) -> bytes:
    assert len(data) % 2 == 0  # others would need another byte
    return name + len(data).to_bytes(4, "little") + data


def _three_bytes(number: int) -> bytes:
    return number.to_bytes(3, "little")
