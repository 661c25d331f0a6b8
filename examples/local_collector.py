"""Learn while other processes collect: they get new weights, and the replay here gets their rows.

python examples/local_collector.py --steps 40000 --out runs/local
"""

import argparse
import time

import numpy as np

import stepwell as sw


def features(observation: np.ndarray) -> np.ndarray:
    """Return numbers [N, 15], in which the values are linear: products of each two of five."""
    x = np.pad(observation / [2.4, 2.0, 0.2, 2.0], ((0, 0), (1, 0)), constant_values=1.0)
    return (x[:, :, None] * x[:, None, :])[:, *np.triu_indices(5)]


class Pusher:
    """Pushes to the side with the larger value, and every tenth time to any side."""

    weights = np.zeros((15, 2))

    def begin(self, action_space: object, rng: np.random.Generator) -> None:
        """Take a generator; its seed follows from the collector's."""
        self.rng = rng

    def load(self, weights: np.ndarray) -> None:
        """Take what the learner has published."""
        self.weights = weights

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """Return actions [N]."""
        best = np.argmax(features(observation) @ self.weights, axis=1)
        return np.where(self.rng.random(len(best)) < 0.1, self.rng.integers(2), best)


def learn(weights: np.ndarray, batch: sw.TransitionBatch) -> np.ndarray:
    """Take a step of Q-learning, so small that it cannot diverge."""
    now, after = features(batch.observation), features(batch.next_observation)
    highest = 1 / (1 - 0.97)  # of values, with a reward of 1 at every step
    goal = batch.reward + batch.discount * (after @ weights).max(axis=1).clip(0, highest)
    error = (goal - (now @ weights)[np.arange(len(now)), batch.action])[:, None]
    better: np.ndarray = weights + now.T @ (error * np.eye(2)[batch.action]) / (now**2).sum()
    return better


def main() -> None:
    """Collect in processes, one for each core, and learn here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--out", default="runs/local")
    options = parser.parse_args()

    replay = sw.SequenceReplayBuffer(options.out, capacity=20_000, seed=0)
    weights, returns = np.zeros((15, 2)), list[float]()
    with (
        replay,
        sw.LocalCollector(
            lambda: sw.make_vec("CartPole-v1", num_envs=4, num_workers=0),
            Pusher,
            replay,
            groups=2,
            seed=0,
            flush_seconds=0.1,
            on_episode=lambda episode: returns.append(episode.total_reward),
        ) as collector,
    ):
        with collector.running(weights=weights) as run:
            while run.steps < options.steps:
                for _ in range(100 if run.steps >= 100 else 0):
                    batch = replay.sample_transitions(64, n_step=3, gamma=0.97)
                    weights = learn(weights, batch)
                run.publish(weights)
                time.sleep(0.1)
        print(collector.report)
        few = len(returns) // 10 + 1
        print(f"mean return: {np.mean(returns[:few]):.1f} at first, {np.mean(returns[-few:]):.1f}")


if __name__ == "__main__":
    main()
