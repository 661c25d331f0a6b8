"""Loops of other libraries, as they are, over recorded envs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw


def assert_proved(replay: sw.SequenceReplayBuffer, least: int) -> None:
    """All episodes but those after a cut can be played again, and show the same rows."""
    reasons = [proof.reason for proof in sw.resimulate(replay)]
    assert set(reasons) <= {"equal", "unreachable"}
    assert reasons.count("equal") >= least


def test_learn_of_stable_baselines3() -> None:
    """Single envs under Monitor and DummyVecEnv, each of which is a session of one replay."""
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    replay = sw.SequenceReplayBuffer(seed=0)

    def recorded() -> Any:
        return sw.record(gym.make("CartPole-v1"), replay)

    def learned(env: Any) -> Any:
        envs = make_vec_env(env, n_envs=2, seed=1)
        model = sb3.PPO("MlpPolicy", envs, n_steps=64, batch_size=32, n_epochs=1, seed=3)
        model.learn(300)
        envs.close()
        return model

    model, bare = learned(recorded), learned("CartPole-v1")
    assert replay.steps == 384  # whole rollouts
    weights, others = (one.policy.state_dict() for one in (model, bare))
    assert all((weights[name] == others[name]).all() for name in weights)
    assert {one.stream for one in replay.iter_episodes()} == {0, 1}
    assert len(replay.sessions) == 2
    ended = sum(one.end.is_final for one in replay.iter_episodes())
    assert ended >= 6
    assert_proved(replay, ended)
    assert replay.sample_transitions(32).reward.shape == (32,)


def test_the_collector_of_tianshou() -> None:
    pytest.importorskip("tianshou")
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    replay = sw.SequenceReplayBuffer()
    makers = [lambda: sw.record(gym.make("CartPole-v1"), replay)] * 3
    envs = DummyVectorEnv(makers)
    buffer = VectorReplayBuffer(2000, 3)
    algorithm = MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=envs.action_space[0])
    collector: Any = Collector(algorithm, envs, buffer)
    collector.reset(gym_reset_kwargs={"seed": 3})
    collector.collect(n_step=300, random=True)
    envs.close()
    assert replay.steps == len(buffer) == 300
    assert {one.stream for one in replay.iter_episodes()} == {0, 1, 2}
    stored = sum(one.total_reward for one in replay.iter_episodes())
    assert stored == float(buffer.rew.sum())
    assert_proved(replay, sum(one.end.is_final for one in replay.iter_episodes()))
