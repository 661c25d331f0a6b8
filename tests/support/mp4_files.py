"""Reads MP4 files back, where PyAV is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.collectors.evaluation.video import load_av

needs_av = pytest.mark.skipif(
    importlib.util.find_spec("av") is None, reason="needs PyAV: pip install 'stepwell[video]'"
)


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
