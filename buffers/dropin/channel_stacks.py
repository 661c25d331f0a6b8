"""Frames stacked along their channels, the last axis: the oldest frame has the first ones."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

__all__ = ["ChannelStacks", "RecentFrames"]

# OpenCV moves numbers of these sizes, whatever they mean.
_WORDS: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
_MOST_PLANES = 128  # of an image of OpenCV 5


class ChannelStacks:
    """Makes stacks ``[B, H, W, C * k]`` of frames ``[H, W, C]``, or ``[H, W]``: one channel.

    They are made plane by plane: several times as fast as a transposed copy.

    Args:
        shape: Shape of a frame, two or three axes.
        dtype: Its dtype, of at most eight bytes.
        k: Frames of a stack.
        contiguous: Give arrays in C order; else views, of which ``np.transpose(stacks, (0, 3, 1,
            2))`` is in that order for each stack.

    Example:
        >>> frames = np.arange(5, dtype=np.uint8).reshape(1, 5, 1, 1, 1)
        >>> before, after = ChannelStacks((1, 1, 1), frames.dtype, 4).pair(frames)
        >>> before.ravel(), after.ravel()
        (array([0, 1, 2, 3], dtype=uint8), array([1, 2, 3, 4], dtype=uint8))
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        k: int,
        *,
        contiguous: bool = True,
    ) -> None:
        import cv2  # takes as long as the rest of Stepwell together

        self._cv2: Any = cv2
        self.shape, self.dtype, self.k = shape, dtype, k
        self._image = shape[:2]
        self._pixels = shape[0] * shape[1]
        self._contiguous = contiguous
        channels = shape[2] if len(shape) > 2 else 1
        # Where a pixel's channels together are a word they need not be taken apart.
        size = dtype.itemsize * channels
        is_word = contiguous and size in _WORDS
        self.word = np.dtype(_WORDS[size if is_word else dtype.itemsize])
        self.planes_of_frame = 1 if is_word else channels
        self._channels = channels * k

    def pair(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stacks of the first k frames and of the last k, each [B, H, W, C * k].

        Args:
            frames: [B, k + 1, H, W, C], or without the C; C-contiguous.
        """
        planes = self.planes(frames)
        return self._stacks(planes, 0), self._stacks(planes, self.planes_of_frame)

    def planes(self, frames: np.ndarray) -> np.ndarray:
        """The words of frames [B, n, ...], channel by channel: [B, n * planes, H * W]."""
        batch, n = frames.shape[:2]
        c = self.planes_of_frame
        if c == 1:
            return frames.view(self.word).reshape(batch, n, self._pixels)
        planes = np.empty((batch * n, c, self._pixels), self.word)
        self.take_apart(frames, [planes[:, channel] for channel in range(c)])
        return planes.reshape(batch, n * c, self._pixels)

    def take_apart(self, frames: np.ndarray, planes: list[np.ndarray]) -> None:
        """Copy the channels of frames [..., H, W, C] into planes [frames, H * W]."""
        pixels = frames.view(self.word).reshape(-1, self._pixels, len(planes))
        if len(planes) > _MOST_PLANES:
            for channel, plane in enumerate(planes):
                plane[...] = pixels[..., channel]
        else:
            self._cv2.split(pixels, planes)

    def woven(self, planes: list[np.ndarray]) -> np.ndarray:
        """Stacks [B, H, W, C * k] in C order, of so many planes [B, H * W]."""
        batch, count = len(planes[0]), len(planes)
        stacks = np.empty((batch, *self._image, self._channels), self.dtype)
        words = stacks.view(self.word).reshape(batch, self._pixels, count)
        if count > _MOST_PLANES:
            np.stack(planes, axis=-1, out=words)
        else:
            self._cv2.merge(planes, words)
        return stacks

    def one(self, planes: list[np.ndarray]) -> np.ndarray:
        """A stack [H, W, C * k] of so many planes [H, W]: the same, sooner."""
        merge = np.dstack if len(planes) > _MOST_PLANES else self._cv2.merge
        stack: np.ndarray = merge(planes).view(self.dtype)
        return stack.reshape(*self._image, self._channels)

    def _stacks(self, planes: np.ndarray, first: int) -> np.ndarray:
        """The stacks that begin with a plane."""
        stop = first + self.k * self.planes_of_frame
        if self._contiguous:
            return self.woven([planes[:, place] for place in range(first, stop)])
        some = planes[:, first:stop].view(self.dtype)
        return some.reshape(len(planes), stop - first, *self._image).transpose(0, 2, 3, 1)


class RecentFrames:
    """The newest frames of one env, stacked as the batches are.

    Args:
        stacks: How; None where only the newest frame counts.
        shape: Shape of a frame.
        dtype: Its dtype.
    """

    def __init__(
        self, stacks: ChannelStacks | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        self._stacks = stacks
        self._frames: list[np.ndarray] = list(
            np.empty((1 if stacks is None else stacks.k, *shape), dtype)
        )
        self._count = 0
        self._planes: list[list[np.ndarray]] = []  # of each frame, [H, W]
        self._blank: list[np.ndarray] = []
        if stacks is not None:
            # Views, where a frame is one plane.
            taken = [stacks.planes(frame[None, None])[0] for frame in self._frames]
            self._planes = [list(planes.reshape(-1, *shape[:2])) for planes in taken]
            blank = np.zeros_like(self._planes[0][0])
            self._blank = [blank] * (stacks.k * stacks.planes_of_frame)
        self._shown = deque(self._blank, len(self._blank))

    @property
    def has_any(self) -> bool:
        """A frame was pushed."""
        return self._count > 0

    @property
    def newest(self) -> np.ndarray:
        """The frame that was pushed last; valid until the next one."""
        return self._frames[(self._count - 1) % len(self._frames)]

    def push(self, frame: np.ndarray, *, is_first: bool) -> None:
        """Take up a copy of a frame.

        Args:
            frame: As declared.
            is_first: It is that of a reset.
        """
        place = self._count % len(self._frames)
        self._frames[place][...] = frame
        self._count += 1
        if self._stacks is None:
            return
        if is_first:
            self._shown.extend(self._blank)
        planes = self._planes[place]
        if len(planes) > 1:
            self._stacks.take_apart(self._frames[place], [plane.reshape(1, -1) for plane in planes])
        self._shown.extend(planes)

    def stack(self) -> np.ndarray:
        """The stack that ends with the newest frame, [H, W, C * k], or that frame."""
        if self._stacks is None:
            return self.newest.copy()
        return self._stacks.one(list(self._shown))
