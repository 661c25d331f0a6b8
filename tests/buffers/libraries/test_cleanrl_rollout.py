"""to_cleanrl: `collector.rollout(n)` in place of the loop over `envs.step` in CleanRL's files."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from support.envs.fakes import RestartVectorEnv
from support.libraries.sb3_envs import TagEnv, makers, vector_env

pytest.importorskip("torch", reason="needs torch")

import torch
from torch import Tensor, nn

from stepwell.buffers.libraries.cleanrl import CleanRLStorage, to_cleanrl

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
BOTH_MODES = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
NUM_STEPS, NUM_ENVS = 24, 4


class Agent(nn.Module):
    """An actor and a critic; their inputs are flattened, those of images divided by 255."""

    def __init__(self, inputs: int, actions: int, scale: float = 1.0) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(inputs, actions), nn.Linear(inputs, 1)
        self.scale = scale

    def get_value(self, x: Tensor) -> Any:
        return self.critic(x.flatten(1) / self.scale)

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> Any:
        distribution: Any = torch.distributions.Categorical
        probs = distribution(logits=self.actor(x.flatten(1) / self.scale))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.get_value(x)


class AgentPolicy:
    """The agent as a policy for a Collector."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def __call__(self, observation: Any, is_first: Any) -> Any:
        with torch.no_grad():
            rows = torch.Tensor(observation)
            action, logprob, _, value = self.agent.get_action_and_value(rows)
        return action.numpy(), {"log_prob": logprob.numpy(), "value": value.flatten().numpy()}

    def value(self, observation: Any) -> Any:
        with torch.no_grad():
            return self.agent.get_value(torch.Tensor(observation)).flatten().numpy()


class HandWritten:
    """The rollout loop of CleanRL's PPO."""

    def __init__(self, envs: Any, agent: Agent, seed: Any) -> None:
        self.envs, self.agent = envs, agent
        first, _ = envs.reset(seed=seed)
        self.next_obs, self.next_done = torch.Tensor(first), torch.zeros(envs.num_envs)

    def rollout(self, num_steps: int) -> CleanRLStorage:
        envs = self.envs
        obs = torch.zeros((num_steps, envs.num_envs, *envs.single_observation_space.shape))
        actions = torch.zeros((num_steps, envs.num_envs, *envs.single_action_space.shape))
        logprobs, rewards, dones, values = torch.zeros((4, num_steps, envs.num_envs))
        for step in range(num_steps):
            obs[step], dones[step] = self.next_obs, self.next_done
            with torch.no_grad():
                action, logprob, _, value = self.agent.get_action_and_value(self.next_obs)
            values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
            following, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            self.next_obs = torch.Tensor(following)
            self.next_done = torch.Tensor(np.logical_or(terminated, truncated))
        return CleanRLStorage(
            obs, actions, logprobs, rewards, dones, values, self.next_obs, self.next_done
        )


def change(agent: Agent) -> None:
    """As an update does."""
    for parameter in agent.parameters():
        parameter.data *= 1.1


class SeedRecorder(SyncVectorEnv):
    """Records the seed of its last reset."""

    seed: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seed = seed
        return super().reset(seed=seed, options=options)


def envs_of(name: str, mode: AutoresetMode) -> Any:
    if name == "CartPole-v1":
        fns: Any = [lambda: gym.make("CartPole-v1", max_episode_steps=30)] * NUM_ENVS
    else:
        fns = makers(name, "discrete", NUM_ENVS)
    return SeedRecorder(fns, autoreset_mode=mode)


def agent_of(envs: Any) -> Agent:
    torch.manual_seed(7)
    space = envs.single_observation_space
    scale = 255.0 if space.dtype == np.uint8 else 1.0
    return Agent(int(np.prod(space.shape)), int(envs.single_action_space.n), scale)


@BOTH_MODES
@pytest.mark.parametrize("name", ["CartPole-v1", "vector", "image last"])
def test_batches_equal_those_of_a_hand_written_loop(name: str, mode: AutoresetMode) -> None:
    envs = envs_of(name, mode)
    agent, own = agent_of(envs), agent_of(envs)
    collector = sw.Collector(envs, AgentPolicy(agent), seed=0)
    torch.manual_seed(1)
    ours, next_done = [], torch.zeros(NUM_ENVS)
    for _ in range(6):
        storage = to_cleanrl(collector.rollout(NUM_STEPS), next_done)
        next_done = storage.next_done
        ours.append(storage)
        change(agent)
    loop = HandWritten(envs_of(name, mode), own, envs.seed)
    torch.manual_seed(1)
    ended = 0
    for storage in ours:
        wanted = loop.rollout(NUM_STEPS)
        for field in CleanRLStorage._fields:
            one, other = getattr(storage, field), getattr(wanted, field)
            assert one.dtype == other.dtype == torch.float32, field
            assert torch.equal(one, other), field
        ended += int(wanted.next_done.sum())
        change(own)
    assert ended > 0 or name == "CartPole-v1"
    collector.close()


def zero(observation: Any, is_first: Any) -> Any:
    nothing = np.zeros(len(is_first), np.float32)
    return np.zeros(len(is_first), np.int64), {"log_prob": nothing - 1, "value": nothing}


class TagValuePolicy:
    """The value of an observation is its tag's step plus 0.5."""

    def __call__(self, observation: Any, is_first: Any) -> Any:
        action, extras = zero(observation, is_first)
        return action, {**extras, "value": self.value(observation)}

    def value(self, observation: Any) -> np.ndarray:
        return np.asarray(observation[:, 2] + 0.5, np.float32)


def test_a_cut_sets_done_and_its_value_can_be_added_to_the_reward() -> None:
    fns = [partial(TagEnv, tag, plan=((100, "terminated"),)) for tag in range(2)]
    envs = RestartVectorEnv(fns, at_step=4, autoreset_mode=SAME_STEP)
    with sw.Collector(cast("Any", envs), TagValuePolicy(), seed=0) as collector:
        rollout = collector.rollout(8)
    (step,), (env,) = np.nonzero(rollout.cut)
    plain = to_cleanrl(rollout, torch.zeros(2))
    assert plain.dones[step + 1, env] == 1
    assert plain.dones.sum() == 1
    added = to_cleanrl(rollout, torch.zeros(2), truncation_gamma=0.5)
    worth = np.float32(0.5) * np.float32(rollout.observation[step, env, 2] + 1.5)
    assert added.rewards[step, env] == plain.rewards[step, env] + worth
    assert (added.rewards != plain.rewards).sum() == 1
    assert torch.equal(to_cleanrl(rollout, torch.zeros(2)).rewards, plain.rewards)


def test_missing_extras_and_wrong_shapes_are_refused() -> None:
    with sw.Collector(vector_env("vector", "discrete"), zero, seed=0) as collector:
        rollout = collector.rollout(9)
    replaced = dataclasses.replace
    bare = replaced(rollout, extras={"value": rollout.extras["value"]})
    with pytest.raises(ValueError, match=r"'log_prob'.*got .*'value'"):
        to_cleanrl(bare, torch.zeros(3))
    with pytest.raises(ValueError, match=r"next_done.*\(3,\).*\(2,\)"):
        to_cleanrl(rollout, torch.zeros(2))
    with pytest.raises(ValueError, match=r"bootstrap\.value.*\b6\b.*got None"):
        to_cleanrl(rollout, torch.zeros(3), truncation_gamma=0.9)
    nested = replaced(rollout, observation={"vector": rollout.observation})
    with pytest.raises(TypeError, match=r"observation.*got a dict"):
        to_cleanrl(nested, torch.zeros(3))
    with pytest.raises(TypeError, match=r"a Rollout, got a str;"):
        to_cleanrl("x", torch.zeros(3))  # type: ignore[arg-type]
