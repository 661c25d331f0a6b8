"""Agents learn a PettingZoo game together: examples/ppo_many_agents.py, in full."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")
pytest.importorskip("mpe2", reason="needs mpe2: pip install mpe2")

EXAMPLE = CHECKOUT / "examples" / "ppo_many_agents.py"


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_agents_that_share_a_network_learn_to_spread(seed: int, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--seed", str(seed), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1800,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"episodes: (-[\d.]+), of random actions (-[\d.]+)", run.stdout)
    assert found, run.stdout
    learned, random = map(float, found.groups())
    assert learned > random + 15
