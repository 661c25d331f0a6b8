"""Wrappers that change where episodes begin and end."""

from __future__ import annotations

import copy
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium.core import ActType, ObsType

from ..buffers.base.number_checks import check_whole
from .ale_env import Emulator, action_meanings, emulator_actions, emulator_info, emulator_of
from .env_results import RecordedWrapper


class NoopStart(RecordedWrapper[ObsType, ActType]):
    """Play a random number of no-op frames after each reset, so that starts differ.

    The number is drawn uniformly from 0 to `noop_max` (inclusive) with the env's generator, and
    recorded in the reset's `info["noops"]`; `reset(options={"noops": n})` plays n instead. If the
    game ends during the no-ops, it is reset and the remaining no-ops follow. Source: Mnih et al.
    2015, "Human-level control through deep reinforcement learning", Methods.

    A few Atari games have no NOOP among their actions (Backgammon, Video Checkers). For these the
    no-ops are played through the emulator.

    Args:
        env: An env that advances one frame per step, with Discrete actions.
        noop_max: Maximum number of no-ops, at least 0.
        noop_action: The no-op action.

    Raises:
        ValueError: `noop_max` is negative, or `noop_action` is not the env's NOOP, or the game has
            no NOOP and a wrapper changes its screens.

    Example:
        >>> import gymnasium
        >>> env = NoopStart(gymnasium.make("CartPole-v1"), noop_max=5)
        >>> 0 <= env.reset(seed=0)[1]["noops"] <= 5
        True
    """

    def __init__(
        self, env: gymnasium.Env[ObsType, ActType], noop_max: int = 30, *, noop_action: int = 0
    ) -> None:
        check_whole("noop_max", noop_max, 0, hint="; 0 starts at once")
        meanings = action_meanings(env)
        has_no_noop = bool(meanings) and "NOOP" not in meanings and hasattr(env.unwrapped, "ale")
        if has_no_noop and noop_action == 0:
            space, screens = env.observation_space, env.unwrapped.observation_space
            if space != screens or len(space.shape or ()) < 2:
                raise ValueError(
                    f"NoopStart: expected the emulator's screens as observations, where no action "
                    f"of {meanings} is NOOP, got {space}; wrap it before other wrappers"
                )
        elif meanings and meanings[noop_action : noop_action + 1] != ["NOOP"]:
            raise ValueError(
                f"noop_action: expected the index of NOOP among {meanings}, got {noop_action}"
            )
        super().__init__(env, {"noop_max": noop_max, "noop_action": noop_action})
        self.noop_max = noop_max
        self.noop_action = cast("ActType", noop_action)
        self._ale = emulator_of(env) if has_no_noop else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset, then play the drawn number of no-ops; none after the start of a snapshot.

        Args:
            seed: Passed on.
            options: `{"noops": n}` plays n instead; the number is still drawn, so that later draws
                are the same. Other options are passed on.

        Raises:
            ValueError: The number is not from 0 to `noop_max`.
        """
        options, chosen = split_noops(options, self.noop_max)
        observation, info = self.env.reset(seed=seed, options=options)
        if "snapshot" in (options or {}):
            return observation, info
        drawn = int(self.np_random.integers(self.noop_max + 1))
        noops = drawn if chosen is None else chosen
        for _ in range(noops):
            if self._ale is None:
                observation, _, terminated, truncated, info = self.env.step(self.noop_action)
                is_over = terminated or truncated
            else:
                observation, is_over, info = self._emulator_noop(self._ale)
            if is_over:
                observation, info = self.env.reset(options=options)
        return observation, {**info, "noops": noops}

    def _emulator_noop(self, ale: Emulator) -> tuple[ObsType, bool, dict[str, Any]]:
        """Play one no-op frame through the emulator."""
        (noop,) = emulator_actions(["NOOP"])
        ale.act(noop, 1.0)
        shape = cast("tuple[int, ...]", self.env.observation_space.shape)
        screen = np.empty(shape, np.uint8)
        read = ale.getScreenRGB if len(shape) == 3 else ale.getScreenGrayscale
        read(screen)
        return cast("ObsType", screen), ale.game_over(with_truncation=True), emulator_info(ale)


def split_noops(
    options: dict[str, Any] | None, noop_max: int
) -> tuple[dict[str, Any] | None, int | None]:
    """Split options of a reset into those of the env and the number of no-ops, None for none."""
    if options is None or "noops" not in options:
        return options, None
    check_whole("options['noops']", options["noops"], 0, most=noop_max)
    rest = {name: value for name, value in options.items() if name != "noops"}
    return rest or None, int(options["noops"])


class FireReset(RecordedWrapper[ObsType, ActType]):
    """Press FIRE for one frame after each reset, for games that start only then.

    Args:
        env: An Atari env that advances one frame per step and has a FIRE action.

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
        super().__init__(env)
        self.fire_action = cast("ActType", meanings.index("FIRE"))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset, then press FIRE; if that ends the game, reset once more without FIRE."""
        observation, info = self.env.reset(seed=seed, options=options)
        if "snapshot" in (options or {}):
            return observation, info
        observation, _, terminated, truncated, info = self.env.step(self.fire_action)
        if terminated or truncated:
            return self.env.reset(options=options)
        return observation, info


class EpisodicLife(RecordedWrapper[ObsType, ActType]):
    """Report `terminated` when a life is lost, and continue the same game after `reset`.

    The reset after a lost life does not reset the game but returns the current observation, so no
    frame is lost between the two episodes. `info["game_over"]` is True when the game has ended, so
    that the score of the whole game can be computed. A reset with a seed or options, or one that
    does not follow a lost life, resets the game. Losing the last life ends the game itself.

    Args:
        env: An env whose info has `"lives"` after each reset and step, as ale-py's has.

    Raises:
        KeyError: In `reset` or `step`: the env's info has no `"lives"`.

    Example:
        >>> import ale_py, gymnasium
        >>> env = EpisodicLife(gymnasium.make("ALE/Breakout-v5"))
        >>> env.reset(seed=0)[1]["lives"]
        5
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        super().__init__(env)
        self._lives = 0
        self._continued: tuple[ObsType, dict[str, Any]] | None = None

    @property
    def continues_game(self) -> bool:
        """True after a lost life: the next reset without a seed or options continues the game."""
        return self._continued is not None

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the game; a lost life is reported as `terminated`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        game_over = terminated or truncated
        lives = _lives(info)
        # Some games report 0 lives for a few frames before they end; the end itself is reported.
        lost = 0 < lives < self._lives and not game_over
        self._lives = lives
        info = {**info, "game_over": game_over}
        # Wrappers around this one may write into what is returned.
        self._continued = (copy.deepcopy(observation), {**info}) if lost else None
        return observation, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the game if it has ended; after a lost life, return the current observation."""
        continued, self._continued = self._continued, None
        if continued is not None and seed is None and not options:
            return continued
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
