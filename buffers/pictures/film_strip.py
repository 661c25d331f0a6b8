"""Frames of an episode in one picture."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..base.number_checks import check_whole
from .encode import MOST_SIDE, png, replacing, webp
from .image_fields import ImageField

_MOST_COLUMNS = 8
_GAP = 2  # pixels between frames
_GREY = 128  # their level: frames are often black or white at the border
_MOST_FRAMES = 256
_MOST_PIXELS = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class FilmStrip:
    """Frames of an episode in one picture, in lines from left to right; a notebook shows it.

    Args:
        pixels: The picture, uint8 ``[H, W]`` or ``[H, W, 3]``; two grey pixels are between frames.
        rows: Rows of the episode that it shows, in order.

    Example:
        >>> strip = FilmStrip.of(np.zeros((10, 84, 84), np.uint8), range(10))
        >>> strip
        FilmStrip(rows=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 170 x 428 pixels)
        >>> strip.pixels.shape
        (170, 428)
    """

    pixels: np.ndarray = field(repr=False)
    rows: tuple[int, ...]

    @classmethod
    def of(cls, frames: np.ndarray, rows: Sequence[int], scale: int = 1) -> FilmStrip:
        """The strip of some frames.

        Args:
            frames: uint8 ``[n, H, W]`` or ``[n, H, W, 3]``, n >= 1.
            rows: The row of each.
            scale: Pixels on each side of a pixel of the frames.
        """
        frames = np.stack([scaled(frame, scale) for frame in frames])
        count, height, width = frames.shape[:3]
        lines, columns = _grid(count)
        shape = (lines, height + _GAP, columns, width + _GAP, *frames.shape[3:])
        sheet = np.full(shape, _GREY, np.uint8)
        for place, frame in enumerate(frames):
            sheet[place // columns, :height, place % columns, :width] = frame
        joined = sheet.reshape(lines * shape[1], columns * shape[3], *shape[4:])
        return cls(joined[:-_GAP, :-_GAP], tuple(rows))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, which is replaced if there is one; both kinds are without loss.

        Args:
            path: A name that ends in ``.png`` or ``.webp``.

        Returns:
            The path.

        Raises:
            ValueError: The name ends otherwise.
            OSError: The file cannot be written.
        """
        target = Path(path)
        encoders = {".png": png, ".webp": webp}
        encode = encoders.get(target.suffix.lower())
        if encode is None:
            raise ValueError(
                f"path: expected a name that ends in {' or '.join(encoders)}, got {target.name!r}; "
                f"choose one of them"
            )
        data = encode(self.pixels)
        with replacing(target) as part:
            part.write_bytes(data)
        return target

    def __repr__(self) -> str:
        height, width = self.pixels.shape[:2]
        return f"FilmStrip(rows={self.rows}, {height} x {width} pixels)"

    def _repr_png_(self) -> bytes:
        return png(self.pixels)


def scaled(pixels: np.ndarray, scale: int) -> np.ndarray:
    """A picture whose pixels are squares of ``scale`` x ``scale`` equal pixels."""
    return pixels if scale == 1 else pixels.repeat(scale, 0).repeat(scale, 1)


def check_scale(image: ImageField, scale: int) -> None:
    """Refuse a scale with which a side has more than 16,383 pixels, or all more than 64 million."""
    check_whole("scale", scale, 1)
    most = min(
        MOST_SIDE // max(image.height, image.width),
        math.isqrt(_MOST_PIXELS // (image.height * image.width)),
    )
    if scale > most:
        raise ValueError(
            f"scale: expected 1 to {most} for {image.name} of {image.height} x {image.width} "
            f"pixels, got {scale}; choose a smaller one"
        )


def check_frames(image: ImageField, frames: int, scale: int) -> None:
    """Refuse a film strip of fewer than 1 or more than 256 frames, or of too many pixels."""
    check_scale(image, scale)
    check_whole("frames", frames, 1)
    lines, columns = _grid(frames)
    height, width = lines * (image.height * scale + _GAP), columns * (image.width * scale + _GAP)
    if frames > _MOST_FRAMES or max(height, width) > MOST_SIDE or height * width > _MOST_PIXELS:
        raise ValueError(
            f"frames: expected at most {_MOST_FRAMES} in a picture with sides of up to "
            f"{MOST_SIDE} pixels and {_MOST_PIXELS >> 20} million in all, got {frames} frames in "
            f"{height} x {width}; choose fewer frames or a smaller scale"
        )


def _grid(count: int) -> tuple[int, int]:
    """Lines and columns of some frames."""
    lines = -(-count // _MOST_COLUMNS)
    return lines, -(-count // lines)
