"""An episode's frames as a video file, or as one picture of a few of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from stepwell.buffers.dropin.memmap.named_batch import plain_array
from stepwell.buffers.video import Frame, Mp4Writer, VideoFile, load_av

__all__ = ["frames_to_sheet", "trajectory_to_video"]

_CHANNELS: Final = (1, 3, 4)
_MOST_FPS: Final = {".mp4": 1000, ".gif": 50}  # a GIF's clock has 100 ticks a second


class _Writer(Protocol):
    def add(self, frame: Frame) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def trajectory_to_video(
    frames: object, path: str | os.PathLike[str], fps: float | Fraction = 30
) -> Path:
    """Write frames to a file that plays.

    ``.mp4`` gives H.264, hardly to be told from the frames by eye; it needs even numbers of rows
    and columns, so that the last one may come twice. ``.gif`` is exact for gray frames, and for up
    to 256 colours in all frames together; of more, the nearest of 255 are taken.

    Args:
        frames: uint8, or floats from 0 to 1, of shape [T, H, W], [T, H, W, C] or [T, C, H, W] with
            1 (gray), 3 (RGB) or 4 channels (RGBA, if nothing shines through). Where both the
            second and the last axis could be channels, it is the last. A tensor is taken too.
        path: Where it goes; it ends in ".mp4" or ".gif". A file there is replaced, once the new
            one is whole.
        fps: Frames a second.

    Returns:
        The path.

    Raises:
        ImportError: PyAV is not installed.
        TypeError: The frames are of another dtype.
        ValueError: The frames have another shape or other values, or the path another ending.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> frames = np.linspace(0, 1, 8 * 32 * 32, dtype=np.float32).reshape(8, 32, 32)
        >>> trajectory_to_video(frames, f"{tempfile.mkdtemp()}/episode.gif", fps=10).name
        'episode.gif'
    """
    file = Path(path)
    rate = _checked_rate(file, fps)
    pictures = _Pictures(frames)
    writer: _Writer = (
        Mp4Writer(file, rate)
        if file.suffix.lower() == ".mp4"
        else _GifWriter(file, rate, _palette_of(pictures))
    )
    try:
        for frame in pictures:
            writer.add(frame)
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return file


def frames_to_sheet(frames: object, rows: int = 2, columns: int = 5) -> np.ndarray:
    """One picture of frames that are spread evenly over time, row by row.

    Args:
        frames: Of shape [T, H, W], [T, H, W, C] or [T, C, H, W], as in `trajectory_to_video`, of
            any dtype.
        rows: Frames beside each other in a column.
        columns: Frames beside each other in a row.

    Returns:
        Array [rows * H, columns * W, C] of the same dtype; gray frames without a channel axis give
        3 equal channels. Of fewer frames than places some come twice.

    Raises:
        ValueError: There is no frame, or no place for one.

    Example:
        >>> frames = np.arange(100, dtype=np.uint8).repeat(4 * 6).reshape(100, 4, 6)
        >>> sheet = frames_to_sheet(frames)
        >>> sheet.shape, sheet[::4, ::6, 0].tolist()
        ((8, 30, 3), [[0, 11, 22, 33, 44], [55, 66, 77, 88, 99]])
    """
    if min(rows, columns) < 1:
        raise ValueError(
            f"rows and columns: expected whole numbers >= 1, got {rows} and {columns}; give the "
            f"number of frames beside and below each other"
        )
    array = plain_array(frames)
    pictures = _with_channels(array)
    chosen = pictures[np.linspace(0, len(pictures) - 1, rows * columns).astype(np.int64)]
    if array.ndim == 3:
        chosen = np.repeat(chosen, 3, axis=-1)
    _, height, width, channels = chosen.shape
    grid = chosen.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)


class _Pictures(Iterable[Frame]):
    """Frames as a video file takes them, uint8 [H, W, 3].

    Args:
        frames: As in `trajectory_to_video`; all are checked here.
    """

    def __init__(self, frames: object) -> None:
        array = plain_array(frames)
        if array.dtype != np.uint8 and array.dtype.kind != "f":
            raise TypeError(
                f"frames: expected uint8, or floats from 0 to 1, got {array.dtype}; convert them "
                f"as they are meant first"
            )
        self._frames = _with_channels(array)
        if self._frames.dtype.kind == "f":
            _check_range(self._frames)
        if self._frames.shape[-1] == 4 and not all(
            (frame[..., 3] == 255).all() for frame in map(_bytes_of, self._frames)
        ):
            raise ValueError(
                "frames: expected a fourth channel that is 1 (or 255) everywhere, got frames that "
                "something shines through, which a video cannot; give three channels"
            )

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames:
            pixels = _bytes_of(frame)[..., :3]
            colours = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels
            yield np.ascontiguousarray(colours)


def _with_channels(frames: np.ndarray) -> np.ndarray:
    """Frames [T, H, W, C]."""
    shape = frames.shape
    if frames.ndim == 3:
        frames = frames[..., None]
    elif frames.ndim == 4 and shape[-1] not in _CHANNELS and shape[1] in _CHANNELS:
        frames = np.moveaxis(frames, 1, -1)
    if frames.ndim != 4 or frames.shape[-1] not in _CHANNELS or not frames.size:
        raise ValueError(
            f"frames: expected at least one frame, [T, H, W] or with 1, 3 or 4 channels "
            f"[T, H, W, C] or [T, C, H, W], got shape {shape}; bring the axes into this order"
        )
    return frames


def _check_range(frames: np.ndarray) -> None:
    least, most = float(frames.min()), float(frames.max())
    if not (least >= 0 and most <= 1):  # which NaN is not, either
        raise ValueError(
            f"frames: expected floats from 0 to 1, got {least:.4g} to {most:.4g}; scale them, or "
            f"give uint8"
        )


def _bytes_of(frame: np.ndarray) -> Frame:
    if frame.dtype == np.uint8:
        return frame
    levels: Frame = np.round(frame * np.asarray(255, frame.dtype)).astype(np.uint8)
    return levels


def _checked_rate(file: Path, fps: float | Fraction) -> Fraction:
    suffix = file.suffix.lower()
    if suffix not in _MOST_FPS:
        raise ValueError(
            f"{file}: expected a path that ends in .mp4 or .gif, got {file.suffix or 'no ending'!r}"
            f"; name the file so"
        )
    if not (math.isfinite(fps) and 0 < fps <= _MOST_FPS[suffix]):
        raise ValueError(
            f"fps: expected more than 0 and at most {_MOST_FPS[suffix]} for a {suffix} file, got "
            f"{fps}; give the frames a second at which it plays"
        )
    return Fraction(fps).limit_denominator(1001)


def _numbers_of(frame: Frame) -> np.ndarray:
    """Colours uint8 [H, W, 3] as numbers [H, W]."""
    numbers: np.ndarray = frame.astype(np.uint32) @ np.array([65_536, 256, 1], np.uint32)
    return numbers


def _palette_of(pictures: Iterable[Frame]) -> np.ndarray | None:
    """The colours of all frames as numbers, in order; None where they are more than 256."""
    palette = np.empty(0, np.uint32)
    for frame in pictures:
        palette = np.union1d(palette, _numbers_of(frame))
        if len(palette) > 256:
            return None
    return palette


class _GifWriter:
    """Writes frames to a GIF.

    Args:
        path: Where it is to be; a file there is replaced once the new one is whole.
        fps: Frames a second.
        palette: Their colours as numbers, in order; None keeps the frames until all are there, to
            choose 255 of them.
    """

    def __init__(self, path: Path, fps: Fraction, palette: np.ndarray | None) -> None:
        self._av: Any = load_av()
        self._tick = 1 / fps
        self._palette = palette
        self._colours = _colour_table(palette)
        self._count = 0
        self._stream: Any = None
        self._graph: Any = None
        self._file = VideoFile(self._av, path, "gif")

    def add(self, frame: Frame) -> None:
        """Take up a frame uint8 [H, W, 3]."""
        if not self._count:
            self._begin(*frame.shape[:2])
        if self._palette is None:
            self._graph.push(self._timed(self._av.VideoFrame.from_ndarray(frame, format="rgb24")))
            return
        places = np.searchsorted(self._palette, _numbers_of(frame)).astype(np.uint8)
        picture = self._av.VideoFrame.from_ndarray((places, self._colours), format="pal8")
        self._file.container.mux(self._stream.encode(self._timed(picture)))

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._file.finish(self._encode_rest)

    def abort(self) -> None:
        """Leave no file behind."""
        self._file.abort()

    def _encode_rest(self) -> None:
        if self._graph is not None:
            self._graph.push(None)
            for _ in range(self._count):
                self._file.container.mux(self._stream.encode(self._graph.pull()))
        self._file.container.mux(self._stream.encode(None))

    def _timed(self, picture: Any) -> Any:
        picture.pts, picture.time_base = self._count, self._tick
        self._count += 1
        return picture

    def _begin(self, height: int, width: int) -> None:
        self._stream = self._file.container.add_stream("gif", rate=1 / self._tick)
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = "pal8"
        self._stream.codec_context.time_base = self._tick
        if self._palette is None:
            self._graph = self._choosing(height, width)

    def _choosing(self, height: int, width: int) -> Any:
        """Chooses 255 colours for all frames, and gives each pixel the nearest."""
        graph = self._av.filter.Graph()
        names = (
            ("split", None),
            ("palettegen", None),
            ("paletteuse", "dither=none"),
            ("buffersink", None),
        )
        source = graph.add_buffer(width=width, height=height, format="rgb24", time_base=self._tick)
        split, choose, use, sink = (graph.add(name, options) for name, options in names)
        source.link_to(split)
        split.link_to(use, 0, 0)
        split.link_to(choose, 1, 0)
        choose.link_to(use, 0, 1)
        use.link_to(sink)
        graph.configure()
        return graph


def _colour_table(palette: np.ndarray | None) -> np.ndarray:
    """Opaque colours [256, (A, R, G, B)] uint8."""
    table = np.full(256, 0xFF000000, ">u4")
    if palette is not None:
        table[: len(palette)] |= palette
    return table.view(np.uint8).reshape(256, 4)
