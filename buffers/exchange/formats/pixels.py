"""The place of the channels of pictures, and the rounding of columns to float32."""

from __future__ import annotations

from typing import Literal

import numpy as np

Channels = Literal["first", "last"]
_FEW = (1, 3, 4)  # numbers of channels of pictures


def frame_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a picture, without the axis of a frame stack of length 1."""
    return shape[1:] if len(shape) == 4 and shape[0] == 1 else shape


def channels_of(shape: tuple[int, ...], wanted: Channels | None = None) -> Channels | None:
    """The place of a picture's channels; None if it is not a picture, or has no axis for them."""
    shape = frame_of(shape)
    if len(shape) != 3:
        return None
    if wanted is not None:
        return wanted
    if shape[-1] in _FEW:
        return "last"
    return "first" if shape[0] in _FEW else None


def to_channels_first(frames: np.ndarray, channels: Channels | None) -> np.ndarray:
    """Frames [T, H, W], [T, H, W, C], [T, C, H, W], or [T, 1, ...], as new memory [T, C, H, W]."""
    frames = frames.reshape(len(frames), *frame_of(frames.shape[1:]))
    if channels is None:
        frames = frames[:, None]
    elif channels == "last":
        frames = np.moveaxis(frames, -1, 1)
    return np.array(frames, order="C")


class Rounding:
    """Rounds columns to float32, and keeps the largest error of each."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    @property
    def notes(self) -> list[str]:
        """A clause for each column that float32 did not hold exactly."""
        return [
            f"{name} is rounded to float32, by {largest:.2g} at most"
            for name, largest in self._largest.items()
        ]

    def float32(self, name: str, column: np.ndarray) -> np.ndarray:
        """The column [T, ...] of any floats in float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = column.astype(np.float32)
            back = rounded.astype(column.dtype)
            if back.tobytes() == np.ascontiguousarray(column).tobytes():
                return rounded
            off = np.abs(back - column)
        largest = float(np.max(off, initial=0.0, where=~np.isnan(off)))
        self._largest[name] = max(self._largest.get(name, 0.0), largest)
        return rounded
