from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from stepwell.wrappers import EmulatorSeed
from support.models.atari_reference import bare, screen


def sticky_play(seed: int) -> tuple[int, list[Any]]:
    env = EmulatorSeed(bare("Breakout", repeat_action_probability=0.25))
    env.reset(seed=seed)
    actions = [1] * 4 + [2, 3] * 30
    frames = [env.step(action)[0] for action in actions]
    return cast(Any, env.unwrapped).ale.getInt("random_seed"), frames


def test_the_emulator_gets_the_very_seed() -> None:
    assert sticky_play(11)[0] == 11


def test_sticky_actions_follow_the_seed() -> None:
    first, again, other = sticky_play(1)[1], sticky_play(1)[1], sticky_play(2)[1]
    np.testing.assert_array_equal(first, again)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_the_env_draws_from_the_seed_too() -> None:
    def draw(seed: int) -> int:
        env = EmulatorSeed(bare())
        env.reset(seed=seed)
        return int(env.np_random.integers(2**40))

    assert draw(3) == draw(3) != draw(4)


def test_a_reset_without_a_seed_goes_on_with_the_same_generator() -> None:
    env = EmulatorSeed(bare())
    env.reset(seed=3)
    first = int(env.np_random.integers(2**40))
    observation, _ = env.reset()
    assert int(env.np_random.integers(2**40)) != first
    np.testing.assert_array_equal(observation, screen(env))


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_the_emulator_cannot_take_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed: expected 0 to 2147483647, got {seed}"):
        EmulatorSeed(bare()).reset(seed=seed)


def test_another_env_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an env around ale-py's AtariEnv, got"):
        EmulatorSeed(gymnasium.make("CartPole-v1"))
