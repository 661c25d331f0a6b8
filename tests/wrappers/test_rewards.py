from typing import Any

import numpy as np
import pytest

from stepwell.wrappers import FrameSkip, SignReward
from support.models.atari_reference import Script, bare


class Rewards(Script):
    """Gives the listed rewards."""

    def __init__(self, rewards: list[Any]) -> None:
        super().__init__([[0] * (len(rewards) + 1)])
        self.rewards = rewards

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.rewards[self.t - 1], terminated, truncated, info


@pytest.mark.parametrize("reward", [-7.5, -1, 0, 0.25, 400, np.float32(3), np.full(1, -2.0)])
def test_the_sign_is_given_and_the_raw_reward_kept(reward: Any) -> None:
    env = SignReward(Rewards([reward]))
    env.reset()
    _, sign, _, _, info = env.step(0)
    raw = float(np.asarray(reward).item())
    assert sign == np.sign(raw)
    assert (info["raw_reward"], info["t"]) == (raw, 1)


def test_outside_frame_skip_it_clips_the_sum_of_a_step() -> None:
    env = SignReward(FrameSkip(Rewards([2, 2, -1, -1]), 4))
    env.reset()
    _, sign, _, _, info = env.step(0)
    assert (sign, info["raw_reward"]) == (1.0, 2.0)


def test_breakouts_raw_score_is_kept() -> None:
    env, plain = SignReward(bare("Breakout", frameskip=4)), bare("Breakout", frameskip=4)
    env.reset(seed=0)
    plain.reset(seed=0)
    rng, raw, score = np.random.default_rng(1), 0.0, 0.0
    for action in rng.integers(4, size=400):
        raw += env.step(action)[4]["raw_reward"]
        score += float(plain.step(action)[1])
    assert raw == score > 0
