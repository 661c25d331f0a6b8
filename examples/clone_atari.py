"""Clone an Atari expert of the catalogue with a small network, and play new games.

python examples/clone_atari.py --dataset atari/boxing-trained

It needs PyTorch (`pip install 'stepwell[torch]'`), and minutes of one core.
"""

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

import stepwell as sw
from stepwell.collectors import list_datasets


class Centred(nn.Module):
    """Frames less their mean picture: what moves is few pixels, and stands out."""

    def __init__(self, frames: np.ndarray) -> None:
        super().__init__()
        self.mean = torch.as_tensor(frames).float().mean((0, 1))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Stacks [N, 4, 84, 84] of floats."""
        return (frames - self.mean) / 32


def learn(replay: sw.SequenceReplayBuffer, num_actions: int, updates: int) -> nn.Module:
    """A network from stacks of frames [N, 4, 84, 84] to logits of the expert's actions."""
    net = nn.Sequential(
        Centred(replay.sample_transitions(1024).observation),
        *(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
        *(nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, num_actions)),
    )
    net(torch.zeros(1, 4, 84, 84))  # the lazy layer's size is known from here on
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    plan = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, updates)
    right = 0.0
    for update in range(updates):
        batch = replay.sample_transitions(32)
        actions = torch.as_tensor(batch.action)
        logits = net(torch.as_tensor(batch.observation))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, actions).backward()
        optimizer.step()
        plan.step()
        right += 0.02 * (float((logits.argmax(1) == actions).float().mean()) - right)
        if update % 500 == 499:
            print(f"{update + 1:,} updates: {right:.1%} of the expert's actions", flush=True)
    return net


def main() -> None:
    """Learn, and play new games."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="atari/boxing-trained")
    parser.add_argument("--updates", type=int, default=6_000)
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--max-frames", type=int, default=18_000, help="of a game: five minutes")
    options = parser.parse_args()
    torch.manual_seed(0)
    (entry,) = (one for one in list_datasets() if one.name == options.dataset)
    envs: Any = sw.make_atari(
        entry.env, options.games, backend="python", max_frames=options.max_frames
    )
    with sw.load_dataset(entry.name, seed=0, progress=True) as replay:
        net = learn(replay, envs.single_action_space.n, options.updates)

    @torch.inference_mode()
    def cloned(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.asarray(net(torch.as_tensor(observation)).argmax(1))

    print(f"expert: mean return {entry.return_mean:.1f} in the data set")
    for name, policy in (("random", sw.RandomPolicy()), ("clone", cloned)):
        score = sw.evaluate(envs, policy, episodes=options.games)
        print(f"{name}: mean return {score.mean:.1f} of {len(score.episodes)} new games")
    envs.close()


if __name__ == "__main__":
    main()
