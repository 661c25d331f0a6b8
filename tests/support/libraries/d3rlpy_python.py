"""An interpreter that has d3rlpy, which pins another gymnasium than Stepwell needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

__all__ = ["D3RLPY_PYTHON", "INSTALLS", "python_with_d3rlpy", "run"]

D3RLPY_PYTHON = "STEPWELL_D3RLPY_PYTHON"
# torch first: d3rlpy requires it without a version, and pip would install the newest.
INSTALLS = (["torch==2.13.0"], ["d3rlpy==2.8.1"])


def python_with_d3rlpy(config: pytest.Config, factory: pytest.TempPathFactory) -> str:
    """The interpreter that the environment variable names, or in the full run a new one.

    Building one takes some minutes; it is built once, for all tests. Where there is none the test
    is skipped.
    """
    given = os.environ.get(D3RLPY_PYTHON)
    if given is not None:
        return given
    if not config.getoption("--full"):
        pytest.skip(f"needs an interpreter with d3rlpy: set {D3RLPY_PYTHON}, or run with --full")
    folder = factory.getbasetemp() / "d3rlpy-environment"
    python = str(folder / "bin" / "python")
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in INSTALLS:
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def run(python: str, *arguments: str, timeout: float = 600) -> str:
    """Run a script with that interpreter, on one core and isolated, and return what it prints."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
