"""Frames as an MP4 file."""

from __future__ import annotations

import importlib
import os
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

_ENCODER = "libx264"
_QUALITY = {"crf": "18", "preset": "veryfast"}  # no visible loss
_OLDEST_PYAV = 17  # tests/buffers/pictures/test_mp4.py fails with 16.1
_BT709 = 1  # the standard's number for matrix, primaries and transfer
_MOST_DENOMINATOR = 1001  # as in 30000/1001 of television
_LIMITED = 1  # luma from 16 to 235, as players expect
_AVX512 = 13  # cv::CPU_AVX_512F, which OpenCV's Python module has no name for


class Mp4Writer:
    """Writes frames to an MP4 file: H.264, yuv420p, with the index before the frames."""

    # H.264 needs an even width and height; an odd size is extended by repeating the last row or
    # column. The file is written as <path>.part and renamed when it is complete. The fps are
    # rounded to a fraction whose denominator is 1001 at most.

    def __init__(self, path: Path, fps: Fraction) -> None:
        self._av: Any = load_av()
        # A float such as 29.97 is a fraction of numbers that the encoder cannot hold.
        self._fps = fps.limit_denominator(_MOST_DENOMINATOR)
        self._stream: Any = None
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._part.touch()  # a path that cannot be written fails here, not at the first packet
        # The index goes to the front, so that a browser plays what it has loaded so far.
        options = {"movflags": "+faststart"}
        self._container: Any = self._av.open(str(self._part), "w", format="mp4", options=options)

    def add(self, frame: Frame) -> None:
        """Write a frame uint8 [H, W, 3]."""
        frame = np.pad(frame, [(0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)], "edge")
        if self._stream is None:
            self._stream = self._new_stream(*frame.shape[:2])
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
            format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
        )
        self._container.mux(self._stream.encode(picture))

    def close(self) -> None:
        """Write the remaining packets and rename the file; on an error no file is left."""
        try:
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            os.replace(self._part, self._path)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove the unfinished file."""
        try:
            self._container.close()
        finally:
            self._part.unlink(missing_ok=True)

    def _new_stream(self, height: int, width: int) -> Any:
        import cv2

        options = dict(_QUALITY)
        # On AVX-512 x264's macroblock tree differs between two runs on the same frames
        # (findings/x264-avx512-two-files-of-the-same-frames.sh).
        if cv2.checkHardwareSupport(_AVX512):
            options["x264-params"] = "asm=AVX2"
        stream = self._container.add_stream(_ENCODER, rate=self._fps, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        codec = stream.codec_context
        codec.thread_count = 1  # starts no threads, and makes the file reproducible
        # Without these players guess the colour space, each in its own way.
        codec.colorspace = codec.color_primaries = codec.color_trc = _BT709
        codec.color_range = _LIMITED
        return stream


def load_av(otherwise: str = "") -> ModuleType:
    """Import PyAV; the error ends with ``otherwise``: what else the caller can do."""
    try:
        av = importlib.import_module("av")
    except ModuleNotFoundError as error:
        if error.name != "av":
            raise
        raise ImportError(
            "a video file needs PyAV, which is not installed: pip install 'stepwell[video]'"
            + otherwise,
            name="av",
        ) from error
    if int(av.__version__.partition(".")[0]) < _OLDEST_PYAV:
        raise ImportError(
            f"a video file needs PyAV {_OLDEST_PYAV} or newer, got {av.__version__}, which writes "
            f"other colors: pip install -U 'stepwell[video]'",
            name="av",
        )
    if _ENCODER not in av.codecs_available:
        raise ImportError(
            f"a video file needs PyAV with the encoder {_ENCODER}, this one is built without: "
            f"install the wheel with pip install 'stepwell[video]'",
            name="av",
        )
    return av
