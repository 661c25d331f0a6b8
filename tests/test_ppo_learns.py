"""PPO learns from a Collector's rollouts: examples/ppo_cartpole.py, a sixth of it and in full."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

EXAMPLE = CHECKOUT / "examples" / "ppo_cartpole.py"
SOLVED = 475.0  # of at most 500: what gymnasium registers as CartPole-v1's reward threshold


def mean_return_after_training(seed: int, folder: Path, *more: str) -> float:
    """The mean return of fresh episodes that the example prints at its end."""
    arguments = ["--seed", str(seed), "--out", str(folder / "out"), *more]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"mean return of 20 fresh greedy episodes: ([\d.]+)", run.stdout)
    assert found, run.stdout
    return float(found[1])


def test_ppo_learns_to_balance(tmp_path: Path) -> None:
    """An untrained network returns about 10, one that learned so long more than 400."""
    assert mean_return_after_training(0, tmp_path, "--steps", "16000") >= 200


@pytest.mark.proof
def test_ppo_balances_cartpole(tmp_path: Path) -> None:
    assert mean_return_after_training(0, tmp_path) >= SOLVED


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_ppo_balances_cartpole_from_other_seeds(seed: int, tmp_path: Path) -> None:
    assert mean_return_after_training(seed, tmp_path) >= SOLVED
