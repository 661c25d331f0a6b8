"""Fields of a row that are images, and their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..spec.spec import Field, Spec

_MOST_SIDE = 16_383  # of a WebP file
_MOST_PIXELS = 1 << 26
_MOST_PICTURES = 16  # in one row
_MOST_LETTERS = 400  # of a store's own words in a message
_LEAST_SIDE = {"u1": 8, "b1": 8}  # smaller ones are codes of a grid, not pictures
_LEAST_OTHER_SIDE = 16  # a matrix of numbers is more often no picture than one of bytes
_SCALES = {
    "b": "False is black, True is white",
    "f": "0 to 1 is black to white; a frame with other values, from its lowest to its highest",
}

_Layout = Literal["HW", "HWC", "CHW"]


@dataclass(frozen=True, slots=True)
class ImageField:
    """A field that is shown as an image: one grey or RGB picture a row."""

    # Rows [H, W], [H, W, C] and [C, H, W] are images. One channel is grey and three are RGB. More
    # channels are several pictures, which are shown side by side, the first at the left: a multiple
    # of three are RGB pictures, any other number are grey ones. An alpha channel is therefore the
    # last of four grey pictures. A row [k, H, W, C] or [k, C, H, W] has k times as many. Where the
    # first and the last axis could be the channels, the shorter one is.
    #
    # Bytes are shown as they are. False is black, True is white. Other numbers are scaled for each
    # frame: from 0 (black) to 1 (white) if they are all within, else from the lowest to the highest
    # one; NaN is black.

    name: str
    height: int
    width: int  # of all pictures of a row together, in pixels
    channels: int  # 1 for grey, 3 for RGB
    layout: _Layout  # axes of one picture as it is stored
    pictures: int = 1  # side by side in each row
    stack: int = 1  # frames in the env's observation, of which each row stores one
    scale: str = ""  # how values are made pixels, in words; empty if they are the same

    @property
    def is_exact(self) -> bool:
        """The pixels are the stored values."""
        return not self.scale

    def pixels(self, rows: np.ndarray) -> np.ndarray:
        """Pictures of stored rows ``[T, ...]``: uint8 ``[T, H, W]`` grey, ``[T, H, W, 3]`` RGB."""
        # It is a view of the rows where they are bytes in that order.
        count, channels = len(rows), self.channels
        height, width = self.height, self.width // self.pictures
        levels = rows if self.is_exact else _levels(rows)
        if self.layout == "CHW":
            parts = levels.reshape(count, self.pictures, channels, height, width)
            parts = parts.transpose(0, 3, 1, 4, 2)
        elif rows.ndim == 5:
            inner = rows.shape[-1] // channels
            parts = levels.reshape(count, rows.shape[1], height, width, inner, channels)
            parts = parts.transpose(0, 2, 1, 4, 3, 5)
        else:
            parts = levels.reshape(count, height, width, self.pictures, channels)
            parts = parts.transpose(0, 1, 3, 2, 4)
        shape = (count, height, self.width)
        return parts.reshape(shape if channels == 1 else (*shape, channels))


def image_fields(spec: Spec) -> tuple[ImageField, ...]:
    """The fields that are images: those of the observation first, then info and extra."""
    # Both sides of a picture have at least 8 pixels of bytes or bools, 16 of other numbers: smaller
    # arrays are numbers to read rather than pictures. They have at most 16,383, the limit of WebP,
    # with 64 million pixels in all.
    found = map(_image_of, (*spec.of_kind("observation"), *spec.of_kind("info", "extra")))
    return tuple(image for image in found if image is not None)


def image_field(spec: Spec, name: str | None = None) -> ImageField:
    """The image field with that name, or the first one."""
    images = image_fields(spec)
    if not images:
        raise ValueError(
            f"expected a field of images such as uint8 [H, W] or [H, W, 3], got "
            f"{spec.summary[:_MOST_LETTERS]}; "
            f"wrap the env in gymnasium.wrappers.AddRenderObservation to collect its pictures, or "
            f"see the curves with stepwell view"
        )
    for image in images:
        if name in (None, image.name):
            return image
    names = ", ".join(image.name for image in images)[:_MOST_LETTERS]
    raise ValueError(f"field: expected a field of images ({names}), got {name!r}; name one of them")


def _image_of(field: Field) -> ImageField | None:
    """The field as an image, or None."""
    dtype, shape = field.numpy_dtype, field.shape
    if dtype.kind not in "buif":
        return None
    least = _LEAST_SIDE.get(f"{dtype.kind}{dtype.itemsize}", _LEAST_OTHER_SIDE)
    lead, inner = (shape[0], shape[1:]) if len(shape) == 4 else (1, shape)
    layout, height, width, planes = _axes_of(inner, least)
    channels = 3 if planes and planes % 3 == 0 else 1
    pictures = lead * planes // channels
    width *= pictures
    if not 1 <= pictures <= _MOST_PICTURES or min(height, width // pictures) < least:
        return None
    if max(height, width) > _MOST_SIDE or height * width > _MOST_PIXELS:
        return None
    scale = "" if dtype == np.uint8 else _SCALES.get(dtype.kind, _SCALES["f"])
    return ImageField(field.name, height, width, channels, layout, pictures, field.stack, scale)


def _axes_of(shape: tuple[int, ...], least: int) -> tuple[_Layout, int, int, int]:
    """Layout, height, width and channels; no channels if it is no picture."""
    if len(shape) == 2:
        return "HW", *shape, 1
    if len(shape) != 3:
        return "HW", 0, 0, 0
    first, middle, last = shape
    is_last = min(first, middle) >= least and 1 <= last <= 3 * _MOST_PICTURES
    is_first = min(middle, last) >= least and 1 <= first <= 3 * _MOST_PICTURES
    if is_last and (last <= first or not is_first):
        return "HWC", first, middle, last
    return ("CHW", middle, last, first) if is_first else ("HW", 0, 0, 0)


def _levels(rows: np.ndarray) -> np.ndarray:
    """The rows as grey levels, uint8, each row scaled by itself."""
    if rows.dtype == np.bool_:
        return rows.view(np.uint8) * np.uint8(255)
    levels = np.empty(rows.shape, np.uint8)
    for row, level in zip(rows, levels, strict=True):
        values = row.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        if 0 <= low and high <= 1:
            low, high = 0.0, 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            # Halves, as the difference of two large numbers overflows.
            part = (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
            level[...] = np.rint(np.clip(np.nan_to_num(part, nan=0.0), 0, 1) * 255)
    return levels
