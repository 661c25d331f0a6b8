"""Pictures as lossless PNG, the way in which tables and records of other libraries hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import numpy as np

from stepwell.buffers.spec import Field

__all__ = ["Axes", "decoded_rows", "encoded_rows", "is_lossy", "picture_axes"]

Axes = Literal["hw", "hwc", "chw"]
"""How a row is a picture: H W in gray, H W C, or C H W."""

_LEAST_SIDE: Final = 16
"""Smaller arrays of bytes are boards and codes, such as those of MiniGrid, more often than
pictures."""
_LEVEL: Final = 3  # of 9; four times faster than 9 on frames of games, and a tenth larger


def picture_axes(field: Field) -> Axes | None:
    """How the rows of a field are pictures that PNG can hold, bit for bit; None if they are none.

    Example:
        >>> picture_axes(Field("observation", "uint8", (84, 84), "zstd"))
        'hw'
        >>> picture_axes(Field("observation", "uint8", (7, 7, 3), "zstd")) is None
        True
    """
    shape = field.shape
    if field.dtype != "uint8":
        return None
    if len(shape) == 2 and min(shape) >= _LEAST_SIDE:
        return "hw"
    if len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= _LEAST_SIDE:
        return "hwc"
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _LEAST_SIDE:
        return "chw"
    return None


def encoded_rows(rows: np.ndarray, axes: Axes) -> list[bytes]:
    """Each row as a PNG file.

    Args:
        rows: [T, ...] uint8, with the axes that `picture_axes` told.
        axes: How a row is a picture.

    Returns:
        T files. RGB is RGB in them, and one channel is gray.

    Example:
        >>> rows = np.arange(512, dtype=np.uint8).reshape(2, 16, 16)
        >>> np.array_equal(decoded_rows(encoded_rows(rows, "hw"), (16, 16), "hw"), rows)
        True
    """
    import cv2  # loads when it is needed

    files: list[bytes] = []
    for row in rows if axes != "chw" else np.moveaxis(rows, 1, -1):
        picture = np.ascontiguousarray(_turned(row))
        is_done, file = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, _LEVEL])
        if not is_done:  # nothing is known that makes it so
            raise ValueError(f"a picture of shape {row.shape}: expected PNG to hold it, it did not")
        files.append(file.tobytes())
    return files


def decoded_rows(
    files: Iterable[bytes], shape: tuple[int, ...] | None = None, axes: Axes = "hwc"
) -> np.ndarray:
    """The rows that `encoded_rows` had, or those of somebody else's pictures.

    Args:
        files: T PNG files, or pictures of other kinds that OpenCV reads.
        shape: What a row had; None: H W in gray, else H W C.
        axes: How a row is a picture; without a shape it says nothing.

    Returns:
        [T, ...] uint8 or uint16.

    Raises:
        ValueError: One is no picture, or of another size.
    """
    import cv2  # loads when it is needed

    rows: list[np.ndarray] = []
    for file in files:
        found = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED) if file else None
        if found is None:
            raise ValueError(f"picture {len(rows)}: expected a PNG file, got {len(file)} bytes")
        row = _turned(found)
        if axes == "chw" and shape is not None and row.ndim == 3:
            row = np.moveaxis(row, -1, 0)
        wanted = shape or (rows[0].shape if rows else row.shape)
        if row.size != np.prod(wanted) or (row.shape != wanted and 1 not in wanted):
            raise ValueError(
                f"picture {len(rows)}: expected shape {wanted}, got {row.shape}; all pictures of a "
                f"column have one size"
            )
        rows.append(row.reshape(wanted))
    return np.stack(rows) if rows else np.zeros((0, *(shape or ())), np.uint8)


def is_lossy(file: bytes) -> bool:
    """Whether a picture is JPEG, which is not what the env gave."""
    return file[:3] == b"\xff\xd8\xff"


def _turned(picture: np.ndarray) -> np.ndarray:
    """RGB as OpenCV's BGR, or the other way round."""
    if picture.ndim == 2 or picture.shape[2] == 1:
        return picture
    return picture[..., [2, 1, 0, *range(3, picture.shape[2])]]
