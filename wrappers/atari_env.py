"""One Atari game under Stepwell's wrappers: what the python backend steps N of."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import numpy.typing as npt

from stepwell.wrappers.ale_frame_skip import AleFrameSkip
from stepwell.wrappers.atari_games import game_ids
from stepwell.wrappers.atari_settings import AtariSettings
from stepwell.wrappers.emulator import action_meanings, emulator_of, quiet_emulators
from stepwell.wrappers.emulator_seed import EmulatorSeed
from stepwell.wrappers.episodic_life import EpisodicLife
from stepwell.wrappers.fire_reset import FireReset
from stepwell.wrappers.frame_stack import FrameStack
from stepwell.wrappers.noop_start import NoopStart
from stepwell.wrappers.opencv import require_opencv
from stepwell.wrappers.resize import Resize
from stepwell.wrappers.sign_reward import SignReward

__all__ = ["atari_env", "check_buildable"]

Image = npt.NDArray[np.uint8]


def atari_env(settings: AtariSettings) -> gymnasium.Env[Image, int]:
    """Make one wrapped game: from the emulator outwards, one wrapper for each setting."""
    env: gymnasium.Env[Image, int] = EmulatorSeed(_bare(settings))
    if settings.fire_reset and "FIRE" in action_meanings(env):
        env = FireReset(env)
    env = NoopStart(env, settings.noop_max)
    env = AleFrameSkip(env, settings.frame_skip, pool=settings.pool, max_frames=settings.max_frames)
    if settings.clip_rewards:
        env = SignReward(env)
    if settings.size is not None and settings.size != emulator_of(env).getScreenDims():
        env = Resize(env, settings.size)
    if settings.life_loss == "end":
        env = EpisodicLife(env)
    return FrameStack(env, settings.frame_stack, padding="zero")


def check_buildable(settings: AtariSettings) -> None:
    """Raise here, where it is seen, what `atari_env` would raise in a worker process.

    Raises:
        ValueError: The game has no such mode or difficulty.
        ImportError: The images are to be resized and OpenCV cannot be imported.
    """
    if settings.size is not None:
        require_opencv()
    if settings.mode is not None or settings.difficulty is not None:
        ale = emulator_of(_bare(dataclasses.replace(settings, mode=None, difficulty=None)))
        _check_offered("mode", settings.mode, ale.getAvailableModes())
        _check_offered("difficulty", settings.difficulty, ale.getAvailableDifficulties())


def _bare(settings: AtariSettings) -> gymnasium.Env[Image, int]:
    """ale-py's env, one frame a step and without a limit of its own."""
    quiet_emulators()
    return gymnasium.make(
        game_ids()[settings.game],
        obs_type="grayscale" if settings.grayscale else "rgb",
        frameskip=1,
        repeat_action_probability=settings.sticky,
        full_action_space=settings.full_actions,
        max_num_frames_per_episode=None,
        mode=settings.mode,
        difficulty=settings.difficulty,
        disable_env_checker=True,
    )


def _check_offered(name: str, value: int | None, offered: list[int]) -> None:
    if value is not None and value not in offered:
        raise ValueError(f"{name}: expected one of {offered} or None for this game, got {value}")
