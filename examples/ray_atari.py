"""Atari over Ray: actors play while a learner trains here; PPO on rollouts, then Q-learning.

python examples/ray_atari.py --game Pong --steps 20000 --out runs/ray_atari

It needs Ray and PyTorch: pip install 'stepwell[ray,torch]'. On a cluster, add --address auto; its
nodes need this folder, as `ray job submit --working-dir examples` sends it.
"""

import argparse
import copy
import logging
from pathlib import Path

import numpy as np

import stepwell as sw

try:
    import ray
    import torch
    from torch import nn

    from ppo_atari import GAMMA, LEARNING_RATE, ROWS, SIZE, Net, Policy, learn
except ImportError:
    print("this example needs Ray and PyTorch: pip install 'stepwell[ray,torch]'")
    raise SystemExit from None

GROUPS, ENVS = 4, 4  # the data depends on these and the seed, not on the number of actors
ACTIONS, EPSILON, BATCH, TARGET_EVERY = 18, 0.1, 64, 100
Weights = dict[str, torch.Tensor]


class ActorPolicy(Policy):
    """PPO's policy in an actor, where each rollout begins with the learner's weights."""

    def __init__(self) -> None:
        super().__init__(Net(ACTIONS, np.zeros((2, 1, SIZE, SIZE), np.uint8)))

    def load(self, weights: Weights) -> None:
        """Take over the learner's weights."""
        self.net.load_state_dict(weights)


class GreedyPolicy:
    """Chooses the action with the largest value, or with a small probability any other."""

    def __init__(self) -> None:
        self.net = nn.Sequential(
            *(nn.Conv2d(4, 16, 8, stride=4), nn.ReLU()),  # 9 x 9
            *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()),  # 3 x 3
            *(nn.Linear(32 * 3 * 3, 128), nn.ReLU(), nn.Linear(128, ACTIONS)),
        )
        self.rng = np.random.default_rng()

    def load(self, weights: Weights) -> None:
        """Take over the learner's weights."""
        self.net.load_state_dict(weights)

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """Choose actions for uint8 frames [N, 4, 42, 42]."""
        with torch.no_grad():
            best = self.net(torch.from_numpy(observation) / 255).argmax(1).numpy()
        is_random = self.rng.random(len(best)) < EPSILON
        return np.where(is_random, self.rng.integers(ACTIONS, size=len(best)), best)


def ppo(collector: sw.RayCollector, steps: int) -> None:
    """Learn from rollouts [T, groups * N, ...], all of them with the newest weights."""
    net = ActorPolicy().net
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, eps=1e-5)
    rows = min(ROWS, max(1, steps // (GROUPS * ENVS)))
    for _ in range(max(1, steps // (rows * GROUPS * ENVS))):
        rollout = collector.rollout(rows, weights=net.state_dict())
        learn(net, optimizer, rollout)
        print(f"PPO: version {collector.report.version}, {rollout.steps:,} steps a rollout")


def q_learning(collector: sw.RayCollector, replay: sw.SequenceReplayBuffer, steps: int) -> None:
    """Learn from the replay while rows stream into it, and publish the weights now and then."""
    net = GreedyPolicy().net
    target, updates = copy.deepcopy(net), 0
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    collector.collect(steps=min(steps, 1_000), weights=net.state_dict())  # enough for a batch
    request = sw.Transitions(BATCH, n_step=3, gamma=GAMMA)
    with collector.running() as run, replay.loader(request, to="torch") as batches:
        while run.steps < steps:
            batch = next(batches)
            with torch.no_grad():
                later = target(batch.next_observation / 255).amax(1)
            value = net(batch.observation / 255).gather(1, batch.action[:, None]).squeeze(1)
            goal = batch.reward + batch.discount * later
            loss = nn.functional.smooth_l1_loss(value, goal)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            updates += 1
            if updates % TARGET_EVERY == 0:
                target.load_state_dict(net.state_dict())
            if updates % 10 == 0:
                run.publish(net.state_dict())  # returns at once; raises what failed in an actor
        print(f"Q-learning: {updates:,} updates, weights {run.lag} versions behind")


def main() -> None:
    """Train with both, each in a replay of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("runs/ray_atari"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--address", help="auto, for the cluster of this machine")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    ray.init(options.address or "local", include_dashboard=False, logging_level=logging.WARNING)
    for name, policy in (("ppo", ActorPolicy), ("q_learning", GreedyPolicy)):
        with (
            sw.SequenceReplayBuffer(options.out / name, seed=options.seed) as replay,
            sw.RayCollector(
                lambda: sw.make_atari(options.game, ENVS, size=(SIZE, SIZE), full_actions=True),
                policy,
                replay,
                groups=GROUPS,
                actors=options.actors,
                seed=options.seed,
                resources={"num_cpus": 0.5},
            ) as collector,
        ):
            if name == "ppo":
                ppo(collector, options.steps)
            else:
                q_learning(collector, replay, options.steps)
            print(f"{replay.steps:,} steps in {replay.path}, {replay.total_bytes:,} bytes")


if __name__ == "__main__":
    main()
