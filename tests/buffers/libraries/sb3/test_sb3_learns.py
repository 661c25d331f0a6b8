"""PPO and DQN of Stable-Baselines3 and a PPO like CleanRL's learn from Stepwell's data.

The examples are run in full: each trains, and prints the mean return of 20 new episodes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

SOLVED = 475.0  # of at most 500: what gymnasium registers as CartPole-v1's reward threshold


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("example", ["feed_sb3_ppo", "feed_sb3_dqn", "feed_cleanrl_ppo"])
def test_cartpole_is_balanced(example: str, seed: int, tmp_path: Path) -> None:
    script = CHECKOUT / "examples" / f"{example}.py"
    arguments = ["--seed", str(seed), "--out", str(tmp_path / "out")]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=1_800,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"mean return of 20 fresh (?:greedy )?episodes: ([\d.]+)", run.stdout)
    assert found, run.stdout
    assert float(found[1]) >= SOLVED
