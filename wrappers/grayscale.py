"""Turn a coloured image into a gray one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType

from stepwell.wrappers.image_space import image_space
from stepwell.wrappers.opencv import gray, require_opencv

__all__ = ["Grayscale"]

Image = npt.NDArray[np.uint8]


class Grayscale(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Show the luma of a uint8 RGB image, 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), rounded.

    The pixels are those of OpenCV's `COLOR_RGB2GRAY`; `gymnasium.wrappers.GrayscaleObservation`
    weighs the colours otherwise (BT.709) and cuts the fraction off. Atari's emulator has gray
    levels of its own, which `make_atari` uses instead.

    Args:
        env: An env whose observation is a uint8 image [H, W, 3]; the new one is [H, W].

    Raises:
        ValueError: The observation is no such image.
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
                "apply it where the observation still is in colour"
            )
        require_opencv()
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape[:2], np.uint8)

    def observation(self, observation: Image) -> Image:
        """Return the gray image, in memory of its own."""
        return gray(observation)
