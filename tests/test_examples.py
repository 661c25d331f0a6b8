"""Each script in examples/ runs, small: those that gather take `--steps N` and `--out DIR`."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

EXAMPLES = sorted((CHECKOUT / "examples").glob("*.py"))
LINE_LIMIT = 60
# A whole learner in one file, as CleanRL has it: network, policy, loss and loop; and two
# recorders next to each other, with a table and a picture.
LINE_LIMITS = {
    "feed_cleanrl_ppo": 130,
    "live_buffers": 160,
    "local_collector": 90,
    "ppo_atari": 130,
    "ppo_cartpole": 130,
    "ppo_many_agents": 150,
    "ray_atari": 140,
    "ray_kill_one": 100,
}
# Packages of extras and of others, by example.
NEEDS = {
    "feed_cleanrl_ppo": ("torch",),
    "feed_sb3_dqn": ("stable_baselines3",),
    "feed_sb3_ppo": ("stable_baselines3",),
    "feed_tianshou": ("tianshou",),
    "feed_torchrl_dqn": ("torchrl",),
    "live_buffers": ("cynes", "minari", "h5py", "jax", "PIL"),
    "nes_dataset": ("cynes",),
    "offline_d3rlpy": ("h5py",),
    "ppo_many_agents": ("torch", "mpe2"),
    "ray_atari": ("ray", "torch"),
    "ray_kill_one": ("ray",),
}
STEPS = 200
GATHER = ["--steps", str(STEPS), "--out", "{out}"]
# Those that gather nothing have arguments of their own.
ARGUMENTS = {"make_demo_rom": ["{out}"]}

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


def test_there_are_examples() -> None:
    assert EXAMPLES


@each_example
def test_an_example_runs_without_a_warning_and_says_what_it_did(
    example: Path, tmp_path: Path
) -> None:
    for package in NEEDS.get(example.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    wanted = ARGUMENTS.get(example.stem, GATHER)
    arguments = [one.format(out=tmp_path / "out") for one in wanted]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()


@each_example
def test_an_example_is_short_and_says_what_it_shows(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= LINE_LIMITS.get(example.stem, LINE_LIMIT)


def test_the_exceptions_are_examples() -> None:
    assert LINE_LIMITS.keys() | ARGUMENTS.keys() | NEEDS.keys() <= {
        example.stem for example in EXAMPLES
    }
