"""Cost of `import stepwell` and its main names as a ratio to `import gymnasium`: at most 1.3.

`import stepwell` alone loads next to nothing; the names are what nearly every program takes.

Each import runs in an interpreter of its own, the two in turn, so that a change of the machine's
speed meets both alike; printed are the medians.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import rounds

GYMNASIUM = "import gymnasium"
STEPWELL = "from stepwell import Collector, RandomPolicy, SequenceReplayBuffer, make_vec"


def importing(statement: str) -> Callable[[], float]:
    """An import in a new interpreter."""

    def run() -> float:
        # Compiled modules are kept, as they are for what pip installed.
        leave = "PYTHONDONTWRITEBYTECODE"
        env = {name: value for name, value in os.environ.items() if name != leave}
        subprocess.run([sys.executable, "-c", statement], check=True, env=env)
        return 1.0

    return run


def main() -> None:
    """Print one table."""
    options = rounds.options(__doc__, 21).parse_args()
    rows = rounds.compare(
        *("import", "the main names of stepwell"),
        candidates={what: importing(what) for what in (GYMNASIUM, STEPWELL)},
        limit=GYMNASIUM,
        count=options.rounds,
        goals={STEPWELL: 1 / 1.3},
    )
    rounds.report(rows, ["stepwell", "numpy", "gymnasium"], options.json)


if __name__ == "__main__":
    main()
