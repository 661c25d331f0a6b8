"""Wrappers that change an image: crop, gray, resize."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, gcd
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType

from ..buffers.base.number_checks import check_size, is_whole

Image = npt.NDArray[np.uint8]
_MOST_CHANNELS = 4  # of one picture; more may be several pictures


def image_space(env: gymnasium.Env[Any, Any], wrapper: str) -> gymnasium.spaces.Box[Any]:
    """Return the observation space, which must be of uint8 images [H, W] or [H, W, C]."""
    # ``wrapper`` is named in the error.
    space: gymnasium.Space[Any] = env.observation_space
    shape = space.shape or ()
    is_image = len(shape) in (2, 3) and space.dtype == np.uint8
    if is_image and len(shape) == 3 and shape[2] > _MOST_CHANNELS and shape[0] < min(shape[1:]):
        raise ValueError(
            f"{wrapper}: expected an image [H, W] or [H, W, C], got the shape {shape}, whose first "
            "axis looks like channels or a stack of frames; move that axis to the end before, or "
            "stack frames behind this wrapper"
        )
    if not isinstance(space, gymnasium.spaces.Box) or not is_image:
        raise ValueError(
            f"{wrapper}: expected a uint8 image [H, W] or [H, W, C], got {space}; "
            "apply it before wrappers that change the image"
        )
    return space  # pyright: ignore[reportUnknownVariableType]


def require_opencv() -> None:
    """Raise an ImportError with installation hints if OpenCV cannot be imported."""
    try:
        import cv2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ImportError(
            f"Resize and Grayscale need OpenCV, and cv2 cannot be imported ({error}): either "
            "install opencv-python-headless instead of opencv-python, or install the missing "
            "system library (on Debian and Ubuntu: apt install libgl1)"
        ) from error


def area_resize(image: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Resize a C-contiguous image [H, W] or [H, W, C] into `out` by averaging areas."""
    import cv2

    height, width = out.shape[:2]
    cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    return out


def look_up(numbers: npt.NDArray[np.uint8], table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return `table[numbers]` in a new array."""
    import cv2

    return cast("npt.NDArray[np.uint8]", cv2.LUT(numbers, table))


def rgb_of_bgrx(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Convert pixels [H, W, 4] (blue, green, red, unused) to a new RGB image [H, W, 3]."""
    import cv2

    return cast("Image", cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGB))


class Crop(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Crop rows and columns at the edges of an image, such as a scoreboard.

    Args:
        env: An env whose observation is a uint8 image [H, W] or [H, W, C].
        top: Rows to remove at the top.
        bottom: Rows to remove at the bottom.
        left: Columns to remove on the left.
        right: Columns to remove on the right.

    Raises:
        ValueError: The observation is not a uint8 image, a number is negative, or no pixel is
            left.

    Example:
        >>> import ale_py, gymnasium
        >>> env = Crop(gymnasium.make("ALE/Pong-v5"), top=34, bottom=16)
        >>> env.reset(seed=0)[0].shape
        (160, 160, 3)
    """

    def __init__(
        self,
        env: gymnasium.Env[Image, ActType],
        *,
        top: int = 0,
        bottom: int = 0,
        left: int = 0,
        right: int = 0,
    ) -> None:
        space = image_space(env, "Crop")
        height, width = space.shape[:2]
        sides = top, bottom, left, right
        are_whole = all(map(is_whole, sides)) and min(sides) >= 0
        if not are_whole or top + bottom >= height or left + right >= width:
            raise ValueError(
                f"Crop: expected to keep some of {height} rows and {width} columns, got "
                f"top={top}, bottom={bottom}, left={left}, right={right}; cut off less"
            )
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, top=top, bottom=bottom, left=left, right=right
        )
        super().__init__(env)
        self._window = np.s_[top : height - bottom, left : width - right]
        self.observation_space = gymnasium.spaces.Box(
            space.low[self._window], space.high[self._window], dtype=np.uint8
        )

    def observation(self, observation: Image) -> Image:
        """Return the cropped image in a new array."""
        return observation[self._window].copy()


class Grayscale(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Convert a uint8 RGB image to luma, 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), rounded.

    The pixels equal OpenCV's `COLOR_RGB2GRAY`; `gymnasium.wrappers.GrayscaleObservation` uses the
    weights of BT.709 and truncates. ale-py's emulator computes its own gray levels, which
    `make_atari` uses instead.

    Args:
        env: An env whose observation is a uint8 image [H, W, 3]; the new one is [H, W].

    Raises:
        ValueError: The observation is not a uint8 RGB image.
        ImportError: OpenCV cannot be imported.

    Example:
        >>> import ale_py, gymnasium
        >>> env = Grayscale(gymnasium.make("ALE/Pong-v5"))
        >>> env.reset(seed=0)[0].shape
        (210, 160)
    """

    def __init__(self, env: gymnasium.Env[Image, ActType]) -> None:
        shape: tuple[Any, ...] = image_space(env, "Grayscale").shape
        if len(shape) != 3 or shape[2] != 3:
            raise ValueError(
                f"Grayscale: expected an RGB image [H, W, 3], got {shape}; "
                "apply it while the observation is in color"
            )
        require_opencv()
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape[:2], np.uint8)

    def observation(self, observation: Image) -> Image:
        """Return the gray image in a new array."""
        import cv2

        return cast("Image", cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY))


class Resize(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Resize a uint8 image by averaging areas, like OpenCV's `INTER_AREA`.

    The pixels equal those of `gymnasium.wrappers.ResizeObservation`. In addition, only the parts of
    an image that changed are resized, and the error for a missing OpenCV has installation hints.

    Args:
        env: An env whose observation is a uint8 image [H, W] or [H, W, C].
        size: Rows and columns of the new image.

    Raises:
        ValueError: The observation is not a uint8 image, or `size` is not two numbers >= 1.
        ImportError: OpenCV cannot be imported.

    Example:
        >>> import ale_py, gymnasium
        >>> env = Resize(gymnasium.make("ALE/Pong-v5"), (84, 84))
        >>> env.reset(seed=0)[0].shape
        (84, 84, 3)
    """

    def __init__(self, env: gymnasium.Env[Image, ActType], size: tuple[int, int]) -> None:
        space = image_space(env, "Resize")
        check_size(size)
        require_opencv()
        gymnasium.utils.RecordConstructorArgs.__init__(self, size=size)
        super().__init__(env)
        shape = (*size, *space.shape[2:])
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._resize = BandResize(space.shape, size)

    def observation(self, observation: Image) -> Image:
        """Return the resized image in a new array."""
        return self._resize(observation)


GAP = 2  # bands: resizing up to this many unchanged bands is cheaper than another call
SLIVER = 1e-3


class BandResize:
    """Shrink images ([H, W] or [H, W, C]) in turn, with the same pixels as OpenCV's INTER_AREA."""

    # From 210 to 84 rows, each band of 5 rows becomes an independent band of 2 rows, and most bands
    # do not change between Atari frames: 4 of 5 in Pong. So the last image and its result are kept,
    # and only the bands that differ are resized. If the rows do not divide into such bands, whole
    # images are resized. The 240 rows of an NES screen are 12 bands.

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int]) -> None:
        self.bands = count_bands(shape, size)
        self._rows_in, self._rows_out = shape[0] // self.bands, size[0] // self.bands
        self._last = np.zeros(shape, np.uint8)
        self._result = np.zeros((*size, *shape[2:]), np.uint8)
        band_bytes = self._last.size // self.bands
        self._word = np.uint64 if band_bytes % 8 == 0 else np.uint8  # compare 8 bytes at a time

    def __call__(self, image: Image) -> Image:
        """Return the resized image in a new array."""
        image = np.ascontiguousarray(image)
        if self.bands == 1:
            return area_resize(image, np.empty_like(self._result))
        for start, stop in runs(self._changed(image)):
            rows = slice(start * self._rows_in, stop * self._rows_in)
            out = self._result[start * self._rows_out : stop * self._rows_out]
            area_resize(image[rows], out)
            self._last[rows] = image[rows]
        return self._result.copy()

    def _changed(self, image: Image) -> list[int]:
        """Return the indices of the bands that differ from the last image."""
        new = image.reshape(self.bands, -1).view(self._word)
        old = self._last.reshape(self.bands, -1).view(self._word)
        return np.flatnonzero((new != old).any(axis=1)).tolist()


def count_bands(shape: tuple[int, ...], size: tuple[int, int]) -> int:
    """Return the number of bands that can be resized separately with the same result."""
    # OpenCV computes float32 weights from the row numbers; bands are independent if the weights are
    # equal in each of them. Enlarging interpolates between neighbors, which may be in another band.
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
    """Return for each new row the old rows and their weights, as OpenCV computes them."""
    # Source: the table of OpenCV's `resize` for INTER_AREA, which ignores less than a thousandth of
    # an old row.
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


def runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """Join indices that are at most GAP apart into ranges [start, stop)."""
    if not indices:
        return
    start = previous = indices[0]
    for index in indices[1:]:
        if index > previous + 1 + GAP:
            yield start, previous + 1
            start = index
        previous = index
    yield start, previous + 1
