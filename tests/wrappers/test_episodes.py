from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from stepwell.wrappers import EpisodicLife, FireReset, NoopStart
from support.models.atari_reference import Script, bare, screen

# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


def frame_skipped() -> gymnasium.Env[Any, Any]:
    return bare("Breakout", frameskip=4)


@pytest.mark.proof
def test_no_frame_of_the_game_is_lost_when_lives_are() -> None:
    """The same actions on the bare game give the same screens, rewards and frame numbers."""
    actions = np.random.default_rng(0).integers(4, size=400)
    env, plain = EpisodicLife(frame_skipped()), frame_skipped()
    env.reset(seed=0)
    plain.reset(seed=0)
    lost = 0
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        true, true_reward, game_over, true_truncated, true_info = plain.step(action)
        np.testing.assert_array_equal(observation, true)
        assert (reward, truncated) == (true_reward, true_truncated)
        assert info["game_over"] == game_over
        assert info["episode_frame_number"] == true_info["episode_frame_number"]
        if game_over:
            break
        if terminated:
            lost += 1
            first, first_info = env.reset()
            np.testing.assert_array_equal(first, true)
            assert first_info["lives"] == 5 - lost
            assert first_info["episode_frame_number"] == true_info["episode_frame_number"]
    assert lost == 4
    assert game_over


@pytest.mark.proof
@pytest.mark.parametrize("arguments", [{"seed": 0}, {"options": {"anything": 1}}])
def test_a_reset_with_a_seed_or_options_is_a_real_one(arguments: dict[str, Any]) -> None:
    env = EpisodicLife(frame_skipped())
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    while not env.step(rng.integers(4))[2]:
        pass
    assert env.reset(**arguments)[1]["lives"] == 5


class Lives(Script):
    """Shows the listed lives; the last ends the game."""

    def __init__(self, lives: list[int]) -> None:
        super().__init__([[0] * len(lives)])
        self.lives = lives

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**arguments)[0], {"lives": self.lives[0]}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"lives": self.lives[self.t]}


def test_no_lives_left_is_no_end_before_the_game_says_so() -> None:
    """Some games show 0 lives for a few frames before they end."""
    env = EpisodicLife(Lives([2, 2, 1, 0, 0, 0]))
    env.reset()
    steps = [env.step(0) for _ in range(5)]
    assert [terminated for _, _, terminated, _, _ in steps] == [False, True, False, False, True]
    assert [info["game_over"] for *_, info in steps] == [False] * 4 + [True]


def test_a_wrappers_facts_about_an_episode_are_not_in_the_first_info_of_the_next() -> None:
    """Gymnasium's RecordEpisodeStatistics writes into the info that it gets."""
    env = gymnasium.wrappers.RecordEpisodeStatistics(EpisodicLife(Lives([2, 1, 1])))
    env.reset()
    assert "episode" in env.step(0)[4]
    assert env.reset()[1] == {"lives": 1, "game_over": False}


def test_a_life_that_is_won_ends_nothing() -> None:
    env = EpisodicLife(Lives([2, 3, 2, 2]))
    env.reset()
    assert [env.step(0)[2] for _ in range(2)] == [False, True]


def test_noops_are_uniform_from_0_to_the_greatest_number() -> None:
    env = NoopStart(Script([[0] * 9] * 1000), 4)
    env.reset(seed=0)
    counts = np.bincount([env.reset()[1]["noops"] for _ in range(900)], minlength=5)
    assert len(counts) == 5
    assert counts.min() > 130, counts  # 180 expected, 4 standard deviations are 48


def test_a_game_that_ends_meanwhile_is_reset_and_the_rest_follows() -> None:
    script = Script([[0, 1, 2, 3]] * 20)
    env = NoopStart(script, 10)
    noops = 0
    while noops < 4:
        script.episode = -1
        observation, info = env.reset(seed=noops or None)
        noops = info["noops"]
    assert script.t == noops % 3
    assert observation.max() == noops % 3


@pytest.mark.proof
def test_a_game_without_a_noop_shows_its_own_screens() -> None:
    env = NoopStart(bare("Backgammon", obs_type="rgb"), 9)
    observation, info = env.reset(seed=1)
    assert info["noops"] == info["episode_frame_number"] - 2
    np.testing.assert_array_equal(observation, cast(Any, env.unwrapped).ale.getScreenRGB())


@pytest.mark.proof
def test_breakout_begins_with_the_frame_on_which_fire_was_pressed() -> None:
    env = FireReset(bare("Breakout"))
    observation, info = env.reset(seed=0)
    again = bare("Breakout")
    again.reset(seed=0)
    again.step(1)
    np.testing.assert_array_equal(observation, screen(again))
    assert info["episode_frame_number"] == 1
