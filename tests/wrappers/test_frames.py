from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.wrappers import FrameSkip, FrameStack
from support.models.atari_reference import Script

# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


def expected_steps(levels: list[int], skip: int, pool: str) -> list[tuple[int, float, bool]]:
    """Return the results of FrameSkip for an episode with these levels, by its definition."""
    steps: list[tuple[int, float, bool]] = []
    for start in range(1, len(levels), skip):
        seen = levels[start : start + skip]
        level = max(seen[-2:]) if pool == "max" else seen[-1]
        reward = float(sum(2**k for k in range(start, start + len(seen))))
        steps.append((level, reward, start + len(seen) == len(levels)))
    return steps


@given(
    st.lists(st.lists(st.integers(0, 255), min_size=2, max_size=14), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from(["max", "none"]),
    st.booleans(),
    st.sampled_from(["term", "trunc"]),
)
def test_frames_rewards_and_ends_are_those_of_the_definition(
    episodes: list[list[int]], skip: int, pool: Any, live: bool, ends: str
) -> None:
    env = FrameSkip(Script(episodes, live, ends), skip, pool=pool)
    for levels in episodes:
        first, _ = env.reset()
        assert first.max() == levels[0]
        for level, reward, over in expected_steps(levels, skip, pool):
            observation, total, terminated, truncated, info = env.step(1)
            assert (observation == level).all()
            assert (total, terminated or truncated) == (reward, over)
            assert terminated == (over and ends == "term")
        assert info["t"] == len(levels) - 1


def test_a_reward_of_shape_1_is_summed() -> None:
    class Odd(Script):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, np.ones(1, np.float32), terminated, truncated, info

    env = FrameSkip(Odd([[0] * 9]), 4)
    env.reset()
    assert env.step(0)[1] == 4.0


def test_observations_that_are_no_arrays_pass_when_nothing_is_pooled() -> None:
    env = FrameSkip(gymnasium.make("Blackjack-v1"), 1, pool="none")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)


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


def test_a_stack_does_not_change_with_the_next_step() -> None:
    env = FrameStack(Script([[5, 6, 7, 8]]), 2)
    first, _ = env.reset()
    env.step(0)
    assert levels(first) == [0, 5]
