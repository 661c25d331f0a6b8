"""All costs of a learner in one run: sequences, transitions, priorities and writing.

    python benchmarks/replay.py --rounds 5            # half an hour, 9 GiB of RAM
    pip install 'stepwell[peers]'                     # to compare the other libraries

Each part runs in a process of its own, so that none inherits the memory of the one before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("sampling.py", "transitions.py", "writing.py")


def main() -> None:
    """Print one table for each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for part in PARTS:
        script = Path(__file__).with_name(part)
        command = [sys.executable, str(script), "--rounds", str(options.rounds)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
