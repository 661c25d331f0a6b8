# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""The two backends of make_atari, side by side."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv

from stepwell.wrappers import SeededResets
from stepwell.wrappers.ale_env import action_meanings
from stepwell.wrappers.atari import atari_env
from stepwell.wrappers.atari_native import NativeAtari
from stepwell.wrappers.atari_settings import AtariSettings
from support.models.atari_reference import settings

AnyVectorEnv = VectorEnv[Any, Any, Any]

INFOS = ("lives", "frame_number", "episode_frame_number")

# Games of every screen height that ale-py has, with and without lives, sparse and busy.
GAMES = [
    "air_raid", "asteroids", "battle_zone", "beam_rider", "boxing", "breakout", "carnival",
    "enduro", "freeway", "frostbite", "journey_escape", "laser_gates", "montezuma_revenge",
    "ms_pacman", "pacman", "phoenix", "pong", "pooyan", "qbert", "riverraid", "seaquest",
    "skiing", "space_invaders", "star_gunner", "tennis", "turmoil", "video_pinball",
    "yars_revenge",
]  # fmt: skip

CHANGES: list[dict[str, Any]] = [
    {"frame_skip": 1, "frame_stack": 1, "max_frames": 90},
    {"frame_skip": 3, "pool": "none", "max_frames": 301},
    {"fire_reset": True, "max_frames": 400},
    {"grayscale": False, "size": (96, 64), "frame_stack": 2, "max_frames": 250},
    {"size": None, "full_actions": True, "sticky": 0.0, "max_frames": 402},
    {"game": "qbert", "clip_rewards": True, "max_frames": 800},  # rewards beyond 1
]


def on_one_generator(chosen: AtariSettings) -> gymnasium.Env[Any, Any]:
    """An env of the python backend whose resets are not seeded, as those of ale-py's are not."""
    env: Any = atari_env(chosen)
    assert type(env) is SeededResets
    return env.env


def compare(chosen: AtariSettings, steps: int, num_envs: int = 2) -> tuple[int, int]:
    """Step both with the same seeds and actions; all but the last observations must be equal.

    Returns the number of episodes that ended, and at how many of them the observations differed.
    """
    native: AnyVectorEnv = NativeAtari(chosen, num_envs, 1)
    python: AnyVectorEnv = SyncVectorEnv([functools.partial(on_one_generator, chosen)] * num_envs)
    assert native.single_observation_space == python.single_observation_space
    assert native.single_action_space == python.single_action_space
    left, right = native.reset(seed=7), python.reset(seed=7)
    np.testing.assert_array_equal(left[0], right[0])
    rng, ends, differ = np.random.default_rng(5), 0, 0
    count = len(action_meanings(atari_env(chosen)))
    for _ in range(steps):
        actions = rng.integers(count, size=num_envs)
        observation, *flags, info = native.step(actions)
        other, *other_flags, other_info = python.step(actions)
        for flag, other_flag in zip(flags, other_flags, strict=True):
            np.testing.assert_array_equal(flag, other_flag)
        for key in (*INFOS, *["raw_reward"] * ("raw_reward" in other_info)):
            np.testing.assert_array_equal(info[key], other_info[key], err_msg=key)
        over = np.logical_or(flags[1], flags[2])
        np.testing.assert_array_equal(observation[~over], other[~over])
        np.testing.assert_array_equal(observation[over, :-1], other[over, :-1])
        ends += over.sum()
        differ += (observation[over] != other[over]).any(axis=tuple(range(1, other.ndim))).sum()
    return ends, differ


@pytest.mark.proof
@pytest.mark.parametrize("game", GAMES)
def test_both_backends_give_the_same_frames_rewards_and_ends(game: str) -> None:
    compare(settings(game=game), steps=250)


@pytest.mark.full
@pytest.mark.parametrize("game", GAMES)
def test_and_so_they_do_over_whole_games(game: str) -> None:
    assert compare(settings(game=game, max_frames=4000), steps=1200)[0] >= 1


@pytest.mark.proof
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: ",".join(changes))
def test_both_backends_mean_the_same_by_each_setting(changes: dict[str, Any]) -> None:
    ends, _ = compare(settings(**changes), steps=250, num_envs=1)
    assert ends >= 1


@pytest.mark.proof
def test_only_the_native_backends_last_observations_are_stale() -> None:
    ends, differ = compare(settings(max_frames=404), steps=300)
    assert ends >= 4
    assert differ >= 1
