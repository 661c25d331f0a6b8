"""Learn in one process from a store that another process is writing.

python examples/follow_a_writer.py --steps 5000 --out runs/followed
"""

import argparse
import multiprocessing
import time

import gymnasium as gym
import numpy as np

import stepwell as sw
from stepwell.buffers import DiskStorage


def collect(folder: str, steps: int) -> None:
    """Run in the collector's process: write into the folder, which keeps 20,000 steps."""
    envs = gym.make_vec("CartPole-v1", num_envs=4)
    replay = sw.SequenceReplayBuffer(folder, capacity=20_000)
    with replay, sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        goal = replay.steps + steps
        while replay.steps < goal:
            collector.collect(steps=min(100, goal - replay.steps))


def learn(batch: sw.Batch) -> float:
    """Take the place of a model: return how far the pole leans on average."""
    return float(np.abs(batch.observation[..., 2]).mean())


def main() -> None:
    """Run in the learner's process: without a lock, it sees the store as of its last refresh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--out", default="runs/followed")
    options = parser.parse_args()

    arguments = (options.out, options.steps)
    collector = multiprocessing.get_context("spawn").Process(target=collect, args=arguments)
    collector.start()
    while collector.is_alive() and not DiskStorage.exists(options.out):
        time.sleep(0.01)
    with sw.SequenceReplayBuffer.open(options.out, read_only=True, seed=0) as replay:
        while collector.is_alive():
            if not replay.refresh():
                time.sleep(0.001)  # no new steps; a real learner would sample again instead
            elif len(replay) >= 64:
                lean = learn(replay.sample_sequences(16, length=8))
                print(f"{replay.steps:6,} steps, {replay.episodes:4} episodes, lean {lean:.3f}")
        replay.refresh()  # the last steps may be newer than the last refresh
        print(f"the collector has ended after {replay.steps:,} steps")
    collector.join()


if __name__ == "__main__":
    main()
