"""Cut the borders off an image."""

from __future__ import annotations

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType

from stepwell.wrappers.image_space import image_space

__all__ = ["Crop"]

Image = npt.NDArray[np.uint8]


class Crop(
    gymnasium.ObservationWrapper[Image, ActType, Image], gymnasium.utils.RecordConstructorArgs
):
    """Cut rows and columns off the edges of an image, e.g. a scoreboard.

    Args:
        env: An env whose observation is a uint8 image [H, W] or [H, W, C].
        top: Rows to cut off above.
        bottom: Rows to cut off below.
        left: Columns to cut off on the left.
        right: Columns to cut off on the right.

    Raises:
        ValueError: The observation is no uint8 image, a number is negative, or nothing is left.

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
        if min(top, bottom, left, right) < 0 or top + bottom >= height or left + right >= width:
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
        """Return what is left, in memory of its own."""
        return observation[self._window].copy()
