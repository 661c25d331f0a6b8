"""Cost of `import stepwell` and its main names as a ratio to `import gymnasium`: at most 1.3.

`import stepwell` alone loads next to nothing; the names are what nearly every program takes.

Each import runs in an interpreter of its own, the two in turn, so that a change of the machine's
speed meets both alike; printed are the medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version

LIMIT = 1.3
CODE = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
GYMNASIUM = "import gymnasium"
STEPWELL = "from stepwell import Collector, RandomPolicy, SequenceReplayBuffer, make_vec"


def import_seconds(statement: str) -> float:
    """Seconds that a new interpreter takes for the import."""
    command = [sys.executable, "-c", CODE.format(statement)]
    # Compiled modules are kept, as they are for what pip installed.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(run.stdout)


def measure(statements: tuple[str, ...], rounds: int) -> list[tuple[float, ...]]:
    """Seconds of each import, a row for each round; the first round only warms the disk."""
    measured = [tuple(import_seconds(one) for one in statements) for _ in range(rounds + 1)]
    return measured[1:]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="imports of each (default: 21)")
    rounds = measure((GYMNASIUM, STEPWELL), parser.parse_args().rounds)
    gymnasium, stepwell = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(ours / theirs for theirs, ours in rounds)
    versions = f"Python {platform.python_version()}, gymnasium {version('gymnasium')}"
    print(f"{versions}, medians of {len(rounds)} rounds")
    print(f"import gymnasium  {gymnasium * 1000:7.1f} ms")
    print(f"import stepwell   {stepwell * 1000:7.1f} ms")
    print(f"ratio             {ratio:7.2f}     (limit {LIMIT})")


if __name__ == "__main__":
    main()
