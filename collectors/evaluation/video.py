"""Frames of an episode: kept compressed in memory, and written to an MP4 file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from zstandard import ZstdCompressor, ZstdDecompressor

__all__ = [
    "CompressedFrames",
    "Frame",
    "FrameCompressor",
    "Mp4Writer",
    "Video",
    "file_names",
    "load_av",
]

Frame = npt.NDArray[np.uint8]

_ENCODER = "libx264"
_QUALITY = {"crf": "18", "preset": "veryfast"}  # no visible loss
_BT709 = 1  # the standard's number for matrix, primaries and transfer
_LIMITED = 1  # luma from 16 to 235, as players expect


@dataclass(frozen=True, slots=True)
class CompressedFrames:
    """Frames compressed without loss.

    Args:
        packed: All frames in order, compressed by zstd.
        shape: (frames, H, W, 3).
    """

    packed: bytes = field(repr=False)
    shape: tuple[int, int, int, int]

    def unpack(self) -> Frame:
        """The frames, uint8 [T + 1, H, W, 3], in new memory."""
        frames = np.empty(self.shape, np.uint8)
        target, filled = memoryview(cast("Any", frames.reshape(-1))), 0
        with ZstdDecompressor().stream_reader(BytesIO(self.packed)) as reader:
            while count := reader.readinto(target[filled:]):
                filled += count
        assert filled == frames.size
        return frames


@dataclass(frozen=True, slots=True)
class Video:
    """The frames of one episode.

    They are kept compressed: drawn scenes take about a hundredth of their size, noisy ones almost
    all of it.

    Args:
        episode: Number of the episode in the evaluation.
        fps: Frames per second at which it plays in real time.
        path: The MP4 file; None where no file was requested.
        kept: The compressed frames.
    """

    episode: int
    fps: float
    path: Path | None
    kept: CompressedFrames = field(repr=False)

    @property
    def frames(self) -> Frame:
        """The frames uint8 [T + 1, H, W, 3]: one of the reset, then one of each of T steps.

        Every access decompresses them: keep the result if you need it more than once.
        """
        return self.kept.unpack()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of `frames`."""
        return self.kept.shape

    def to_json(self) -> dict[str, object]:
        """Plain data, without the frames."""
        path = None if self.path is None else str(self.path)
        return {"episode": self.episode, "fps": self.fps, "path": path, "shape": list(self.shape)}


class FrameCompressor:
    """Compresses frames one by one.

    Example:
        >>> keeper = FrameCompressor()
        >>> for level in range(3):
        ...     keeper.add(np.full((4, 6, 3), level, np.uint8))
        >>> keeper.finish().unpack()[:, 0, 0, 0]
        array([0, 1, 2], dtype=uint8)
    """

    def __init__(self) -> None:
        self._compressor = ZstdCompressor(level=1).compressobj()
        self._parts: list[bytes] = []
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def add(self, frame: Frame) -> None:
        """Add a frame uint8 [H, W, 3]; it is copied.

        Raises:
            ValueError: Its size differs from the first frame's.
        """
        if self._count and frame.shape != self._shape:
            raise ValueError(
                f"video: expected frames of one size {self._shape}, got one of {frame.shape}; "
                f"render all of an episode in the same size"
            )
        self._shape = frame.shape
        self._parts.append(self._compressor.compress(frame.tobytes()))
        self._count += 1

    def finish(self) -> CompressedFrames:
        """The frames so far; no more can be added."""
        packed = b"".join([*self._parts, self._compressor.flush()])
        shape = (self._count, *self._shape)
        return CompressedFrames(packed, cast("tuple[int, int, int, int]", shape))


class Mp4Writer:
    """Writes frames to an MP4 file: H.264, yuv420p, with the index before the frames.

    H.264 needs an even width and height; an odd size is extended by repeating the last row or
    column. The file is written as ``<path>.part`` and renamed when it is complete.

    Args:
        path: The file; an existing one is replaced.
        fps: Frames per second.

    Raises:
        ImportError: PyAV is not installed.
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path, fps: Fraction) -> None:
        self._av: Any = load_av()
        self._fps = fps
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
        stream = self._container.add_stream(_ENCODER, rate=self._fps, options=_QUALITY)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        codec = stream.codec_context
        codec.thread_count = 1  # starts no threads, and makes the file reproducible
        # Without these players guess the colour space, each in its own way.
        codec.colorspace = codec.color_primaries = codec.color_trc = _BT709
        codec.color_range = _LIMITED
        return stream


def load_av(otherwise: str = "") -> ModuleType:
    """Import PyAV.

    Args:
        otherwise: Text for the end of the error: what else the caller can do.

    Raises:
        ImportError: It is not installed, or it cannot encode H.264.
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


def file_names(target: Path, episodes: Iterator[int]) -> dict[int, Path]:
    """The path of each episode's MP4 file, by its number.

    Args:
        target: A folder, or a file that ends in ".mp4".
        episodes: Numbers of the episodes.

    Raises:
        ValueError: There are several episodes, and the target is one file; or it is another file.

    Example:
        >>> file_names(Path("runs/videos"), iter([0, 12]))[12].as_posix()
        'runs/videos/episode-12.mp4'
    """
    numbers = list(episodes)
    if target.suffix.lower() != ".mp4":
        if target.is_file():
            raise ValueError(
                f"video: expected a folder, or a file that ends in .mp4, got the file {target}; "
                f"choose another name"
            )
        return {number: target / f"episode-{number}.mp4" for number in numbers}
    if len(numbers) > 1:
        raise ValueError(
            f"video: expected a folder for {len(numbers)} episodes, got the file {target}; name a "
            f"folder, or one episode in video_episodes"
        )
    return {number: target for number in numbers}
