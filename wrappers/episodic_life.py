"""Let a lost life end the learner's episode while the game goes on."""

from __future__ import annotations

import copy
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.core import ActType, ObsType

__all__ = ["EpisodicLife"]


class EpisodicLife(
    gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], gymnasium.utils.RecordConstructorArgs
):
    """End the learner's episode with `terminated` when a life is lost; the game itself goes on.

    The reset that follows a lost life leaves the game alone and returns the current observation:
    no frame is lost between the two episodes. `info["game_over"]` says whether the game is really
    over, so that the score of the whole game can be kept. A reset with a seed or with options, or
    one that does not follow a lost life, is a real one. Losing the last life is the game's own end.

    Args:
        env: An env whose info holds `"lives"` after each reset and step, as ale-py's does.

    Raises:
        KeyError: On `reset` or `step`, when the env's info holds no `"lives"`.

    Example:
        >>> import ale_py, gymnasium
        >>> env = EpisodicLife(gymnasium.make("ALE/Breakout-v5"))
        >>> env.reset(seed=0)[1]["lives"]
        5
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._lives = 0
        self._goes_on: tuple[ObsType, dict[str, Any]] | None = None

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the game; a lost life is reported as `terminated`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        game_over = terminated or truncated
        lives = _lives(info)
        # Some games show 0 lives for a few frames before they end: their end is enough.
        lost = 0 < lives < self._lives and not game_over
        self._lives = lives
        info = {**info, "game_over": game_over}
        self._goes_on = (copy.deepcopy(observation), info) if lost else None
        return observation, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the game if it is over; after a lost life, return where it stands."""
        goes_on, self._goes_on = self._goes_on, None
        if goes_on is not None and seed is None and not options:
            return goes_on
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives = _lives(info)
        return observation, {**info, "game_over": False}


def _lives(info: dict[str, Any]) -> int:
    if "lives" not in info:
        raise KeyError(
            f"EpisodicLife: expected the env's info to hold 'lives', got {sorted(info)}; "
            "wrap an env that counts lives"
        )
    return int(info["lives"])
