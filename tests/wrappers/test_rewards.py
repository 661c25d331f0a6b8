from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.wrappers import SignReward, VectorReward
from support.models.atari_reference import Script


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


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [list, tuple, np.array, np.float32])
def test_several_rewards_are_stored_and_one_number_made_of_them(
    kind: Any, num_workers: int
) -> None:
    rewards = [kind(two) for two in ([1, -0.5], [2, 0.25])]

    def make() -> Any:
        return VectorReward(Rewards(rewards), [1, 4])

    replay = sw.SequenceReplayBuffer()
    envs = sw.make_vec(make, num_workers=num_workers)
    with sw.Collector(envs, "random", replay, seed=0, info={"rewards": [0.0, 0.0]}) as collector:
        collector.collect(steps=2)
    (episode,) = replay.iter_episodes()
    assert episode.reward.tolist() == [0, -1, 3]
    assert episode.fields["info/rewards"].tolist() == [[0, 0], [1, -0.5], [2, 0.25]]


@pytest.mark.parametrize(
    ("reward", "weights", "message"),
    [
        ([1, 2, 3], [1, 1], "reward.*2 numbers.*3"),
        (1.0, [1], "reward.*1 numbers"),
        ([1, None], [1, 1], "reward.*None"),
        ([1, 2], lambda rewards: rewards, "weights.*one number"),
        *(([1, 2], weights, "weights") for weights in ("one", None, [[1, 2]], [1, "2"])),
    ],
)
def test_rewards_that_the_weights_do_not_fit_are_refused(
    reward: Any, weights: Any, message: str
) -> None:
    def step() -> None:
        env = VectorReward(Rewards([reward]), weights)
        env.reset()
        env.step(0)

    with pytest.raises(ValueError, match=message):
        step()
