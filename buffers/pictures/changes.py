"""Frames of a clip: the part that differs from the one before, and how long each is shown."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

__all__ = ["LEAST_FPS", "MOST_FPS", "Clock", "changed_part", "check_fps"]

LEAST_FPS = 0.1
MOST_FPS = 1000
"""Frames a second of a clip: file formats count time in milliseconds, or in few bits."""


def changed_part(
    before: np.ndarray | None, frame: np.ndarray, *, even: bool
) -> tuple[int, int, np.ndarray]:
    """The smallest rectangle that holds all changed pixels: its top, left and pixels.

    Args:
        before: The frame before; None for the first one, which has changed everywhere.
        frame: uint8 ``[H, W]`` or ``[H, W, 3]``. Where nothing has changed, one pixel is returned.
        even: Let top and left be even.

    Raises:
        ValueError: The frames differ in shape.

    Example:
        >>> before, frame = np.zeros((2, 8, 8), np.uint8)
        >>> frame[3:5, 5] = 1
        >>> top, left, part = changed_part(before, frame, even=True)
        >>> top, left, part.shape
        (2, 4, (3, 2))
    """
    if before is None:
        return 0, 0, frame
    if before.shape != frame.shape:
        raise ValueError(
            f"expected frames of one shape {before.shape}, got one of {frame.shape}; give frames "
            f"of one field"
        )
    differs = before != frame
    if frame.ndim == 3:
        differs = differs.any(2)
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    if not len(rows):
        return 0, 0, frame[:1, :1]
    top, left = int(rows[0]), int(columns[0])
    if even:
        top, left = top - top % 2, left - left % 2
    return top, left, frame[top : rows[-1] + 1, left : columns[-1] + 1]


class Clock:
    """Durations of frames in whole ticks, which add up to the right time.

    Args:
        fps: Frames a second.
        ticks: Ticks a second.

    Example:
        >>> clock = Clock(Fraction(15), 100)
        >>> [clock.ticks() for _ in range(4)]
        [7, 6, 7, 7]
    """

    def __init__(self, fps: Fraction, ticks: int) -> None:
        self._per_frame = ticks / fps
        self._end = Fraction(0)

    def ticks(self) -> int:
        """The ticks of the next frame."""
        begin = round(self._end)
        self._end += self._per_frame
        return round(self._end) - begin


def check_fps(fps: float | Fraction) -> None:
    """Refuse a number of frames a second that a clip cannot have.

    Raises:
        ValueError: It is not from 0.1 to 1000.
    """
    if not LEAST_FPS <= fps <= MOST_FPS:
        raise ValueError(f"fps: expected a number from {LEAST_FPS} to {MOST_FPS}, got {fps}")
