"""Loops of other libraries, as they are, over recorded envs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw


def assert_proved(replay: sw.SequenceReplayBuffer, least: int) -> None:
    """All episodes but those after a cut can be played again, and show the same rows."""
    reasons = [proof.reason for proof in sw.resimulate(replay)]
    assert set(reasons) <= {"equal", "unreachable"}
    assert reasons.count("equal") >= least


@pytest.mark.parametrize("path", [False, True])
def test_learn_of_stable_baselines3(path: bool, tmp_path: Any) -> None:
    """Single envs under Monitor and DummyVecEnv, each of which is a session of one replay."""
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    replay = sw.SequenceReplayBuffer(tmp_path / "store" if path else None, seed=0)

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
    replay.close()


def test_off_policy_learn_of_stable_baselines3() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    replay = sw.SequenceReplayBuffer()
    env = sw.record(gym.make("Pendulum-v1"), replay)
    model = sb3.SAC("MlpPolicy", env, learning_starts=50, buffer_size=500, seed=3)
    model.learn(260)
    model.get_env().close()
    assert replay.steps == 260
    buffer = model.replay_buffer
    assert [one.steps for one in replay.iter_episodes()] == [200, 60]
    stored = np.concatenate([np.asarray(one.observation)[:-1] for one in replay.iter_episodes()])
    assert np.array_equal(stored, buffer.observations[:260, 0])
    assert_proved(replay, 2)


def ppo(envs: Any, updates: int, steps: int, seed: int) -> list[Any]:
    """A loop in the manner of single-file implementations; returns its weights."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    n = envs.num_envs
    inputs = int(np.prod(envs.single_observation_space.shape))
    actor = torch.nn.Linear(inputs, int(envs.single_action_space.n))
    critic = torch.nn.Linear(inputs, 1)
    weights = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-2)
    observation, _ = envs.reset(seed=seed)
    now, is_done = torch.Tensor(observation), torch.zeros(n)
    for _ in range(updates):
        kept: list[tuple[Any, ...]] = []
        for _ in range(steps):
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=actor(now))
                action = choice.sample()
                log_prob, value = choice.log_prob(action), critic(now).flatten()
            if hasattr(envs, "log_extras"):
                envs.log_extras(log_prob=log_prob, value=value)
            step = envs.step(action.cpu().numpy())
            observation, reward, terminated, truncated, _ = step
            kept.append((now, action, log_prob, torch.tensor(reward).float(), value, is_done))
            now, is_done = torch.Tensor(observation), torch.Tensor(terminated | truncated)
        seen, actions, old, rewards, values, dones = (
            torch.stack(each) for each in zip(*kept, strict=True)
        )
        advantages, last = torch.zeros_like(rewards), torch.zeros(n)
        following, is_over = critic(now).flatten().detach(), is_done
        for k in reversed(range(steps)):
            delta = rewards[k] + 0.99 * following * (1 - is_over) - values[k]
            advantages[k] = last = delta + 0.99 * 0.95 * (1 - is_over) * last
            following, is_over = values[k], dones[k]
        choice = torch.distributions.Categorical(logits=actor(seen))
        ratio = (choice.log_prob(actions) - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss = loss + 0.5 * (critic(seen).squeeze(-1) - values - advantages).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    envs.close()
    return [each.detach().numpy() for each in weights]


def test_a_single_file_ppo() -> None:
    """As CleanRL's: a SyncVectorEnv of wrapped envs, with the log-probabilities as extras."""

    def make_envs() -> Any:
        def make_env() -> Any:
            return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))

        return gym.vector.SyncVectorEnv([make_env] * 4)

    replay = sw.SequenceReplayBuffer()
    learned = ppo(sw.record(make_envs(), replay), updates=4, steps=32, seed=5)
    for one, other in zip(learned, ppo(make_envs(), updates=4, steps=32, seed=5), strict=True):
        assert one.tobytes() == other.tobytes()
    assert 4 * 4 * 32 * 0.8 < replay.steps <= 4 * 4 * 32  # but for the resets
    assert {"extra/log_prob", "extra/value"} <= set(replay.spec.names)
    ended = sum(one.end.is_final for one in replay.iter_episodes())
    assert_proved(replay, ended)


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
