"""PPO learns Pong from the screen on two CPU cores, in one file; it needs PyTorch.

python examples/ppo_atari.py --game Pong --steps 600000 --out runs/ppo_pong --seed 0

It writes curve.csv (benchmarks/plot_curve.py draws it), net.pt and each row that it learned from.
"""

import argparse
import time
from collections import deque
from pathlib import Path

import numpy as np
from gymnasium.spaces import flatdim

import stepwell as sw

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    print("this example needs PyTorch: pip install 'stepwell[torch]'")
    raise SystemExit from None

SIZE = 42  # a quarter of the pixels of the usual 84 x 84, for a quarter of the computation
STICKY = 0.0  # no sticky actions; make_atari's default, 0.25, is the harder standard task
ROWS, EPOCHS, BATCH_SIZE, GAMMA, LAMBDA, CLIP = 128, 4, 256, 0.99, 0.95, 0.1
LEARNING_RATE, VALUE_WEIGHT, ENTROPY_WEIGHT, LARGEST_GRADIENT = 5e-4, 0.5, 0.01, 0.5
Extras = dict[str, np.ndarray]


class Net(nn.Module):
    """Log-probabilities of the actions [B, A] and the value [B] of uint8 frames [B, 4, 42, 42]."""

    def __init__(self, actions: int, examples: np.ndarray) -> None:
        super().__init__()
        frames = torch.from_numpy(examples).float()  # [T, N, 42, 42], to normalise each pixel
        self.mean = nn.Parameter(frames.mean((0, 1)), requires_grad=False)
        self.spread = nn.Parameter(frames.std((0, 1)).clamp(1), requires_grad=False)
        self.body = nn.Sequential(
            *(nn.Conv2d(4, 16, 5, stride=2, padding=2), nn.ReLU()),  # 21 x 21
            *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU()),  # 9 x 9
            *(nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten()),  # 4 x 4
            *(nn.Linear(32 * 4 * 4, 256), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(256, actions), nn.Linear(256, 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise the frames, so that a ball of one pixel stands out, and apply the layers."""
        frames = observation.contiguous(memory_format=torch.channels_last).float()
        seen = self.body(((frames - self.mean) / self.spread).clamp(-5, 5))
        return self.actor(seen).log_softmax(1), self.critic(seen).squeeze(1)


class Policy:
    """The network as a policy for the Collector, with NumPy arrays in and out."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> tuple[np.ndarray, Extras]:
        """Choose actions, and return the extras that the loss needs."""
        with torch.no_grad():
            log_probs, value = self.net(torch.from_numpy(observation))
            action = torch.multinomial(log_probs.exp(), 1)
            log_prob = log_probs.gather(1, action).squeeze(1)
        return action.squeeze(1).numpy(), {"log_prob": log_prob.numpy(), "value": value.numpy()}

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Return the values to bootstrap from; called at the end of a rollout."""
        with torch.no_grad():
            return np.asarray(self.net(torch.from_numpy(observation))[1])


def learn(net: Net, optimizer: torch.optim.Optimizer, rollout: sw.Rollout) -> None:
    """Train for several epochs on one rollout, with PPO's clipped loss (arXiv:1707.06347)."""
    np.sign(rollout.reward, out=rollout.reward)  # the replay keeps the game's own rewards
    rollout.advantages(GAMMA, LAMBDA)
    for batch in rollout.minibatches(BATCH_SIZE, EPOCHS, to="torch"):
        log_probs, value = net(batch.observation)
        log_prob = log_probs.gather(1, batch.action[:, None]).squeeze(1)
        ratio = (log_prob - batch.extras["log_prob"]).exp()
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        loss = VALUE_WEIGHT * (value - batch.returns).square().mean() - ENTROPY_WEIGHT * entropy
        optimizer.zero_grad()
        torch.autograd.backward(loss - gain)
        nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
        optimizer.step()


def main() -> None:
    """Train, and write the learning curve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--out", type=Path, default=Path("runs/ppo_pong"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=8)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # two gain little, and are slow when other programs run
    envs = sw.make_atari(options.game, options.num_envs, size=(SIZE, SIZE), sticky=STICKY)
    first = sw.Collector(envs, sw.RandomPolicy(), seed=options.seed).rollout(steps=512)
    net = Net(flatdim(envs.single_action_space), first.observation[:, :, -1])
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, eps=1e-5)
    updates = max(1, options.steps // (ROWS * options.num_envs))
    rollout, steps, recent = None, 0, deque[float](maxlen=20)
    curve = ["steps,seconds,mean_return_of_20_episodes"]
    replay = sw.SequenceReplayBuffer(options.out / "replay")
    with replay, sw.Collector(envs, Policy(net), replay, seed=options.seed) as collector:
        for update in range(1, updates + 1):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - (update - 1) / updates)
            rollout = collector.rollout(steps=ROWS, out=rollout)  # reuses the memory
            learn(net, optimizer, rollout)
            steps += rollout.steps
            recent.extend(rollout.episode_returns)
            if update % 20 == 0 or update == updates:
                seconds, mean = time.perf_counter() - began, np.mean(recent or [np.nan])
                print(f"{steps:9,} steps  {seconds:6,.0f} s  return {mean:6.2f}", flush=True)
                curve.append(f"{steps},{seconds:.1f},{mean:.3f}")
                (options.out / "curve.csv").write_text("\n".join(curve) + "\n")
                torch.save(net.state_dict(), options.out / "net.pt")
        print(f"{replay.steps:,} steps are kept, in {replay.total_bytes:,} bytes")


if __name__ == "__main__":
    main()
