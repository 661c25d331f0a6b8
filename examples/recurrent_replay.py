"""Data for R2D2: a recurrent policy stores its state; the learner starts from it, with a burn-in.

python examples/recurrent_replay.py --steps 2000 --out runs/recurrent
"""

import argparse

import numpy as np

import stepwell as sw

BURN_IN, LENGTH, HIDDEN = 8, 16, 12
Extras = dict[str, np.ndarray]


class Policy:
    """A small random network with a memory, for any number of envs."""

    def __init__(self, inputs: int, actions: int) -> None:
        shapes = (inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, actions)
        drawn = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
        self.from_input, self.from_hidden, self.to_action = drawn
        self.hidden = np.zeros((1, HIDDEN), np.float32)

    def step(self, hidden: np.ndarray, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the next state, computed from zeros where an episode begins."""
        kept = np.where(first[:, None], np.float32(0), hidden) @ self.from_hidden
        return np.asarray(np.tanh(observation @ self.from_input + kept))

    def __call__(self, observation: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, Extras]:
        """Choose actions, and return the state *before* each row as an extra."""
        before = np.broadcast_to(self.hidden, (len(first), HIDDEN))
        self.hidden = self.step(before, observation, first)
        return np.argmax(self.hidden @ self.to_action, axis=1), {"hidden": before}


def main() -> None:
    """Collect, then learn from sequences that are drawn by priority."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", default="runs/recurrent")
    options = parser.parse_args()
    envs, policy = sw.make_vec("Acrobot-v1", num_envs=4, num_workers=0), Policy(6, 3)
    with sw.SequenceReplayBuffer(options.out, seed=0) as replay:
        with sw.Collector(envs, policy, replay, seed=0) as collector:
            print(collector.collect(steps=options.steps))
        request = sw.Sequences(8, LENGTH, draw="priorities", burn_in=BURN_IN, state=["hidden"])
        for _ in range(20):
            batch = replay.sample(request)
            hidden, errors = batch.state["hidden"], np.zeros(8)
            for t in range(BURN_IN + LENGTH):
                after = policy.step(hidden, batch.observation[:, t], batch.is_first[:, t])
                hidden = np.where(batch.mask[:, t, None], after, hidden)  # padding keeps the state
                errors += np.abs(hidden).mean(axis=1) * (t >= BURN_IN)
            replay.update_priorities(batch.ids, errors * batch.weights)
        print(f"unrolled {BURN_IN} + {LENGTH} rows of 8 sequences, 20 times")


if __name__ == "__main__":
    main()
