"""Resize only those parts of an image that changed."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np
import numpy.typing as npt

from stepwell.wrappers.opencv import area_resize

__all__ = ["BandResize"]

Image = npt.NDArray[np.uint8]
GAP = 2  # bands: to resize so many unchanged ones costs less than one more call


class BandResize:
    """Shrink a stream of images by averaging areas; the pixels are those of OpenCV's INTER_AREA.

    From 210 to 84 rows, each band of 5 rows becomes a band of 2 rows and depends on nothing else,
    and from one Atari frame to the next most bands stay as they are: on Pong 4 of 5. So the last
    image and its result are kept, and only the bands that differ are resized. Where the rows do not
    divide into such bands, whole images are resized.

    Args:
        shape: Shape of the images that come in, [H, W] or [H, W, C].
        size: Rows and columns of the images that go out.

    Example:
        >>> import numpy as np
        >>> resize = BandResize((210, 160), (84, 84))
        >>> resize(np.full((210, 160), 7, np.uint8))[83, 83]
        np.uint8(7)
    """

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int]) -> None:
        self.bands = _bands(shape, size)
        self._rows_in, self._rows_out = shape[0] // self.bands, size[0] // self.bands
        self._last = np.zeros(shape, np.uint8)
        self._result = np.zeros((*size, *shape[2:]), np.uint8)
        band_bytes = self._last.size // self.bands
        self._word = np.uint64 if band_bytes % 8 == 0 else np.uint8  # compare 8 bytes at a time

    def __call__(self, image: Image) -> Image:
        """Return the resized image, in memory of its own."""
        image = np.ascontiguousarray(image)
        for start, stop in _runs(self._changed(image)):
            rows = slice(start * self._rows_in, stop * self._rows_in)
            out = self._result[start * self._rows_out : stop * self._rows_out]
            area_resize(image[rows], out)
            self._last[rows] = image[rows]
        return self._result.copy()

    def _changed(self, image: Image) -> list[int]:
        """Indices of the bands that differ from those of the last image."""
        new = image.reshape(self.bands, -1).view(self._word)
        old = self._last.reshape(self.bands, -1).view(self._word)
        return np.flatnonzero((new != old).any(axis=1)).tolist()


def _bands(shape: tuple[int, ...], size: tuple[int, int]) -> int:
    """In how many bands the rows can be resized one by one, with the very same result.

    The weights are floating-point numbers computed from row numbers times `rows_in / rows_out`.
    They are the same in every band if those products are exact: if the denominator is a power of 2.
    Enlarging interpolates between neighbours, which may lie in another band.
    """
    if shape[0] < size[0] or shape[1] < size[1]:
        return 1
    bands = gcd(shape[0], size[0])
    denominator = size[0] // bands
    return bands if denominator & (denominator - 1) == 0 else 1


def _runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """Join indices that are at most GAP apart into runs [start, stop)."""
    if not indices:
        return
    start = previous = indices[0]
    for index in indices[1:]:
        if index > previous + 1 + GAP:
            yield start, previous + 1
            start = index
        previous = index
    yield start, previous + 1
