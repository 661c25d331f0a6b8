"""Adapt envs of stable-retro to Gymnasium."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import gymnasium
import numpy as np

from ..env_results import AdaptedEnv, is_of, layers_of, owned_array, owned_info, owned_observation
from ..versions import module_versions


def from_retro(env: gymnasium.Env[Any, Any]) -> StableRetroEnv:
    """Adapt an env of stable-retro, and correct its episodes.

    | `RetroEnv` (stable-retro 1.0.1) | adapted |
    |---|---|
    | without a `.state` file `reset` does not reset the game | it starts at power-on |
    | `step` after the end continues silently | `ResetNeeded` |
    | the observation is the array that `render` shows, cropped ones are views | contiguous copies |
    | `reset` returns no variables | `info` has them, as Python ints, from the first frame |
    | `step` modifies an action in a 0-d array | it is not modified |
    | `metadata` lacks `render_fps`, which `RecordVideo` needs | the console's rate |

    Everything else is unchanged: one frame per step, the picture, the rewards and ends including
    Lua scripts, and the action space; episodes are never truncated. By default the action space is
    a MultiBinary with an unused bit, without START and SELECT for most games, and the env renders
    into a window unless `render_mode` was "rgb_array" or None.

    stable-retro allows one emulator per process, so `make_vec` gives each env a worker:
    `make_vec(lambda: from_retro(stable_retro.make("Name-Nes-v0")), 4)`.

    Args:
        env: An env of stable-retro, with or without wrappers. Without a start state it must not
            have been reset yet.

    Returns:
        An env that passes `gymnasium.utils.env_checker.check_env`; its `retro_env` is `env`.

    Raises:
        TypeError: `env` is not an env of stable-retro.
        ValueError: It was reset without a start state, or returns one reward per player.

    Example:
        >>> from_retro(gymnasium.make("CartPole-v1"))
        Traceback (most recent call last):
        TypeError: env: expected an env of stable-retro, got CartPoleEnv; ...
    """
    return StableRetroEnv(env)


class StableRetroEnv(AdaptedEnv):
    """The env that `from_retro` returns."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        base = _checked_base(env)
        if not base.initial_state:
            base.initial_state = base.em.get_state()
        self.retro_env = env
        self._base = base
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.render_mode = env.render_mode
        rate = round(base.em.get_screen_rate())
        self.metadata = {**env.metadata, "render_fps": rate, "stepwell": _recipe(env, base)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Load the start state and play one frame without buttons."""
        self._check_open()
        super().reset(seed=seed)
        observation, info = self.retro_env.reset(seed=seed, options=options)
        self._is_over = False
        return self._owned(observation), {**self._base.data.lookup_all(), **owned_info(info)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one frame."""
        self._check_begun()
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            action = int(action)  # RetroEnv modifies it in place
        observation, reward, terminated, truncated, info = self.retro_env.step(action)
        self._is_over = bool(terminated or truncated)
        total = float(np.asarray(reward).item())
        return self._owned(observation), total, bool(terminated), bool(truncated), owned_info(info)

    def render(self) -> Any:
        """Return a copy of the last frame, or show it in a window with render mode "human"."""
        self._check_open()
        picture = self.retro_env.render()
        return owned_array(picture) if isinstance(picture, np.ndarray) else None

    def _owned(self, observation: object) -> Any:
        return owned_observation(self.observation_space, observation)


def _checked_base(env: object) -> Any:
    """The `RetroEnv` inside; Any, as stable-retro has no types."""
    base: Any = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if not is_of(base, "stable_retro", "RetroEnv"):
        raise TypeError(
            f"env: expected an env of stable-retro, got {type(base).__name__}; pass what "
            "stable_retro.make returned, or use from_gym for an env of the old gym"
        )
    if not hasattr(base, "em"):
        raise ValueError(
            "env: expected an open env of stable-retro, got a closed one; make another one"
        )
    if not base.initial_state and (base.img is not None or base.ram is not None):
        raise ValueError(
            "env: expected an env without a start state that was not reset yet, got one in the "
            "middle of a game, which cannot return to power-on; pass it to from_retro first"
        )
    if base.players > 1 and base.multi_rewards:
        raise ValueError(
            f"env: expected one reward a step, got one for each of {base.players} players; "
            "set multi_rewards = False"
        )
    return base


def _recipe(env: gymnasium.Env[Any, Any], base: Any) -> dict[str, object]:
    layers = [*takewhile(lambda one: isinstance(one, gymnasium.Wrapper), layers_of(env, "env"))]
    # The constructor arguments, of which only some are attributes.
    _, _, scenario, info, *_ = getattr(base, "_ezpickle_args", (None,) * 4)
    return {
        "maker": "from_retro",
        "id": str(base.gamename),
        "state": base.statename if base.statename is None else str(base.statename),
        "scenario": scenario if scenario is None else str(scenario),
        "info": info if info is None else str(info),
        "actions": str(base.use_restricted_actions),
        "observations": str(base._obs_type),
        "players": int(base.players),
        "wrappers": [one.class_name() for one in reversed(layers)],
        "versions": module_versions(["stable_retro"]),
    }
