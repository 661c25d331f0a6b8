"""Pictures and animations read back as other programs read them."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np


@dataclass
class Shown:
    """The picture in a file."""

    frames: np.ndarray  # uint8 [T, H, W, 3]
    durations: list[float]  # seconds of each


def decoded(data: bytes) -> np.ndarray:
    """A picture as RGB, uint8 [H, W, 3]."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return pixels[..., ::-1]


def as_rgb(pixels: np.ndarray, axes: int) -> np.ndarray:
    """Grey pixels, of as many axes, as RGB; RGB unchanged."""
    return np.repeat(pixels[..., None], 3, -1) if pixels.ndim == axes else pixels


def read_animation(data: bytes) -> Shown:
    """The frames of a GIF or WebP file, which may have a single one."""
    padded = np.frombuffer(data.ljust(64, b"\0"), np.uint8)  # one pixel takes less than is read
    is_read, animation = cv2.imdecodeanimation(padded)
    assert is_read
    durations = [float(each) / 1000 for each in animation.durations]
    frames = np.array(animation.frames)[..., 2::-1]
    is_still = len(frames) == 1 and data.startswith(b"RIFF")
    return Shown(frames, [0] if is_still else durations)


read_gif = read_webp = read_animation


def of_rows(shown: Shown, count: int, fps: float) -> np.ndarray:
    """The frame that is seen at each row of a clip, [T, H, W, 3]: equal neighbours may be one."""
    ends = np.cumsum(shown.durations)
    middles = (np.arange(count) + 0.5) / fps
    places = np.searchsorted(ends, middles)
    return shown.frames[np.minimum(places, len(shown.frames) - 1)]
