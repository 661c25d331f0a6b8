"""Show the newest few observations together."""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType

__all__ = ["FrameStack"]

Array = npt.NDArray[Any]


class FrameStack(
    gymnasium.Wrapper[Array, ActType, Array, ActType], gymnasium.utils.RecordConstructorArgs
):
    """Show the newest `size` observations as one array, oldest first.

    Unlike `gymnasium.wrappers.FrameStackObservation` (1.4.0) it copies each observation when it
    arrives, so that an env which hands out one live buffer is stacked right.

    Args:
        env: An env with a Box observation of shape S.
        size: Observations in a stack, at least 1; the new shape is `(size, *S)`.
        padding: What stands before an episode's first observation: "zero" (as ale-py's vector
            env does) or "repeat" (the first observation again, as gymnasium does).

    Raises:
        ValueError: `size` is below 1, `padding` is unknown, or the observation is no Box.

    Example:
        >>> import gymnasium
        >>> env = FrameStack(gymnasium.make("CartPole-v1"), 3, padding="zero")
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape, bool(observation[:2].any())
        ((3, 4), False)
    """

    def __init__(
        self,
        env: gymnasium.Env[Array, ActType],
        size: int = 4,
        *,
        padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        space = _check(env, size, padding)
        gymnasium.utils.RecordConstructorArgs.__init__(self, size=size, padding=padding)
        super().__init__(env)
        self.padding = padding
        low, high = (np.repeat(bound[None], size, axis=0) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        self._stack: Array = np.zeros(low.shape, space.dtype)

    def step(self, action: ActType) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and show the stack that ends with the new observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = observation
        return self._stack.copy(), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset, and show the first observation behind its padding."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._stack[:-1] = 0 if self.padding == "zero" else observation
        self._stack[-1] = observation
        return self._stack.copy(), info


def _check(env: gymnasium.Env[Any, ActType], size: int, padding: str) -> gymnasium.spaces.Box[Any]:
    if size < 1:
        raise ValueError(f"size: expected at least 1 observation, got {size}; 1 stacks nothing")
    if padding not in ("zero", "repeat"):
        raise ValueError(f"padding: expected 'zero' or 'repeat', got {padding!r}")
    space: gymnasium.Space[Any] = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"FrameStack: expected a Box observation space, got {space}")
    return space  # pyright: ignore[reportUnknownVariableType]
