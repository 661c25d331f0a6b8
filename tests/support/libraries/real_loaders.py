"""The programs that read a data set in the end: their own code, run in an interpreter of its own.

Their sources are not part of this project. ``STEPWELL_LOADERS`` names a folder that has them:
``iris`` and ``diamond`` (github.com/eloialonso) and ``dreamerv3`` (github.com/danijar).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["Doing", "answer", "run_real"]

HERE = Path(__file__).parent
Doing = Callable[[Path, dict[str, np.ndarray]], dict[str, np.ndarray]]


def run_real(
    project: str, script: str, doing: str, folder: Path, tmp: Path, **given: Any
) -> dict[str, np.ndarray]:
    """Read a folder with the other project's own code.

    Args:
        project: Name of the source tree.
        script: File in this folder that runs it: arguments are what to do, the folder, a file of
            arrays to read, and one to write.
        doing: What to do.
        folder: The data set.
        tmp: A folder for files.
        given: Arrays for the script.
    """
    root = os.environ.get("STEPWELL_LOADERS")
    sources = Path(root or ".") / project
    if root is None or not sources.is_dir():
        pytest.skip(f"needs the sources of {project} in a folder that STEPWELL_LOADERS names")
    np.savez(tmp / "given.npz", **given)
    target = tmp / "results.npz"
    target.unlink(missing_ok=True)
    arguments = [doing, str(folder), str(tmp / "given.npz"), str(target)]
    ran = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, "REAL_SOURCES": str(sources), "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    with np.load(target, allow_pickle=False) as results:
        return {name: results[name] for name in results.files}


def answer(doings: Mapping[str, Doing]) -> None:
    """Run a script that reads arrays from a file and writes arrays to a file."""
    doing, folder, source, target = sys.argv[1:]
    with np.load(source, allow_pickle=False) as arrays:
        given = {name: arrays[name] for name in arrays.files}
    found: dict[str, Any] = doings[doing](Path(folder), given)
    np.savez(target, **found)
