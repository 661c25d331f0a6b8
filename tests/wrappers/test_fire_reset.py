import numpy as np
import pytest

from stepwell.wrappers import FireReset
from support.models.atari_reference import bare, screen


def test_breakout_begins_with_the_frame_on_which_fire_was_pressed() -> None:
    env = FireReset(bare("Breakout"))
    observation, info = env.reset(seed=0)
    again = bare("Breakout")
    again.reset(seed=0)
    again.step(1)
    np.testing.assert_array_equal(observation, screen(again))
    assert info["episode_frame_number"] == 1


def test_the_ball_is_in_play_without_the_learner_pressing_fire() -> None:
    def moves(env: FireReset[np.ndarray, int]) -> bool:
        env.reset(seed=0)
        field = [env.step(0)[0][100:180] for _ in range(60)]
        return any((field[0] != later).any() for later in field)

    assert moves(FireReset(bare("Breakout")))
    assert not moves(bare("Breakout"))  # type: ignore[arg-type]  # it waits for ever


def test_a_game_without_fire_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected an env with an action named FIRE, got \['NOOP"):
        FireReset(bare("MsPacman"))
