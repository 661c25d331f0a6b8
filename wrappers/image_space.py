"""Check that an env shows images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["image_space"]


def image_space(env: gymnasium.Env[Any, Any], wrapper: str) -> gymnasium.spaces.Box[Any]:
    """Return the env's observation space, which must be that of a uint8 image.

    Args:
        env: The env to look at.
        wrapper: Who asks, for the message.

    Raises:
        ValueError: The observation is not a uint8 array [H, W] or [H, W, C].
    """
    space: gymnasium.Space[Any] = env.observation_space
    is_image = len(space.shape or ()) in (2, 3) and space.dtype == np.uint8
    if not isinstance(space, gymnasium.spaces.Box) or not is_image:
        raise ValueError(
            f"{wrapper}: expected a uint8 image [H, W] or [H, W, C], got {space}; "
            "apply it where the observation still is an image"
        )
    return space  # pyright: ignore[reportUnknownVariableType]
