"""A training that is killed at random moments ends as one that was never stopped, bit for bit."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "support" / "killed_training.py"
STEPS = 900


def run_killed(kind: str, folder: Path, after: float | None) -> str | None:
    """Its last line; None where it was killed after so many seconds."""
    command = [sys.executable, str(SCRIPT), kind, str(folder), str(STEPS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None
    assert not process.returncode, errors
    return output.strip()


def kill_until(kind: str, tmp_path: Path, kills: int, seed: int) -> None:
    began = time.monotonic()
    expected = run_killed(kind, tmp_path / "never", None)
    seconds = time.monotonic() - began
    rng, killed, number = random.Random(seed), 0, 0
    while killed < kills:
        number += 1
        got = None
        while got is None:
            # Now and then it is left alone, so that it ends however slow the machine is now.
            after = (
                rng.uniform(0.2, 1.1) * seconds if killed < kills and rng.random() < 0.9 else None
            )
            got = run_killed(kind, tmp_path / str(number), after)
            killed += got is None
        assert got == expected, f"{killed} kills, run {number}"
    print(f"{kind}: {killed} kills in {number} trainings, all ended alike")


@pytest.mark.parametrize(("kind", "kills"), [("cartpole", 3), ("local-cartpole", 2)])
def test_a_killed_training_ends_as_one_that_was_never_stopped(
    kind: str, kills: int, tmp_path: Path
) -> None:
    kill_until(kind, tmp_path, kills, 0)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["workers", "pong", "local-pong"])
def test_killed_trainings_of_other_envs_end_alike(kind: str, tmp_path: Path) -> None:
    kill_until(kind, tmp_path, 5, 1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["cartpole", "local-cartpole"])
def test_two_hundred_kills_change_nothing(kind: str, tmp_path: Path) -> None:
    kill_until(kind, tmp_path, 200, 2)
