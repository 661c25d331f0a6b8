"""Log collecting, with callbacks: to the terminal, TensorBoard or Weights & Biases.

python examples/log_training.py --logger tensorboard --steps 2000 --out runs/logged
Stepwell needs none of them: `pip install torch tensorboard`, or `pip install wandb`.
"""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

import stepwell as sw
from stepwell.collectors import EpisodeReport

Log = Callable[[str, float, int], None]  # name, value, number of env steps


def printing(folder: str) -> tuple[Log, Callable[[], None]]:
    """Return functions that log to the terminal and that finish."""
    return lambda name, value, step: print(f"{step:6,} {name} {value:,.0f}"), lambda: None


def tensorboard(folder: str) -> tuple[Log, Callable[[], None]]:
    """Return the same for TensorBoard; view with `tensorboard --logdir runs`."""
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder)
    return writer.add_scalar, writer.close


def wandb(folder: str) -> tuple[Log, Callable[[], None]]:
    """Return the same for Weights & Biases; without an account set WANDB_MODE=offline."""
    run = importlib.import_module("wandb").init(project="stepwell", dir=folder)
    return lambda name, value, step: run.log({name: value}, step=step), run.finish


def main() -> None:
    """Collect with random actions, and log each episode and the speed."""
    loggers = {"print": printing, "tensorboard": tensorboard, "wandb": wandb}
    parser = argparse.ArgumentParser()
    parser.add_argument("--logger", choices=loggers, default="print")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", default="runs/logged")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    log, end = loggers[options.logger](options.out)

    def on_episode(episode: EpisodeReport) -> None:
        log("return", episode.total_reward, episode.total_steps)

    envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), seed=0, on_episode=on_episode) as collector:
        steps = 0
        while steps < options.steps:
            report = collector.collect(steps=100)
            steps += report.steps
            log("steps_per_second", report.steps / report.seconds, steps)
    end()


if __name__ == "__main__":
    main()
