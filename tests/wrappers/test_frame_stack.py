# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from stepwell.wrappers import FrameStack
from support.models.atari_reference import Script, bare, screen

Padding = Literal["zero", "repeat"]


def levels(stack: Any) -> list[int]:
    assert all((frame == frame.flat[0]).all() for frame in stack)
    return [int(frame.flat[0]) for frame in stack]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("padding", "first", "second"),
    [("zero", [0, 0, 5], [0, 5, 6]), ("repeat", [5, 5, 5], [5, 5, 6])],
)
def test_stacks_are_padded_as_asked_and_never_reach_into_another_episode(
    padding: Padding, first: list[int], second: list[int], live: bool
) -> None:
    env = FrameStack(Script([[5, 6, 7, 8]] * 2, live), 3, padding=padding)
    for _ in range(2):
        assert levels(env.reset()[0]) == first
        assert levels(env.step(0)[0]) == second
        assert levels(env.step(0)[0]) == [5, 6, 7]
        observation, _, terminated, _, _ = env.step(0)
        assert (levels(observation), terminated) == ([6, 7, 8], True)


@pytest.mark.parametrize(("padding", "theirs"), [("zero", "zero"), ("repeat", "reset")])
def test_it_equals_gymnasiums_where_frames_are_fresh(padding: Padding, theirs: str) -> None:
    ours = FrameStack(gymnasium.make("CartPole-v1"), 4, padding=padding)
    other = FrameStackObservation(gymnasium.make("CartPole-v1"), 4, padding_type=theirs)
    assert ours.observation_space == other.observation_space
    np.testing.assert_array_equal(ours.reset(seed=0)[0], other.reset(seed=0)[0])
    for _ in range(6):
        np.testing.assert_array_equal(ours.step(1)[0], other.step(1)[0])


def test_gymnasiums_stack_of_a_live_buffer_shows_one_frame_only() -> None:
    """A fact about gymnasium 1.4.0, and the reason for our own."""
    env = FrameStackObservation(Script([[5, 6, 7, 8]], live=True), 3)
    env.reset()
    env.step(0)
    assert levels(env.step(0)[0]) == [7, 7, 7]


def test_pongs_stack_holds_the_last_screens_oldest_first() -> None:
    env = FrameStack(bare("Pong", frameskip=4), 4)
    env.reset(seed=0)
    screens = [screen(env)]
    for _ in range(8):
        observation = env.step(2)[0]
        screens.append(screen(env))
    np.testing.assert_array_equal(observation, screens[-4:])
    assert env.observation_space.contains(observation)


def test_a_stack_does_not_change_with_the_next_step() -> None:
    env = FrameStack(Script([[5, 6, 7, 8]]), 2)
    first, _ = env.reset()
    env.step(0)
    assert levels(first) == [0, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size: expected at least 1 observation, got 0"),
        ({"padding": "reset"}, "padding: expected 'zero' or 'repeat', got 'reset'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameStack(Script([[0]]), **arguments)


def test_an_observation_that_is_no_array_is_refused() -> None:
    with pytest.raises(ValueError, match="FrameStack: expected a Box observation space, got Tuple"):
        FrameStack(gymnasium.make("Blackjack-v1"), 2)
