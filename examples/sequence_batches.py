"""The data loop of a world model: collect a few steps, draw sequences, learn, and repeat.

python examples/sequence_batches.py --steps 2000 --out runs/agent
"""

import argparse

import gymnasium as gym
import numpy as np

import stepwell as sw


def learn(batch: sw.Batch) -> float:
    """Take the place of a model: return the share of rows that end an episode."""
    return float(np.mean(batch.terminated))


def main() -> None:
    """Collect with four envs, and draw sixteen sequences of 32 rows after every 64 steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", default="runs/agent")
    options = parser.parse_args()

    envs = gym.make_vec(options.env, num_envs=4)
    replay = sw.SequenceReplayBuffer(options.out, capacity=100_000, seed=1)
    with replay, sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        goal = replay.steps + options.steps
        batch, share = None, 0.0
        while replay.steps < goal:
            collector.collect(steps=64)
            try:
                batch = replay.sample_sequences(16, length=32)
            except sw.NotEnoughData as error:  # the first episodes are short
                print(error)
                continue
            share = learn(batch)
        print(f"{replay.steps:,} steps, {replay.episodes:,} episodes in {replay.path}")
        if batch is not None:
            print(f"the last batch: observation {batch.observation.shape}, ", end="")
            print(f"{int(batch.is_first.sum())} rows begin an episode, {share:.1%} end one")


if __name__ == "__main__":
    main()
