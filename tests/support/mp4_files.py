"""A scene to film, and MP4 files read back where PyAV is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers.pictures.mp4 import load_av

needs_av = pytest.mark.skipif(
    importlib.util.find_spec("av") is None, reason="needs PyAV: pip install 'stepwell[video]'"
)


def scene(count: int, height: int, width: int) -> np.ndarray:
    """A smooth background in all colours, and a square that moves over it."""
    rows, columns = np.mgrid[0:height, 0:width]
    background = np.stack(
        [rows * 255 / height, columns * 255 / width, 255 - columns * 255 / width], -1
    )
    frames = np.repeat(background[None].astype(np.uint8), count, 0)
    for t, frame in enumerate(frames):
        frame[4:16, 2 * t % (width - 12) :][:, :12] = [250, 20, 20]
    return frames


def read(path: Path) -> tuple[Any, np.ndarray]:
    """The stream's facts, and the frames [T, H, W, 3]."""
    with load_av().open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        codec = stream.codec_context
        facts = {
            "codec": codec.name,
            "tag": codec.codec_tag,
            "pixels": codec.pix_fmt,
            "fps": stream.average_rate,
            "frames": stream.frames,
            "size": (codec.height, codec.width),
            "seconds": float(stream.duration * stream.time_base),
            "colours": (codec.colorspace, codec.color_range),
            "streams": len(container.streams),
        }
    return facts, np.stack(frames)
