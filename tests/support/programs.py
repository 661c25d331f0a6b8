"""Run Python in a process of its own, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_python"]


def run_python(
    *words: str | Path,
    code: int | None = 0,
    warnings: str = "error",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run it with those words, and variables more than here; None allows any exit code."""
    run = subprocess.run(
        [sys.executable, "-W", warnings, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        timeout=timeout,
    )
    assert code in (None, run.returncode), run.stdout[-4_000:] + run.stderr[-4_000:]
    return run
