"""Writes frames to video files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Frame", "Mp4Writer", "VideoFile", "load_av"]

Frame = npt.NDArray[np.uint8]

_ENCODER = "libx264"
_QUALITY = {"crf": "18", "preset": "veryfast"}  # visually lossless
_BT709 = 1  # its number in the standard, for matrix, primaries and transfer
_LIMITED = 1  # luma from 16 to 235, as players expect


class VideoFile:
    """A file whose name ends in ".part" until it is complete.

    Args:
        av: PyAV.
        path: Path of the file; an existing one is replaced.
        kind: FFmpeg's name of the format.
        options: Options of the format.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self, av: ModuleType, path: Path, kind: str, options: Mapping[str, str] | None = None
    ) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._part.touch()  # a path that cannot be written fails now, not with the first packet
        self.container: Any = av.open(str(self._part), "w", format=kind, options=options or {})

    def finish(self, encode_rest: Callable[[], None]) -> None:
        """Write the rest and give the file its name; if that fails no file is left."""
        try:
            encode_rest()
            self.container.close()
            os.replace(self._part, self._path)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave no file behind."""
        try:
            self.container.close()
        finally:
            self._part.unlink(missing_ok=True)


class Mp4Writer:
    """Writes frames to an MP4 file as they come: H.264, yuv420p, its index before its frames.

    Width and height must be even for that; a row or column that is missing repeats the last one.
    The name ends in ".part" until the file is complete.

    Args:
        path: Path of the file; an existing one is replaced.
        fps: Frames a second.

    Raises:
        ImportError: PyAV is not installed.
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path, fps: Fraction) -> None:
        self._av = load_av()
        self._fps = fps
        self._stream: Any = None
        # The index goes to the front, so that a browser plays what it has loaded so far.
        self._file = VideoFile(self._av, path, "mp4", {"movflags": "+faststart"})

    def add(self, frame: Frame) -> None:
        """Write a frame uint8 [H, W, 3]."""
        frame = np.pad(frame, [(0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)], "edge")
        if self._stream is None:
            self._stream = self._begin(*frame.shape[:2])
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
            format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
        )
        self._file.container.mux(self._stream.encode(picture))

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._file.finish(self._encode_rest)

    def abort(self) -> None:
        """Leave no file behind."""
        self._file.abort()

    def _encode_rest(self) -> None:
        if self._stream is not None:
            self._file.container.mux(self._stream.encode(None))

    def _begin(self, height: int, width: int) -> Any:
        stream = self._file.container.add_stream(_ENCODER, rate=self._fps, options=_QUALITY)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        codec = stream.codec_context
        codec.thread_count = 1  # starts no threads, and makes equal files of equal frames
        # Without these, every player guesses the colours in its own way.
        codec.colorspace = codec.color_primaries = codec.color_trc = _BT709
        codec.color_range = _LIMITED
        return stream


def load_av(otherwise: str = "") -> ModuleType:
    """Import PyAV.

    Args:
        otherwise: An alternative for the caller, for the error.

    Raises:
        ImportError: It is not installed, or cannot encode H.264.
    """
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
    if _ENCODER not in av.codecs_available:
        raise ImportError(
            f"a video file needs PyAV with the encoder {_ENCODER}, this one is built without: "
            f"install the wheel with pip install 'stepwell[video]'",
            name="av",
        )
    return av
