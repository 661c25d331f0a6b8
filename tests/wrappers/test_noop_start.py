# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from typing import Any, cast

import numpy as np
import pytest

from stepwell.wrappers import Crop, NoopStart
from support.models.atari_reference import Recorder, Script, bare, screen


def test_the_first_observation_is_the_screen_after_the_recorded_number_of_noops() -> None:
    for seed in range(3):
        env = NoopStart(bare("Pong"), 30)
        observation, info = env.reset(seed=seed)
        again = bare("Pong")
        again.reset(seed=seed)
        for _ in range(info["noops"]):
            again.step(0)
        np.testing.assert_array_equal(observation, screen(again))
        assert info["episode_frame_number"] == info["noops"]


def test_noops_are_uniform_from_0_to_the_greatest_number() -> None:
    env = NoopStart(Script([[0] * 9] * 1000), 4)
    env.reset(seed=0)
    counts = np.bincount([env.reset()[1]["noops"] for _ in range(900)], minlength=5)
    assert len(counts) == 5
    assert counts.min() > 130, counts  # 180 expected, 4 standard deviations are 48


def test_the_same_seed_draws_the_same_numbers() -> None:
    def draws(seed: int) -> list[int]:
        env = NoopStart(Script([[0] * 40] * 21), 30)
        return [env.reset(seed=seed)[1]["noops"]] + [env.reset()[1]["noops"] for _ in range(20)]

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)


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


def test_0_does_nothing() -> None:
    frames = Recorder(bare())
    assert NoopStart(frames, 0).reset(seed=0)[1]["noops"] == 0
    assert not frames.screens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noop_max": -1}, "noop_max: expected at least 0 frames, got -1"),
        ({"noop_action": 1}, r"noop_action: expected the index of NOOP among \['NOOP'.*got 1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoopStart(bare(), **arguments)


def test_a_game_without_a_noop_shows_its_own_screens_or_is_refused() -> None:
    env = NoopStart(bare("Backgammon", obs_type="rgb"), 9)
    observation, info = env.reset(seed=1)
    assert info["noops"] == info["episode_frame_number"] - 2
    np.testing.assert_array_equal(observation, cast(Any, env.unwrapped).ale.getScreenRGB())
    for changed in (Crop(bare("Backgammon"), top=20), bare("Backgammon", obs_type="ram")):
        with pytest.raises(ValueError, match=r"'FIRE', 'RIGHT', 'LEFT'.*NOOP.*Box"):
            NoopStart(changed)
    with pytest.raises(ValueError, match=r"noop_action: .*'FIRE', 'RIGHT', 'LEFT'.*got 1"):
        NoopStart(bare("Backgammon"), noop_action=1)
