"""Pixels as PNG, WebP, GIF and MP4 files, which replace others when they are complete."""

from __future__ import annotations

import importlib
import math
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Animated = Literal["webp", "gif"]
"""The kind of a file of moving pictures that is made in memory."""

MOST_SIDE = 16_383
"""Pixels of a side of a WebP file, at most."""

LEAST_FPS = 0.1
MOST_FPS = 1000
"""Frames a second of a clip: file formats count time in milliseconds, or in few bits."""

GIF_FPS = 50
"""Frames a second of a GIF, at most: browsers show a frame of less than two hundredths for ten."""

_MOST_PIXELS = (
    1 << 20
)  # of a sprite: one frame waits for all, 50 ns a flat pixel, 3 us one of a photo
_MOST_COLUMNS = 8
_LOSSLESS = 101  # OpenCV's name for it: a quality above 100
# Of all frames: one call, which Ctrl-C cannot interrupt, takes 1 to 3 us a pixel.
_MOST_BYTES = 1 << 27
_TICK = {"webp": 1, "gif": 10}  # milliseconds: the unit of time in the file


def block_size(height: int, width: int) -> tuple[int, int]:
    """Columns and rows of frames in a sprite: 8 and 8, fewer for large frames."""
    side = min(_MOST_COLUMNS, math.isqrt(_MOST_PIXELS // (height * width)))
    side = max(1, min(side, MOST_SIDE // height, MOST_SIDE // width))
    return side, side


def sprite(pixels: np.ndarray) -> bytes:
    """Frames uint8 ``[n, H, W]`` or ``[n, H, W, 3]`` as one lossless WebP image, row by row."""
    # They are in the grid of `block_size`, whose places without a frame are black.
    count, height, width = pixels.shape[:3]
    columns, rows = block_size(height, width)
    if not 1 <= count <= columns * rows:
        raise ValueError(f"sprite: expected 1 to {columns * rows} frames, got {count}")
    sheet = np.zeros((rows, height, columns, width, *pixels.shape[3:]), np.uint8)
    for place, frame in enumerate(pixels):
        sheet[place // columns, :, place % columns] = frame
    return webp(sheet.reshape(rows * height, columns * width, *pixels.shape[3:]))


def png(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a PNG file."""
    return _encoded(".png", pixels, ())


def webp(pixels: np.ndarray) -> bytes:
    """A picture, uint8 ``[H, W]`` or ``[H, W, 3]``, as a lossless WebP file."""
    import cv2

    return _encoded(".webp", pixels, (cv2.IMWRITE_WEBP_QUALITY, _LOSSLESS))


def _encoded(ending: str, pixels: np.ndarray, options: tuple[int, ...]) -> bytes:
    import cv2

    _check_picture(pixels)
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(ending, pixels, options)
    return data.tobytes()


def _check_picture(pixels: np.ndarray) -> None:
    is_picture = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    is_sized = is_picture and 1 <= min(pixels.shape[:2]) <= max(pixels.shape[:2]) <= MOST_SIDE
    if not is_sized or pixels.dtype != np.uint8:
        raise ValueError(
            f"picture: expected uint8 [H, W] or [H, W, 3] with sides of 1 to {MOST_SIDE}, got "
            f"{pixels.dtype} {list(pixels.shape)}"
        )


def animation(
    pixels: Iterable[np.ndarray], fps: float | Fraction, kind: Animated = "webp"
) -> bytes:
    """Frames uint8 ``[H, W]`` or ``[H, W, 3]`` as an animated file that repeats for ever."""
    # In a WebP file, which is exact, neighbours that are equal are one frame, shown as long as all
    # of them; a clip in which nothing moves is a still picture. A GIF plays at most 50 frames a
    # second and rounds colours: the darkest ones to black, and where a frame has more than 255,
    # others too. All frames are held in memory; see `most_frames`.
    import cv2

    check_fps(fps)
    frames: list[np.ndarray] = []
    for frame in pixels:
        _check_picture(frame)
        if frames and frame.shape[:2] != frames[0].shape[:2]:
            raise ValueError(
                f"expected frames of one shape {frames[0].shape[:2]}, got one of "
                f"{frame.shape[:2]}; give frames of one field"
            )
        if frame.ndim == 3:
            frames.append(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        else:  # OpenCV writes no grey GIF
            frames.append(cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR) if kind == "gif" else +frame)
    if not frames:
        raise ValueError("expected at least one frame, got none")
    clip = cv2.Animation()
    clip.frames = frames
    # Milliseconds of each frame, as the file can hold them, which add up to the right time.
    tick = _TICK[kind]
    apart = 1000 / Fraction(min(fps, GIF_FPS) if kind == "gif" else fps) / tick
    ends = [tick * round(place * apart) for place in range(len(frames) + 1)]
    clip.durations = [stop - begin for begin, stop in pairwise(ends)]
    options = {
        "webp": (cv2.IMWRITE_WEBP_QUALITY, _LOSSLESS),
        # No dithering, and a table of colours for each frame.
        "gif": (cv2.IMWRITE_GIF_DITHER, 3, cv2.IMWRITE_GIF_COLORTABLE, 1),
    }
    is_done, data = cv2.imencodeanimation(f".{kind}", clip, options[kind])
    if not is_done:
        raise ValueError(
            f"OpenCV {cv2.__version__} cannot write these frames as .{kind}, expected 4.13 or newer"
        )
    return bytes(data)


def most_frames(kind: Animated, height: int, width: int, channels: int) -> int:
    """Frames of an animation at most: all are in memory at once."""
    bytes_each = height * width * (3 if kind == "gif" else channels)
    return max(1, _MOST_BYTES // bytes_each)


def check_fps(fps: float | Fraction) -> None:
    """Refuse a number of frames a second that a clip cannot have."""
    if not LEAST_FPS <= fps <= MOST_FPS:
        raise ValueError(f"fps: expected a number from {LEAST_FPS} to {MOST_FPS}, got {fps}")


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A new file in the target's folder, which replaces the target if the block succeeds."""
    # Else it is removed, and the target is as it was. No other file is touched.
    # A name of its own: a file of the user's may be called strip.png.part.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.open("xb").close()
    except OSError as error:  # the user knows only the target
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
