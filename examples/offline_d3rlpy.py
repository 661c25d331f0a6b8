"""Learn offline with d3rlpy's CQL from a half-good policy's data set, and beat that policy.

python examples/offline_d3rlpy.py --dataset lunarlander/medium --out runs/offline    here: export
PYTHON examples/offline_d3rlpy.py --train --out runs/offline    where d3rlpy is: learn, and play

d3rlpy pins an older gymnasium: PYTHON belongs to a separate environment with torch and d3rlpy,
without Stepwell (and for LunarLander with box2d and pygame). The method: Kumar et al. 2020,
arXiv:2006.04779. Data sets with a few actions to choose from are meant: `stepwell datasets`.
"""

import argparse
from pathlib import Path


def export(name: str, out: Path) -> None:
    """Make a data set of the catalogue, and export it as a d3rlpy file."""
    import stepwell as sw
    from stepwell.buffers.bridges import export_episodes
    from stepwell.collectors import list_datasets

    (entry,) = (one for one in list_datasets() if one.name == name)
    out.mkdir(parents=True, exist_ok=True)
    with sw.load_dataset(name, progress=True) as replay:
        report = export_episodes(replay, "d3rlpy", out / f"{entry.env}.h5")
    print(f"behaviour: mean return {entry.return_mean:.1f} in the data set")
    print(f"{report.steps:,} steps in {report.path}; {'; '.join(report.notes)}")
    print(f"now, where d3rlpy is: PYTHON {__file__} --train --out {out}")


def train(out: Path, updates: int) -> None:
    """Learn from the file alone, and play in the env after which it is called."""
    import d3rlpy
    import gymnasium as gym

    d3rlpy.seed(0)
    (path,) = out.glob("*.h5")
    with path.open("rb") as file:
        data = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    play = d3rlpy.metrics.EnvironmentEvaluator(gym.make(path.stem), n_trials=20)
    cql = d3rlpy.algos.DiscreteCQLConfig(
        learning_rate=3e-4, batch_size=64, target_update_interval=500
    ).create(device="cpu")
    cql.fit(data, updates, updates, logger_adapter=d3rlpy.logging.NoopAdapterFactory())
    random = d3rlpy.algos.DiscreteRandomPolicyConfig().create()
    random.build_with_dataset(data)
    for name, policy in (("learned", cql), ("random", random)):
        print(f"{name}: mean return {play(policy, data):.1f} of 20 fresh episodes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--dataset", default="lunarlander/medium", help="of the catalogue")
    parser.add_argument("--out", type=Path, default=Path("runs/offline"), help="a folder")
    parser.add_argument("--train", action="store_true", help="learn from what is in OUT")
    parser.add_argument("--updates", type=int, default=5_000, help="of CQL's network")
    options = parser.parse_args()
    train(options.out, options.updates) if options.train else export(options.dataset, options.out)
