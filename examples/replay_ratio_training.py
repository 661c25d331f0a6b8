"""Take half a gradient step per env step, and continue exactly when started again.

python examples/replay_ratio_training.py --steps 2000 --out runs/half_a_step
"""

import argparse

import gymnasium as gym
import numpy as np

import stepwell as sw

PREFILL = 100  # steps before the first gradient step; no gradient steps are due for them


class Learner:
    """Takes the place of a model: it keeps a running mean of the n-step returns."""

    def __init__(self) -> None:
        self.updates = 0
        self.value = 0.0

    def learn(self, batch: sw.TransitionBatch) -> None:
        """Take one gradient step."""
        self.updates += 1
        self.value += 0.01 * (float(np.mean(batch.reward)) - self.value)


def main() -> None:
    """Collect, take the gradient steps that are due, and save a checkpoint with the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", default="runs/half_a_step")
    options = parser.parse_args()

    envs = gym.make_vec("CartPole-v1", num_envs=4)
    replay = sw.SequenceReplayBuffer(options.out, capacity=100_000, seed=1)
    learner, ratio = Learner(), sw.ReplayRatio(0.5)
    with replay, sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        goal = replay.steps + options.steps
        if replay.steps:
            state = replay.load_checkpoint()
            learner.updates, learner.value = state["updates"], state["value"]
            ratio.load_state_dict(state["ratio"])
        else:
            collector.collect(steps=min(PREFILL, options.steps))
        while True:
            for _ in range(ratio(replay.steps)):
                learner.learn(replay.sample_transitions(32, n_step=3))
            state = {"updates": learner.updates, "value": learner.value}
            replay.save_checkpoint({**state, "ratio": ratio.state_dict()})
            if replay.steps >= goal:
                break
            collector.collect(steps=64)
        print(f"{replay.steps:,} steps, {learner.updates:,} updates", end=", ")
        print(f"a value of {learner.value:.3f} in {replay.path}")


if __name__ == "__main__":
    main()
