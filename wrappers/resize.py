"""Resize an image by averaging areas."""

from __future__ import annotations

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType

from stepwell.wrappers.band_resize import BandResize
from stepwell.wrappers.image_space import image_space
from stepwell.wrappers.opencv import require_opencv

__all__ = ["Resize"]

Image = npt.NDArray[np.uint8]


class Resize(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Resize a uint8 image by averaging areas, as OpenCV's `INTER_AREA` does.

    The pixels are those of `gymnasium.wrappers.ResizeObservation`. What that one lacks: only the
    parts of an image that changed are resized, and where OpenCV cannot be imported the error names
    the cures.

    Args:
        env: An env whose observation is a uint8 image [H, W] or [H, W, C].
        size: Rows and columns of the new image.

    Raises:
        ValueError: The observation is no uint8 image, or `size` is not two numbers of at least 1.
        ImportError: OpenCV cannot be imported.

    Example:
        >>> import ale_py, gymnasium
        >>> env = Resize(gymnasium.make("ALE/Pong-v5"), (84, 84))
        >>> env.reset(seed=0)[0].shape
        (84, 84, 3)
    """

    def __init__(self, env: gymnasium.Env[Image, ActType], size: tuple[int, int]) -> None:
        space = image_space(env, "Resize")
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size: expected (rows, columns), each at least 1, got {size}")
        require_opencv()
        gymnasium.utils.RecordConstructorArgs.__init__(self, size=size)
        super().__init__(env)
        shape = (*size, *space.shape[2:])
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._resize = BandResize(space.shape, size)

    def observation(self, observation: Image) -> Image:
        """Return the resized image, in memory of its own."""
        return self._resize(observation)
