"""Pictures: the place of their channels, and lossless PNG as tables and records store them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np

from ...base.untrusted_files import MemoryBudget
from ...spec.spec import Field

Axes = Literal["hw", "hwc", "chw"]
"""The axes of a picture: H W in gray, H W C, or C H W."""

_LEAST_SIDE: Final = 16
"""Smaller arrays of bytes are boards and codes, such as those of MiniGrid, more often than
pictures."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_CHANNELS: Final = {0: 1, 2: 3, 3: 4, 4: 4, 6: 4}
"""Channels that OpenCV makes, by PNG's type of colors; of a palette there may be four."""
_MARKERS_WITHOUT_LENGTH: Final = {0x01, *range(0xD0, 0xD9)}
"""Markers of JPEG without a length."""
_NO_FRAME: Final = (0xC4, 0xC8, 0xCC)
_LEVEL: Final = 3  # of 9; four times faster than 9 on frames of games, and a tenth larger


def picture_axes(field: Field) -> Axes | None:
    """The axes of a field whose rows are pictures that PNG can hold exactly; else None."""
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
    """Each row of [T, ...] uint8 as a PNG file: RGB is RGB in it, and one channel is gray."""
    import cv2  # imported on first use

    files: list[bytes] = []
    for row in rows if axes != "chw" else np.moveaxis(rows, 1, -1):
        picture = np.ascontiguousarray(_swapped_colors(row))
        is_done, file = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, _LEVEL])
        if not is_done:  # no known input fails
            raise ValueError(f"a picture of shape {row.shape}: expected PNG to hold it, it did not")
        files.append(file.tobytes())
    return files


def decoded_rows(
    files: Iterable[bytes],
    shape: tuple[int, ...] | None = None,
    budget: MemoryBudget | None = None,
) -> np.ndarray:
    """Rows [T, ...] uint8 or uint16 of PNG or JPEG files; H W if gray, else H W C."""
    # The size of each is read from its header, before memory is taken for it.
    import cv2  # imported on first use

    rows: list[np.ndarray] = []
    for file in files:
        found = None
        if is_picture(file):
            if budget is not None:
                budget.take(picture_bytes(file))
            with contextlib.suppress(cv2.error):  # otherwise it returns None
                found = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
        if found is None:
            raise ValueError(
                f"picture {len(rows)}: expected a PNG or JPEG file, got {len(file)} other or "
                f"damaged bytes"
            )
        row = _swapped_colors(found)
        wanted = shape or (rows[0].shape if rows else row.shape)
        if row.size != np.prod(wanted) or (row.shape != wanted and 1 not in wanted):
            raise ValueError(
                f"picture {len(rows)}: expected shape {wanted}, got {row.shape}; all pictures of a "
                f"column have one size"
            )
        rows.append(row.reshape(wanted))
    return np.stack(rows) if rows else np.zeros((0, *(shape or ())), np.uint8)


def is_lossy(file: bytes) -> bool:
    """True if a picture is JPEG, which is lossy."""
    return file[:3] == _JPEG


def is_picture(file: bytes) -> bool:
    """True if it begins as PNG or JPEG do; no other decoder of OpenCV's is used."""
    return file[:8] == _PNG or is_lossy(file)


def picture_bytes(file: bytes) -> int:
    """Bytes of a decoded picture, from its header; for other data its own size."""
    if file[:8] == _PNG and len(file) >= 26:
        width, height, depth, color = struct.unpack_from(">IIBB", file, 16)
        return int(width * height * ((depth + 7) // 8) * _CHANNELS.get(color, 4))
    if is_lossy(file):
        height, width = _jpeg_size(file)
        return height * width * 3
    return len(file)


def _jpeg_size(file: bytes) -> tuple[int, int]:
    """Rows and columns of a JPEG file, of its largest frame."""
    largest, place = (0, 0), 2
    while place + 9 <= len(file) and file[place] == 0xFF:
        marker, length = file[place + 1], int.from_bytes(file[place + 2 : place + 4])
        if marker == 0xFF or marker in _MARKERS_WITHOUT_LENGTH:
            place += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            size = struct.unpack_from(">HH", file, place + 5)
            largest = max(largest, (size[0], size[1]), key=lambda pair: pair[0] * pair[1])
        if marker == 0xDA:  # the picture itself follows
            break
        place += 2 + length
    return largest


def _swapped_colors(picture: np.ndarray) -> np.ndarray:
    """RGB as OpenCV's BGR, or the other way round."""
    if picture.ndim == 2 or picture.shape[2] == 1:
        return picture
    return picture[..., [2, 1, 0, *range(3, picture.shape[2])]]
