"""Press FIRE after a reset, for games that wait for it."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
from gymnasium.core import ActType, ObsType

from stepwell.wrappers.emulator import action_meanings

__all__ = ["FireReset"]


class FireReset(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """Press FIRE for one frame after each reset, for games that start only then.

    Args:
        env: An Atari env that advances one frame a step and has a FIRE action.

    Raises:
        ValueError: The env has no action named FIRE.

    Example:
        >>> import ale_py, gymnasium
        >>> env = FireReset(gymnasium.make("ALE/Breakout-v5", frameskip=1))
        >>> env.reset(seed=0)[1]["episode_frame_number"]
        1
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        meanings = action_meanings(env)
        if "FIRE" not in meanings:
            raise ValueError(
                f"FireReset: expected an env with an action named FIRE, got {meanings}"
            )
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.fire_action = cast("ActType", meanings.index("FIRE"))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset, then press FIRE; a game that ends on it is reset and left as it is."""
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(self.fire_action)
        if terminated or truncated:
            return self.env.reset(options=options)
        return observation, info
