# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Facts about the wrappers of Gymnasium 1.4.0: the reasons why some are used and some are not."""

from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, GrayscaleObservation, MaxAndSkipObservation

from stepwell.wrappers import AleFrameSkip, FrameSkip, Grayscale, Resize
from support.models.atari_reference import Env, Script, bare


def end_of_game(env: Env, seed: int) -> tuple[Any, Any]:
    """Play at random until the game is over; the last two observations."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset()
    over = False
    while not over:
        before = observation
        observation, _, over, _, _ = env.step(rng.integers(4))
    return before, observation


@pytest.mark.proof
def test_atari_preprocessing_ends_a_game_with_the_screen_before() -> None:
    theirs = AtariPreprocessing(bare(), noop_max=0)
    ours = Resize(AleFrameSkip(bare(), 4), (84, 84))
    stale = true = 0
    for seed in range(3):
        (before, last), (our_before, our_last) = end_of_game(theirs, seed), end_of_game(ours, seed)
        np.testing.assert_array_equal(before, our_before)
        stale += np.array_equal(last, before)
        true += not np.array_equal(our_last, our_before)
    assert stale > 0
    assert true == 3


def test_max_and_skip_ends_an_episode_with_older_frames() -> None:
    episode = [0, 10, 20, 30, 40, 50, 200]  # the second step ends at its second frame
    shown: list[int] = []
    for make in (MaxAndSkipObservation, FrameSkip):
        env = make(Script([episode]), 4)
        env.reset()
        env.step(0)
        observation, _, terminated, _, _ = env.step(0)
        assert terminated
        shown.append(int(observation.max()))
    assert shown == [40, 200]


def test_max_and_skip_leaks_frames_over_a_reset() -> None:
    shown: list[int] = []
    for make in (MaxAndSkipObservation, FrameSkip):
        env = make(Script([[0, 255, 255, 255, 255], [0, 1, 2]]), 4)
        env.reset()
        env.step(0)
        env.reset()
        shown.append(int(env.step(0)[0].max()))
    assert shown == [255, 2]


@pytest.mark.proof
def test_the_emulators_sticky_actions_repeat_the_last_one_frame_by_frame() -> None:
    """After FIRE, NOOP: with probability p the emulator still fires, which starts the ball."""

    def starts(sticky: float, games: int) -> int:
        env = bare("Breakout", repeat_action_probability=sticky)
        env.reset(seed=0)
        count = 0
        for _ in range(games):
            env.reset()
            frames = [env.step(action)[0] for action in [0, 1, *[0] * 40]]
            count += bool((frames[1][100:180] != frames[-1][100:180]).any())
        return count

    assert starts(0.0, games=2) == 2
    assert 0 < starts(0.8, games=12) < 12


@pytest.mark.parametrize("game", ["Pong", "MsPacman", "Seaquest"])
def test_a_gray_screen_has_the_emulators_levels(game: str) -> None:
    ours, theirs, emulator = (
        Grayscale(bare(game, obs_type="rgb")),
        GrayscaleObservation(bare(game, obs_type="rgb")),
        bare(game),
    )
    for env in (ours, theirs, emulator):
        env.reset(seed=0)
    for step in range(60):
        shown, other, levels = (env.step(step % 6)[0] for env in (ours, theirs, emulator))
        np.testing.assert_array_equal(shown, levels)
        assert not np.array_equal(other, levels)


def test_gray_after_the_maximum_of_colours_is_what_sb3_shows() -> None:
    wrappers = pytest.importorskip(
        "stable_baselines3.common.atari_wrappers", reason="needs stable-baselines3"
    )
    ours = Resize(Grayscale(FrameSkip(bare("Alien", obs_type="rgb"), 4)), (84, 84))
    theirs = wrappers.WarpFrame(wrappers.MaxAndSkipEnv(bare("Alien", obs_type="rgb"), 4))
    native = AtariPreprocessing(bare("Alien"), noop_max=0, frame_skip=4)
    for env in (ours, theirs, native):
        env.reset(seed=0)
    for step in range(40):
        shown, of_sb3, others = (env.step(step % 18)[0] for env in (ours, theirs, native))
        np.testing.assert_array_equal(shown, of_sb3[..., 0])
        assert not np.array_equal(shown, others)
