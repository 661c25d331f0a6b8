from typing import Any

import gymnasium
import numpy as np
import pytest

from stepwell.wrappers import Crop
from support.models.atari_reference import bare, screen


def test_pongs_field_is_that_part_of_the_screen() -> None:
    env = Crop(bare("Pong"), top=34, bottom=16, left=4, right=6)
    env.reset(seed=0)
    for _ in range(5):
        observation = env.step(2)[0]
        np.testing.assert_array_equal(observation, screen(env)[34:194, 4:154])
        assert env.observation_space.contains(observation)


def test_colour_stays() -> None:
    env = Crop(bare("Pong", obs_type="rgb"), top=34)
    assert env.reset(seed=0)[0].shape == env.observation_space.shape == (176, 160, 3)


def test_the_rest_of_the_screen_is_not_kept_alive() -> None:
    observation, _ = Crop(bare("Pong"), top=1).reset(seed=0)
    assert observation.base is None
    assert observation.flags.c_contiguous


@pytest.mark.parametrize("borders", [{"top": -1}, {"top": 100, "bottom": 110}, {"left": 160}])
def test_a_crop_that_leaves_nothing_is_refused(borders: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected to keep some of 210 rows and 160 columns, got"):
        Crop(bare("Pong"), **borders)


def test_an_env_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Crop: expected a uint8 image \[H, W\]"):
        Crop(gymnasium.make("CartPole-v1"), top=1)
