"""Frames of an episode, kept compressed in memory, and the names of MP4 files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from zstandard import ZstdCompressor, ZstdDecompressor

from ...buffers.pictures.mp4 import Frame

__all__ = ["CompressedFrames", "FrameCompressor", "Video", "file_names"]


@dataclass(frozen=True, slots=True)
class CompressedFrames:
    """Frames compressed without loss."""

    packed: bytes = field(repr=False)  # all in order, by zstd
    shape: tuple[int, int, int, int]  # (frames, H, W, 3)

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
    """Compresses frames one by one."""

    def __init__(self) -> None:
        self._compressor = ZstdCompressor(level=1).compressobj()
        self._parts: list[bytes] = []
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def add(self, frame: Frame) -> None:
        """Add a frame uint8 [H, W, 3], of the first one's size; it is copied."""
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


def file_names(target: Path, episodes: Iterator[int]) -> dict[int, Path]:
    """The path of each episode's MP4 file, by its number: in a folder, or of one episode a file."""
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
