"""A step of `NesEnv` against a player that goes frame by frame; ends of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random

from demo_rom import RAM
from stepwell.wrappers.nes.emulators import Console, NesBackend
from stepwell.wrappers.nes.env import NesEnv
from support.envs.nes_backends import (
    BOOT,
    LEFT,
    NOOP,
    RIGHT,
    SELECT,
    console_of,
    each_backend,
    needs_a_backend,
)
from support.envs.nes_envs import BUTTONS, LOSE, NOTHING, env_of, episode, ram_of
from support.models.nes_model import Seen, SlowGame

pytestmark = needs_a_backend

# --- one step against a slow model ---


class Hands:
    """The buttons held in the frames of each step, with sticky buttons by the generator.

    They are drawn when the frame is played: an env that ends a step draws no further.
    """

    def __init__(self, asked: Sequence[int], sticky: float = 0.0, seed: int = 9) -> None:
        self.generator = np_random(seed)[0]
        self.generator.integers(1)  # the no-ops
        self.asked, self.sticky, self.seed, self.last = asked, sticky, seed, NOOP

    def held(self, index: int, frames: int) -> Iterator[int]:
        for _ in range(frames):
            if self.generator.random() >= self.sticky:
                self.last = self.asked[index % len(self.asked)]
            yield self.last


def compare(env: NesEnv, model: SlowGame, hands: Hands, skip: int, **limits: int) -> Seen:
    """Step both to the end, or for 40 steps; returns the last step."""
    observation, _ = env.reset(seed=hands.seed)
    np.testing.assert_array_equal(observation, model.first)
    wanted: Any = None
    for index in range(40):
        wanted = model.step(hands.held(index, skip), **limits)
        observation, reward, terminated, truncated, info = env.step(index % len(hands.asked))
        np.testing.assert_array_equal(observation, wanted.picture)
        assert reward == pytest.approx(wanted.reward, abs=1e-9)
        assert (terminated, truncated) == (wanted.terminated, wanted.truncated)
        assert info["episode_frame_number"] == model.frames
        assert {name: info[name] for name in model.variables()} == model.variables()
        if terminated or truncated:
            break
    seen: Seen = wanted
    return seen


@each_backend
@pytest.mark.parametrize("pool", ["max", "none"])
@pytest.mark.parametrize("skip", [1, 2, 3, 4, 6])
def test_a_step_is_what_a_frame_by_frame_player_sees(
    demo: tuple[Path, Path], backend: NesBackend, skip: int, pool: str
) -> None:
    """E6: sums over all frames, the last two of *this* step, ends at the frame where they are.

    Each ninth action loses a life, so that the game ends inside a skip.
    """
    with console_of(backend) as console, env_of(demo, backend, frame_skip=skip, pool=pool) as env:
        compare(env, SlowGame(console, pool=pool), Hands(BUTTONS), skip)


def same_game_goes_on(env: NesEnv, console: Console) -> None:
    """Both stand where they would if no frame had been played twice."""
    assert env._console is not None
    np.testing.assert_array_equal(env._console.ram(), console.ram())
    for buttons in (RIGHT, LEFT):
        env._console.frame(buttons)
        console.frame(buttons)
        np.testing.assert_array_equal(env._console.ram(), console.ram())
        np.testing.assert_array_equal(env._console.screen(), console.screen())


@each_backend
@pytest.mark.parametrize("frames", range(1, 7))
def test_a_limit_on_each_frame_of_a_skip(
    demo: tuple[Path, Path], backend: NesBackend, frames: int
) -> None:
    """E6: the step stops there, and shows the last two frames that it played."""
    limits = {"max_frames": 12 + frames}
    with (
        console_of(backend) as console,
        env_of(demo, backend, frame_skip=6, sticky=0.5, **limits) as env,
    ):
        last = compare(env, SlowGame(console), Hands(BUTTONS, 0.5), 6, **limits)
        assert (last.frames, last.truncated) == (frames, True)
        same_game_goes_on(env, console)


@each_backend
@pytest.mark.parametrize("stuck", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_step_that_ends_by_itself_shows_its_last_two_frames_and_leaves_the_game_as_it_is(
    demo: tuple[Path, Path], backend: NesBackend, seed: int, stuck: int
) -> None:
    """E6: frames that are played a second time for a picture are held as the first time.

    The player is stopped in the middle of a skip, where RIGHT still sticks for some frames.
    """
    given: dict[str, Any] = {"frame_skip": 6, "stuck_frames": stuck, "sticky": 0.7}
    with (
        console_of(backend) as console,
        env_of(demo, backend, actions=["RIGHT", "NOOP"], **given) as env,
    ):
        hands = Hands((RIGHT, NOOP), 0.7, seed)
        assert compare(env, SlowGame(console), hands, 6, stuck_frames=stuck).truncated
        same_game_goes_on(env, console)


# Two lives lost at once; the third goes to the enemy, in this frame behind the script.
ALONE = (*BOOT, SELECT, NOOP, SELECT)
ALONE_SCRIPT = "NOOP 20, START 3, NOOP 5, SELECT 1, NOOP 1, SELECT 1, NOOP "
MEETING = 189


@each_backend
@pytest.mark.parametrize("lead", range(4))
def test_the_end_of_the_game_on_each_frame_of_a_skip(
    demo: tuple[Path, Path], backend: NesBackend, lead: int
) -> None:
    """E6: no frame is played after it, and no reset happens inside the skip."""
    idle = MEETING - 5 - lead
    with (
        console_of(backend) as console,
        env_of(demo, backend, boot=f"{ALONE_SCRIPT}{idle}", frame_skip=4, actions=["NOOP"]) as env,
    ):
        model = SlowGame(console, boot=[*ALONE, *[NOOP] * idle])
        last = compare(env, model, Hands((NOOP,)), 4)
        assert (last.frames, model.frames) == (lead % 4 + 1, 5 + lead)
        assert (model.variables()["lives"], ram_of(env)[RAM["state"]]) == (0, 2)


# --- E6: ends ---


@each_backend
def test_a_step_after_the_end_needs_a_reset(demo: tuple[Path, Path], backend: NesBackend) -> None:
    """N3: nes-py raises ValueError, stable-retro continues silently."""
    with env_of(demo, backend) as env:
        with pytest.raises(ResetNeeded, match=r"^step: .*reset\(\).*yet"):
            env.step(NOTHING)
        assert episode(env, [LOSE, NOTHING] * 3)[-1][2:4] == (True, False)
        for _ in range(2):
            with pytest.raises(ResetNeeded, match=r"^step: .*reset\(\).*over"):
                env.step(NOTHING)
        env.reset()
        env.step(NOTHING)


def test_the_limit_does_not_count_noops(demo: tuple[Path, Path]) -> None:
    with env_of(demo, noop_max=30, max_frames=3) as env:
        for seed in range(3):
            assert len(episode(env, [NOTHING] * 9, seed=seed)) == 4


def test_an_end_on_the_last_frame_of_the_limit_is_the_games(demo: tuple[Path, Path]) -> None:
    """E6: the learner must not bootstrap from a game that is over."""
    with env_of(demo, max_frames=5) as env:
        assert episode(env, [LOSE, NOTHING] * 3)[-1][2:4] == (True, False)
