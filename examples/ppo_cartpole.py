"""PPO balances CartPole, in one file that reads from top to bottom; it needs PyTorch.

python examples/ppo_cartpole.py --steps 100000 --out runs/ppo_cartpole --seed 0

The method: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347.
"""

import argparse
import time
from collections import deque
from pathlib import Path

import numpy as np

import stepwell as sw

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    print("this example needs PyTorch: pip install 'stepwell[torch]'")
    raise SystemExit from None

NUM_ENVS, ROWS = 8, 128  # a rollout
EPOCHS, BATCH_SIZE = 10, 256  # epochs on a rollout, rows of a minibatch
GAMMA, LAMBDA, CLIP = 0.98, 0.8, 0.2
LEARNING_RATE, VALUE_WEIGHT, LARGEST_GRADIENT = 1e-3, 0.5, 0.5
Extras = dict[str, np.ndarray]


class Net(nn.Module):
    """Log-probabilities of the actions [B, 2] and the value [B] of observations [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self.layers(2), self.layers(1)

    def layers(self, outputs: int) -> nn.Sequential:
        """Return a network with two hidden layers."""
        first, second, last = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
        return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Apply both networks."""
        return self.actor(observation).log_softmax(1), self.critic(observation).squeeze(1)


class Policy:
    """The network as a policy for the Collector, with NumPy arrays in and out."""

    def __init__(self, net: Net, greedy: bool = False) -> None:
        self.net, self.greedy = net, greedy

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> tuple[np.ndarray, Extras]:
        """Choose actions, and return the extras that the loss needs."""
        with torch.no_grad():
            log_probs, value = self.net(torch.from_numpy(observation))
            best = log_probs.argmax(1, keepdim=True)
            action = best if self.greedy else torch.multinomial(log_probs.exp(), 1)
            log_prob = log_probs.gather(1, action).squeeze(1)
        return action.squeeze(1).numpy(), {"log_prob": log_prob.numpy(), "value": value.numpy()}

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Return the values to bootstrap from; called at the end of a rollout."""
        with torch.no_grad():
            return np.asarray(self.net(torch.from_numpy(observation))[1])


def learn(net: Net, optimizer: torch.optim.Optimizer, rollout: sw.Rollout) -> None:
    """Train for several epochs on one rollout, with PPO's clipped loss."""
    rollout.advantages(GAMMA, LAMBDA)  # truncated episodes bootstrap from their last observation
    for batch in rollout.minibatches(BATCH_SIZE, EPOCHS, to="torch"):
        log_probs, value = net(batch.observation)
        log_prob = log_probs.gather(1, batch.action[:, None]).squeeze(1)
        ratio = (log_prob - batch.extras["log_prob"]).exp()
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        error = nn.functional.mse_loss(value, batch.returns)
        optimizer.zero_grad()
        torch.autograd.backward(VALUE_WEIGHT * error - gain)
        nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
        optimizer.step()


def main() -> None:
    """Train, evaluate on fresh episodes and save the network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("runs/ppo_cartpole"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # more threads do not help a network this small
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, eps=1e-5)
    envs = sw.make_vec("CartPole-v1", NUM_ENVS, num_workers=0)
    updates = max(1, options.steps // (ROWS * NUM_ENVS))
    recent: deque[float] = deque(maxlen=20)
    with sw.Collector(envs, Policy(net), seed=options.seed) as collector:
        for update in range(updates):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)
            rollout = collector.rollout(steps=ROWS)
            recent.extend(rollout.episode_returns)
            learn(net, optimizer, rollout)
            if update % 10 == 0 and recent:
                steps = (update + 1) * ROWS * NUM_ENVS
                print(f"{steps:7,} steps: the last episodes returned {np.mean(recent):.1f}")
    evaluation = sw.evaluate("CartPole-v1", Policy(net, greedy=True), episodes=20, seed=1_000)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), options.out / "net.pt")
    seconds = time.perf_counter() - began
    print(f"mean return of 20 fresh greedy episodes: {evaluation.mean:.1f} after {seconds:.0f} s")


if __name__ == "__main__":
    main()
