"""Begin every episode with a random number of idle frames."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
from gymnasium.core import ActType, ObsType

from stepwell.wrappers.emulator import action_meanings

__all__ = ["NoopStart"]


class NoopStart(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """Do nothing for a random number of frames after each reset, so that starts differ.

    The number is drawn uniformly from 0 to `noop_max`, both included, from the env's own
    generator, and is recorded in the reset's `info["noops"]`. Should the game end meanwhile, it is
    reset and the rest of the no-ops follow. Source: Mnih et al. 2015, "Human-level control through
    deep reinforcement learning", Methods.

    Args:
        env: An env that advances one frame a step, with Discrete actions.
        noop_max: The greatest number of no-ops, at least 0.
        noop_action: The action that does nothing.

    Raises:
        ValueError: `noop_max` is negative, or the env says that `noop_action` does something.

    Example:
        >>> import gymnasium
        >>> env = NoopStart(gymnasium.make("CartPole-v1"), noop_max=5)
        >>> 0 <= env.reset(seed=0)[1]["noops"] <= 5
        True
    """

    def __init__(
        self, env: gymnasium.Env[ObsType, ActType], noop_max: int = 30, *, noop_action: int = 0
    ) -> None:
        _check(env, noop_max, noop_action)
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, noop_max=noop_max, noop_action=noop_action
        )
        super().__init__(env)
        self.noop_max = noop_max
        self.noop_action = cast("ActType", noop_action)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset, then do nothing for the drawn number of frames."""
        observation, info = self.env.reset(seed=seed, options=options)
        noops = int(self.np_random.integers(self.noop_max + 1))
        for _ in range(noops):
            observation, _, terminated, truncated, info = self.env.step(self.noop_action)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, {**info, "noops": noops}


def _check(env: gymnasium.Env[ObsType, ActType], noop_max: int, noop_action: int) -> None:
    if noop_max < 0:
        raise ValueError(f"noop_max: expected at least 0 frames, got {noop_max}; 0 starts at once")
    meanings = action_meanings(env)
    if meanings and meanings[noop_action] != "NOOP":
        raise ValueError(
            f"noop_action: expected the index of NOOP among {meanings}, got {noop_action}"
        )
