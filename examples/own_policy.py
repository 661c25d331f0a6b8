"""Record a custom policy, and its extras with each row: log-probabilities, values, anything.

python examples/own_policy.py --steps 1000 --out runs/cartpole
"""

import argparse

import gymnasium as gym
import numpy as np

import stepwell as sw


class LeaningPolicy:
    """Pushes the cart to the side to which the pole leans, with some randomness."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(
        self, observation: np.ndarray, is_first: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return actions [N] and the log-probability of each."""
        right = 1 / (1 + np.exp(-20 * observation[:, 2]))
        action = (self.rng.random(len(right)) < right).astype(np.int64)
        return action, {"log_prob": np.log(np.where(action == 1, right, 1 - right))}


def main() -> None:
    """Collect whole episodes, the first to start, so that short ones are not favoured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--out", default="runs/cartpole")
    options = parser.parse_args()

    envs = gym.make_vec("CartPole-v1", num_envs=4)
    replay = sw.SequenceReplayBuffer(options.out)
    with replay, sw.Collector(envs, LeaningPolicy(seed=0), replay, seed=0) as collector:
        print(collector.collect(episodes=max(1, options.steps // 100)))
        batch = replay.sample_sequences(8, length=10)
        print("extras of the batch:", {name: rows.shape for name, rows in batch.extras.items()})


if __name__ == "__main__":
    main()
