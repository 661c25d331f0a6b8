"""Seed an Atari emulator with the seed itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gymnasium
from gymnasium.core import ActType, ObsType
from gymnasium.utils.seeding import np_random

from stepwell.wrappers.emulator import emulator_of

if TYPE_CHECKING:
    from ale_py.env import AtariEnv

__all__ = ["EmulatorSeed"]

LARGEST_SEED = 2**31 - 1  # the emulator's setting is a signed 32-bit integer


class EmulatorSeed(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """Seed the emulator with the very seed that `reset` is given.

    ale-py's `AtariEnv` seeds its emulator with a hash of the seed, ale-py's vector env with the
    seed itself. Under this wrapper both draw the same sticky actions from the same seed.

    Args:
        env: An ale-py `AtariEnv`, bare or wrapped.

    Raises:
        ValueError: The env is no Atari env, or on `reset`: the seed is not in 0 .. 2**31 - 1.

    Example:
        >>> import ale_py, gymnasium
        >>> env = EmulatorSeed(gymnasium.make("ALE/Pong-v5"))
        >>> _ = env.reset(seed=7)
        >>> env.unwrapped.ale.getInt("random_seed")
        7
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        self._ale = emulator_of(env)
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset, after seeding the emulator and the env's generator when a seed is given."""
        if seed is not None:
            self._seed(seed)
        return self.env.reset(options=options)

    def _seed(self, seed: int) -> None:
        if not 0 <= seed <= LARGEST_SEED:
            raise ValueError(f"seed: expected 0 to {LARGEST_SEED}, got {seed}")
        self.env.unwrapped.np_random = np_random(seed)[0]
        self._ale.setInt("random_seed", seed)
        cast("AtariEnv", self.env.unwrapped).load_game()  # the emulator takes its seed as it loads
