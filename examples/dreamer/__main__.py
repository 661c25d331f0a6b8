"""Command line of the agent: python -m examples.dreamer --help."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import gymnasium

import stepwell as sw
from stepwell.buffers import StoreNotFound

try:
    import torch
except ImportError:
    raise SystemExit(
        "error: this example needs PyTorch: pip install 'stepwell[dreamer]', or in a checkout "
        "pip install -e '.[dreamer]'"
    ) from None

from .agent import Models, construct_models
from .checkpoint import load_checkpoint, load_models, write_whole
from .config import Config, parse_settings
from .foresee import draw_foresight
from .progress import Progress
from .train import EvaluationEnvs, evaluate, get_environments_and_actions, train_loop

FRESH_SEED = 2_000_000  # of the last evaluation: seeds that were not used to select the agent
MADE_ONCE = ("env", "seed", "preset")  # cannot change when a run is resumed
USER_ERRORS = (sw.StepwellError, gymnasium.error.Error, ValueError, TypeError, OSError, ImportError)

EPILOG = """\
examples:
  python -m examples.dreamer --env CartPole-v1 --out runs/cartpole
  python -m examples.dreamer --env stepwell/Catch-v0 --out runs/catch --set channels=8
  python -m examples.dreamer --out runs/cartpole --resume --steps 20000
  tensorboard --logdir runs

Ctrl-C stops a run; --resume continues it, also after a kill.
"""


class Run(NamedTuple):
    """Settings of a run, as stored in ``run.json`` in its folder."""

    env: str
    seed: int
    config: Config


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Raises:
        SystemExit: There is an error, or Ctrl-C was pressed; the message says what to do.
    """
    options = _options(arguments)
    try:
        run = _run(options)
        models = _train(run, options)
        _show(run, models, options)
    except USER_ERRORS as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        again = f"python -m examples.dreamer --out {options.out} --resume"
        raise SystemExit(f"\nstopped; continue from the last checkpoint with\n  {again}") from None


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.dreamer",
        description="Train a small DreamerV3: learn a model of an env, and learn to act in it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--env", help="id of the env, such as CartPole-v1 (the default) or ALE/Pong-v5")
    add("--out", type=Path, default=Path("runs/dreamer"), help="a folder; default runs/dreamer")
    add("--resume", action="store_true", help="continue the run in that folder")
    add("--steps", type=int, help="total env steps; default 10,000, with --preset paper a million")
    add("--seed", type=_at_least(0), help="default 0")
    add("--preset", choices=("small", "paper"), help="default small, for a CPU")
    names = ", ".join(asdict(Config()))
    more = f"other settings: {names}"
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=more)
    add("--video", type=Path, help="at the end record the best agent in a file that ends in .mp4")
    pictures = "at the end draw the model's predictions of images in a .png file"
    add("--foresee", type=Path, help=pictures)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", type=_device, default=device, help="default: a GPU if there is one")
    add("--threads", type=_at_least(1), default=1, help="CPU threads of PyTorch; default 1")
    options = parser.parse_args(arguments)
    for name in MADE_ONCE:
        if options.resume and getattr(options, name) is not None:
            parser.error(f"--{name}: expected none with --resume, it stays as it was; leave it out")
    for name, ending in (("video", ".mp4"), ("foresee", ".png")):
        path = getattr(options, name)
        if path is not None and path.suffix != ending:
            parser.error(f"--{name}: expected a file that ends in {ending}, got {path}")
    if options.video is not None and find_spec("av") is None:
        parser.error("--video: needs PyAV: pip install 'stepwell[video]'")
    return options


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number >= {least}, got {text}")
        return int(text)

    return number


def _device(name: str) -> torch.device:
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError):  # PyTorch raises either for a missing device
        raise argparse.ArgumentTypeError(
            f"expected cpu, or cuda where PyTorch finds a GPU, got {name}"
        ) from None


def _run(options: argparse.Namespace) -> Run:
    """Return the new run, or the one to resume.

    Raises:
        ValueError: The folder has a run already, or none to resume; or a setting is invalid.
    """
    file = options.out / "run.json"
    numbers = parse_settings(options.set) | (
        {} if options.steps is None else {"steps": options.steps}
    )
    if options.resume:
        if not file.exists():
            raise ValueError(f"--resume: expected a run in {options.out}, got none; see --out")
        before = _noted(file)
        return before._replace(config=replace(before.config, **numbers))
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        what = "a run" if file.exists() else "something else"
        raise ValueError(
            f"--out {options.out}: expected a new or an empty folder, got {what}; give another "
            f"folder" + (", or add --resume" if file.exists() else "")
        )
    config = Config() if options.preset == "paper" else Config.small()
    return Run(options.env or "CartPole-v1", options.seed or 0, replace(config, **numbers))


def _noted(file: Path) -> Run:
    try:
        before = json.loads(file.read_text())
        return Run(before["env"], before["seed"], Config(**before["config"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: expected env, seed and config of a run, got something else ({error!r}); was "
            f"it written by another version?"
        ) from error


def _train(run: Run, options: argparse.Namespace) -> Models:
    """Start or resume the run, finish it, and return the agent."""
    torch.manual_seed(run.seed)
    torch.set_num_threads(options.threads)
    envs, _ = get_environments_and_actions(run.env, run.config.num_envs)
    spaces = envs.single_observation_space, envs.single_action_space
    folder, capacity = options.out / "replay", run.config.capacity
    with sw.SequenceReplayBuffer(folder, capacity=capacity, seed=run.seed) as replay:
        models = construct_models(*spaces, replay, run.config, options.device)
        if options.foresee is not None and not models.utilities.observations.shapes.images:
            raise ValueError(f"--foresee: expected an env that shows pictures, got {run.env}")
        progress = Progress(options.out, run.config.steps)
        if replay.steps:
            with suppress(StoreNotFound):  # killed before the first checkpoint
                progress.resumed(**load_checkpoint(models))
        if replay.steps >= run.config.steps:
            print(
                f"nothing to learn: {replay.steps:,} steps were taken, and --steps is "
                f"{run.config.steps:,}"
            )
        noted = {"env": run.env, "seed": run.seed, "config": asdict(run.config)}
        write_whole(options.out / "run.json", (json.dumps(noted, indent=2) + "\n").encode())
        with progress:
            try:
                train_loop(envs, models, run.config, progress, run.env, _best(options), run.seed)
            except (ValueError, TypeError) as error:  # not caused by an option: show the traceback
                raise RuntimeError("the training failed") from error
    return models


def _show(run: Run, models: Models, options: argparse.Namespace) -> None:
    """Evaluate the best agent on fresh seeds, record it, and draw its model's predictions."""
    load_models(_best(options), models, include_optimizers=False)
    with EvaluationEnvs(run.env, run.config.eval_episodes, FRESH_SEED) as eval_envs:
        print(f"the best agent, from fresh seeds:\n{eval_envs.play(models)}")
    if options.video is not None:
        evaluate(run.env, models, FRESH_SEED, options.video)
        print(f"film: {options.video}")
    if options.foresee is not None:
        with sw.SequenceReplayBuffer.open(options.out / "replay", read_only=True) as replay:
            draw_foresight(models, replay, options.foresee)
        print(f"what it foresees: {options.foresee}")


def _best(options: argparse.Namespace) -> Path:
    path: Path = options.out / "best.pt"
    return path


if __name__ == "__main__":
    main()
