"""Pixels as PNG, WebP and GIF files, which replace others when they are complete."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

Animated = Literal["webp", "gif"]
"""The kind of a file of moving pictures that is made in memory."""

MOST_SIDE = 16_383
"""Pixels of a side of a WebP file, at most."""

LEAST_FPS = 0.1
MOST_FPS = 1000
"""Frames a second of a clip: file formats count time in milliseconds, or in few bits."""

GIF_FPS = 50
"""Frames a second of a GIF, at most: browsers show a frame of less than two hundredths for ten."""

_MOST_PIXELS = (
    1 << 20
)  # of a sprite: one frame waits for all, 50 ns a flat pixel, 3 us one of a photo
_MOST_COLUMNS = 8
_LOSSLESS = 101  # OpenCV's name for it: a quality above 100
# Of all frames: one call, which Ctrl-C cannot interrupt, takes 1 to 3 us a pixel.
_MOST_BYTES = 1 << 27
_TICK = {"webp": 1, "gif": 10}  # milliseconds: the unit of time in the file


def block_size(height: int, width: int) -> tuple[int, int]:
    """Columns and rows of frames in a sprite: 8 and 8, fewer for large frames."""
    side = min(_MOST_COLUMNS, math.isqrt(_MOST_PIXELS // (height * width)))
    side = max(1, min(side, MOST_SIDE // height, MOST_SIDE // width))
    return side, side


def sprite(pixels: np.ndarray) -> bytes:
    """Frames uint8 ``[n, H, W]`` or ``[n, H, W, 3]`` as one lossless WebP image, row by row."""
    # They are in the grid of `block_size`, whose places without a frame are black.
    count, height, width = pixels.shape[:3]
    columns, rows = block_size(height, width)
    if not 1 <= count <= columns * rows:
        raise ValueError(f"sprite: expected 1 to {columns * rows} frames, got {count}")
    sheet = np.zeros((rows, height, columns, width, *pixels.shape[3:]), np.uint8)
    for place, frame in enumerate(pixels):
        sheet[place // columns, :, place % columns] = frame
    return webp(sheet.reshape(rows * height, columns * width, *pixels.shape[3:]))


def png(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a PNG file."""
    return _encoded(".png", pixels, ())


def webp(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a lossless WebP file."""
    import cv2

    return _encoded(".webp", pixels, (cv2.IMWRITE_WEBP_QUALITY, _LOSSLESS))


def _encoded(ending: str, pixels: np.ndarray, options: tuple[int, ...]) -> bytes:
    import cv2

    _check_picture(pixels)
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(ending, pixels, options)
    return data.tobytes()


def _check_picture(pixels: np.ndarray) -> None:
    is_picture = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    is_sized = is_picture and 1 <= min(pixels.shape[:2]) <= max(pixels.shape[:2]) <= MOST_SIDE
    if not is_sized or pixels.dtype != np.uint8:
        raise ValueError(
            f"picture: expected uint8 [H, W] or [H, W, 3] with sides of 1 to {MOST_SIDE}, got "
            f"{pixels.dtype} {list(pixels.shape)}"
        )


def animation(
    pixels: Iterable[np.ndarray], fps: float | Fraction, kind: Animated = "webp"
) -> bytes:
    """Frames uint8 ``[H, W]`` or ``[H, W, 3]`` as an animated file that repeats for ever."""
    # In a WebP file, which is exact, neighbours that are equal are one frame, shown as long as all
    # of them; a clip in which nothing moves is a still picture. A GIF plays at most 50 frames a
    # second and rounds colours: the darkest ones to black, and where a frame has more than 255,
    # others too. All frames are held in memory; see `most_frames`.
    import cv2

    check_fps(fps)
    frames: list[np.ndarray] = []
    for frame in pixels:
        _check_picture(frame)
        if frames and frame.shape[:2] != frames[0].shape[:2]:
            raise ValueError(
                f"expected frames of one shape {frames[0].shape[:2]}, got one of "
                f"{frame.shape[:2]}; give frames of one field"
            )
        if frame.ndim == 3:
            frames.append(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        else:  # OpenCV writes no grey GIF
            frames.append(cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR) if kind == "gif" else +frame)
    if not frames:
        raise ValueError("expected at least one frame, got none")
    clip = cv2.Animation()
    clip.frames = frames
    clip.durations = _durations(len(frames), min(fps, GIF_FPS) if kind == "gif" else fps, kind)
    options = {
        "webp": (cv2.IMWRITE_WEBP_QUALITY, _LOSSLESS),
        # No dithering, and a table of colours for each frame.
        "gif": (cv2.IMWRITE_GIF_DITHER, 3, cv2.IMWRITE_GIF_COLORTABLE, 1),
    }
    is_done, data = cv2.imencodeanimation(f".{kind}", clip, options[kind])
    if not is_done:
        raise ValueError(
            f"OpenCV {cv2.__version__} cannot write these frames as .{kind}, expected 4.13 or newer"
        )
    return bytes(data)


def most_frames(kind: Animated, height: int, width: int, channels: int) -> int:
    """Frames of an animation at most: all are in memory at once."""
    bytes_each = height * width * (3 if kind == "gif" else channels)
    return max(1, _MOST_BYTES // bytes_each)


def check_fps(fps: float | Fraction) -> None:
    """Refuse a number of frames a second that a clip cannot have."""
    if not LEAST_FPS <= fps <= MOST_FPS:
        raise ValueError(f"fps: expected a number from {LEAST_FPS} to {MOST_FPS}, got {fps}")


def _durations(count: int, fps: float | Fraction, kind: Animated) -> list[int]:
    """Milliseconds of each frame, as the file can hold them, which add up to the right time."""
    tick = _TICK[kind]
    apart = 1000 / Fraction(fps) / tick
    ends = [tick * round(place * apart) for place in range(count + 1)]
    return [stop - begin for begin, stop in pairwise(ends)]


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A new file in the target's folder, which replaces the target if the block succeeds."""
    # Else it is removed, and the target is as it was. No other file is touched.
    # A name of its own: a file of the user's may be called strip.png.part.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.open("xb").close()
    except OSError as error:  # the user knows only the target
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
