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


@pytest.mark.parametrize(
    ("episodes", "steps", "theirs", "ours"),
    [
        # The second step ends at its second frame: theirs are older ones.
        ([[0, 10, 20, 30, 40, 50, 200]], [0, 0], 40, 200),
        ([[0, 255, 255, 255, 255], [0, 1, 2]], [0, None, 0], 255, 2),  # frames before the reset
    ],
)
def test_max_and_skip_shows_frames_that_are_none_of_the_step(
    episodes: Any, steps: list[int | None], theirs: int, ours: int
) -> None:
    shown: list[int] = []
    for make in (MaxAndSkipObservation, FrameSkip):
        env = make(Script(episodes), 4)
        env.reset()
        for action in steps:
            observation = env.reset()[0] if action is None else env.step(action)[0]
        shown.append(int(observation.max()))
    assert shown == [theirs, ours]


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
