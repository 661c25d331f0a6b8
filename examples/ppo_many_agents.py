"""Agents of a PettingZoo game learn together, by PPO with shared parameters; it needs PyTorch.

python examples/ppo_many_agents.py --steps 200000 --out runs/ppo_many_agents --seed 0

In simple_spread of mpe2 each of three agents is to cover one of three landmarks, without bumping
into the others. All act by one network, each on its own observation, and learn from its own
rewards: "independent PPO", de Witt et al. 2020, arXiv:2011.09533.
"""

import argparse
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import stepwell as sw

try:
    import torch
    from mpe2 import simple_spread_v3
    from torch import Tensor, nn
except ImportError:
    print("this example needs PyTorch and mpe2: pip install 'stepwell[torch,pettingzoo]' mpe2")
    raise SystemExit from None

NUM_ENVS, ROWS = 16, 100  # a rollout: four episodes of each env
EPOCHS, BATCH_SIZE = 10, 1200  # epochs on a rollout, rows of one agent in a minibatch
GAMMA, LAMBDA, CLIP = 0.95, 0.95, 0.2
LEARNING_RATE, VALUE_WEIGHT, ENTROPY_WEIGHT, LARGEST_GRADIENT = 1e-3, 0.5, 0.01, 0.5
REWARD_SCALE = 0.1  # keeps the values near 1
SEEN, ACTIONS = 18, 5  # numbers of an agent's observation, and of its actions


def make_env() -> gym.Env[Any, Any]:
    """Return one game as an env of joint rows."""
    return sw.from_pettingzoo(simple_spread_v3.parallel_env())


class Net(nn.Module):
    """Log-probabilities of the actions [B, 5] and the value [B] of one agent's observations."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self.layers(ACTIONS), self.layers(1)

    def layers(self, outputs: int) -> nn.Sequential:
        """Return a network with two hidden layers."""
        first, second, last = nn.Linear(SEEN, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
        return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Apply both networks."""
        return self.actor(observation).log_softmax(-1), self.critic(observation).squeeze(-1)

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Return the values [K] of observations [K, 18] of one agent each."""
        with torch.no_grad():
            return np.asarray(self.critic(torch.from_numpy(observation)).squeeze(-1))


class Policy:
    """The network as a policy for all agents, with NumPy arrays in and out."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def __call__(
        self, observation: Mapping[str, Any], is_first: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Choose each agent's action, and return extras [N, A] that the loss needs."""
        names = sorted(observation["agents"])
        seen = np.stack([observation["agents"][name] for name in names], axis=1)
        with torch.no_grad():
            log_probs, value = self.net(torch.from_numpy(seen))
            draw = torch.distributions.Categorical(logits=log_probs)
            action: Tensor = draw.sample()
            log_prob = log_probs.gather(-1, action[..., None]).squeeze(-1)
        actions = {name: action[:, place].numpy() for place, name in enumerate(names)}
        return actions, {"log_prob": log_prob.numpy(), "value": value.numpy()}


def learn(net: Net, optimizer: torch.optim.Optimizer, rollout: sw.Rollout) -> None:
    """Train for several epochs on the rows of all agents, with PPO's clipped loss."""
    own = sw.per_agent(rollout)  # a column for each env and agent
    own.reward *= REWARD_SCALE
    own.advantages(GAMMA, LAMBDA, bootstrap_value=net.value)
    for batch in own.minibatches(BATCH_SIZE, EPOCHS, to="torch"):
        log_probs, value = net(batch.observation)
        log_prob = log_probs.gather(1, batch.action[:, None]).squeeze(1)
        ratio = (log_prob - batch.extras["log_prob"]).exp()
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        error = nn.functional.mse_loss(value, batch.returns)
        optimizer.zero_grad()
        torch.autograd.backward(VALUE_WEIGHT * error - gain - ENTROPY_WEIGHT * entropy)
        nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
        optimizer.step()


def main() -> None:
    """Train, compare with random actions on fresh episodes, and save the network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path("runs/ppo_many_agents"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # more threads do not help a network this small
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, eps=1e-5)
    updates = max(1, options.steps // (ROWS * NUM_ENVS))
    recent: deque[float] = deque(maxlen=200)
    with sw.Collector(sw.make_vec(make_env, NUM_ENVS), Policy(net), seed=options.seed) as collector:
        for update in range(updates):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)
            rollout = collector.rollout(steps=ROWS)
            recent.extend(rollout.episode_returns)
            learn(net, optimizer, rollout)
            if update % 25 == 0:
                steps = (update + 1) * ROWS * NUM_ENVS
                print(f"{steps:7,} steps: the last episodes returned {np.mean(recent):.1f}")
    random, learned = (
        sw.evaluate(sw.make_vec(make_env, NUM_ENVS), policy, episodes=200, seed=1_000)
        for policy in (sw.RandomPolicy(), Policy(net))
    )
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), options.out / "net.pt")
    seconds = time.perf_counter() - began
    print(
        f"mean return of 200 fresh episodes: {learned.mean:.1f}, of random actions "
        f"{random.mean:.1f}, after {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
