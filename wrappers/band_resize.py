"""Resize only those parts of an image that changed."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, gcd

import numpy as np
import numpy.typing as npt

from stepwell.wrappers.opencv import area_resize

__all__ = ["BandResize"]

Image = npt.NDArray[np.uint8]
GAP = 2  # bands: to resize so many unchanged ones costs less than one more call
SLIVER = 1e-3


class BandResize:
    """Shrink a stream of images by averaging areas; the pixels are those of OpenCV's INTER_AREA.

    From 210 to 84 rows, each band of 5 rows becomes a band of 2 rows and depends on nothing else,
    and from one Atari frame to the next most bands stay as they are: on Pong 4 of 5. So the last
    image and its result are kept, and only the bands that differ are resized. Where the rows do not
    divide into such bands, whole images are resized. An NES screen's 240 rows are 12 bands.

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
        if self.bands == 1:
            return area_resize(image, np.empty_like(self._result))
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

    OpenCV weighs rows by float32 numbers that it computes from their row numbers: bands will do if
    those come out the same in each. Enlarging interpolates between neighbours, which may lie in
    another band.
    """
    if shape[0] < size[0] or shape[1] < size[1]:
        return 1
    bands = gcd(shape[0], size[0])
    rows_in, rows_out = shape[0] // bands, size[0] // bands
    one, whole = _weights(rows_in, rows_out), _weights(shape[0], size[0])
    for band in range(bands):
        of_band = whole[band * rows_out : (band + 1) * rows_out]
        if [[(row - band * rows_in, weight) for row, weight in each] for each in of_band] != one:
            return 1
    return bands


def _weights(rows_in: int, rows_out: int) -> list[list[tuple[int, np.float32]]]:
    """For each new row the old rows that it is the sum of, and their weights, as OpenCV has them.

    Source: the table that OpenCV's `resize` makes for INTER_AREA; a sliver of an old row below a
    thousandth of it is left out.
    """
    scale = 1 / (rows_out / rows_in)
    table: list[list[tuple[int, np.float32]]] = []
    for row in range(rows_out):
        begin, end = row * scale, row * scale + scale
        height = min(scale, rows_in - begin)
        last = min(floor(end), rows_in - 1)
        first = min(ceil(begin), last)
        parts = [(whole, np.float32(1 / height)) for whole in range(first, last)]
        if first - begin > SLIVER:
            parts.insert(0, (first - 1, np.float32((first - begin) / height)))
        if end - last > SLIVER:
            parts.append((last, np.float32(min(end - last, 1, height) / height)))
        table.append(parts)
    return table


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
