"""Learn offline with d3rlpy's CQL from the data of a half-random policy, and beat that policy.

python examples/offline_d3rlpy.py --steps 17000 --out runs/offline    here: record and export
PYTHON examples/offline_d3rlpy.py --train --out runs/offline          where d3rlpy is: learn

d3rlpy pins an older gymnasium: PYTHON belongs to a separate environment with torch and d3rlpy,
without Stepwell. The method: Kumar et al. 2020, arXiv:2006.04779.
"""

import argparse
from pathlib import Path

import numpy as np


def record(steps: int, out: Path) -> None:
    """Collect episodes into a store, and export it as a d3rlpy file."""
    import stepwell as sw
    from stepwell.buffers.bridges import export_episodes

    rng = np.random.default_rng(0)

    def half_random(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        good = observation[:, 2] + 0.3 * observation[:, 3] > 0  # the direction of the fall
        action = np.where(rng.random(len(good)) < 0.5, rng.integers(0, 2, len(good)), good)
        return action.astype(np.int64)

    envs = sw.make_vec("CartPole-v1", 4, num_workers=0)
    with sw.SequenceReplayBuffer(out / "store") as replay:
        with sw.Collector(envs, half_random, replay, seed=0) as collector:
            collector.collect(steps=steps)
        returns = [e.total_reward for e in replay.iter_episodes() if not e.cut[-1]]
        report = export_episodes(replay, "d3rlpy", out / "cartpole.h5")
    print(f"behaviour: mean return {np.mean(returns):.1f} of {len(returns)} episodes")
    print(f"{report.steps:,} steps in {report.path}; {'; '.join(report.notes)}")
    print(f"now, where d3rlpy is: PYTHON {__file__} --train --out {out}")


def train(out: Path, updates: int) -> None:
    """Learn from the file alone, and evaluate."""
    import d3rlpy
    import gymnasium as gym

    d3rlpy.seed(0)
    with (out / "cartpole.h5").open("rb") as file:
        data = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    cql = d3rlpy.algos.DiscreteCQLConfig().create(device="cpu")
    cql.fit(data, updates, updates, logger_adapter=d3rlpy.logging.NoopAdapterFactory())
    play = d3rlpy.metrics.EnvironmentEvaluator(gym.make("CartPole-v1"), n_trials=20)
    print(f"learned: mean return {play(cql, data):.1f} of 20 fresh episodes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--steps", type=int, default=17_000, help="env steps to record")
    parser.add_argument("--out", type=Path, default=Path("runs/offline"))
    parser.add_argument("--train", action="store_true", help="learn from what is in OUT")
    parser.add_argument("--updates", type=int, default=3_000, help="of CQL's network")
    options = parser.parse_args()
    train(options.out, options.updates) if options.train else record(options.steps, options.out)
