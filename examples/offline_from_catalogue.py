"""Clone the behaviour of an expert from the catalogue, with numpy alone: logistic regression.

python examples/offline_from_catalogue.py
"""

import argparse

import numpy as np

import stepwell as sw


def learn(replay: sw.SequenceReplayBuffer, updates: int) -> np.ndarray:
    """Weights [4] of the observation, by gradient steps on the expert's actions."""
    weights = np.zeros(4)
    for _ in range(updates):
        batch = replay.sample_transitions(256)
        seen, pushed_right = batch.observation, batch.action
        likely = 1 / (1 + np.exp(-np.clip(seen @ weights, -30, 30)))
        weights += 10 * seen.T @ (pushed_right - likely) / len(seen)
    return weights


def main() -> None:
    """Learn, and play 20 new episodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=3_000)
    options = parser.parse_args()
    with sw.load_dataset("cartpole/expert", seed=0, progress=True) as replay:
        weights = learn(replay, options.updates)

    def cloned(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.where(observation @ weights > 0, 1, 0)

    for name, policy in (("random", sw.RandomPolicy()), ("cloned", cloned)):
        score = sw.evaluate("CartPole-v1", policy, episodes=20, num_envs=4)
        low, high = score.confidence
        print(f"{name}: mean return {score.mean:.1f} of 20 episodes, 95 % {low:.1f} to {high:.1f}")


if __name__ == "__main__":
    main()
