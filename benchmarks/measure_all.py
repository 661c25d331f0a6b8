"""Measures everything that docs/performance.md shows, and writes its tables and charts.

    python benchmarks/measure_all.py                   # 25 minutes on two quiet cores
    python benchmarks/measure_all.py --only replay collect
    python benchmarks/measure_all.py --quick           # small data: shows only that it works

Each script writes its figures into a file of benchmarks/results, from which write_performance.py
writes the pages. Commit first: the files name the commit, and "+" where the checkout differs. The
sizes are those that fit into the time; each script measures more with its own defaults. Needs
``pip install -e '.[dev,nes,retro,bridges,dreamer,browser,peers,ray]'``, Chromium, and
``pip install --no-deps torchwm==0.4.2``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results"


class Run(NamedTuple):
    """A script with its options.

    Args:
        words: Script and options.
        quick: Options that come on top with ``--quick``.
        is_pure: Without the compiled core.
    """

    words: str
    quick: str
    is_pure: bool = False


_REPLAY = "replay.py --rounds 9 --rows 25000 --steps 10000 --capacity 10000"
_TINY = "--rounds 1 --rows 3000 --steps 800 --games Pong --most 200000 --capacity 1000"
RUNS: dict[str, Run] = {
    "replay": Run(_REPLAY, _TINY),
    "replay-numpy": Run(_REPLAY, _TINY, is_pure=True),
    "patches": Run(
        "patches.py --rounds 9 --games Pong Breakout Seaquest Qbert MsPacman SpaceInvaders Freeway "
        "MontezumaRevenge Riverraid Enduro BeamRider Tutankham",
        "--rounds 1 --games Pong --steps 800",
    ),
    "disk": Run(
        "disk.py --only flush open merge --rounds 5 --steps 300000",
        "--only open merge --rounds 1 --steps 40000",
    ),
    "collect": Run("collect.py --rounds 5 --steps 2000", "--rounds 1 --steps 400 --games"),
    "nes": Run("nes.py --rounds 5 --seconds 0.5", "--rounds 1 --seconds 0.1 --backend cynes"),
    "rollout": Run(
        "rollout.py --rounds 7 --num-envs 8 --backends native",
        "--rounds 1 --num-envs 2 --only loop learners",
    ),
    "world-models": Run("dropin_world_models.py --rounds 7 --size 20000", "--rounds 1 --size 3000"),
    "frame-history": Run(
        "dropin_frame_history.py --rounds 7 --size 15000 --batches 30",
        "--rounds 1 --size 3000 --batches 5",
    ),
    "fishyrl": Run("dropin_fishyrl.py --rounds 7", "--rounds 1 --envs 4 --rows 4000"),
    "memmap": Run("dropin_memmap.py --rounds 2", "--rounds 1 --data vectors --only store"),
    "sb3": Run(
        "dropin_sb3.py --rounds 5 --learn 50",
        "--rounds 1 --envs 1 --vectors 2000 --images 300 --learn 10 --no-memory",
    ),
    "hindsight": Run("dropin_her.py --rounds 7 --batches 30", "--rounds 1 --size 3000 --batches 5"),
    "bridges": Run("bridges.py --rounds 5 --steps 10000", "--rounds 1 --only learn"),
    "own-loop": Run("own_loop.py --rounds 25", "--rounds 1 --case CartPole"),
    "import": Run("import_time.py --rounds 15", "--rounds 1"),
    "distributed": Run(
        "distributed.py --rounds 5 --steps 4000 --pieces 200 --ray",
        "--rounds 1 --only engine --pieces 12",
    ),
    "provenance": Run(
        "provenance.py --rounds 3 --steps 20000 --only Pong 'Pong, native' Seaquest Montezuma "
        "CartPole",
        "--only CartPole --rounds 1 --steps 400",
    ),
    "viewing": Run(
        "viewing.py --rounds 3 --rows 300000 --episodes 30000",
        "--rounds 1 --rows 3000 --episodes 300",
    ),
}
"""By name of the file."""


def command(name: str, folder: Path, *, quick: bool) -> list[str]:
    """The command of a run; options that come twice count as they come last."""
    script, *words = shlex.split(RUNS[name].words)
    more = shlex.split(RUNS[name].quick) if quick else []
    return [
        sys.executable,
        str(HERE / script),
        *words,
        *more,
        "--json",
        str(folder / f"{name}.json"),
    ]


def main() -> None:
    """Run the scripts one after the other, and write the pages."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--quick", action="store_true", help="small data, one round")
    parser.add_argument(
        "--folder", type=Path, help="write the figures there, and no page; default: results"
    )
    options = parser.parse_args()
    if options.quick and options.folder is None:
        parser.error("--quick: expected --folder, since its figures belong on no page")
    folder, failed = options.folder or RESULTS, list[str]()
    for name in options.only:
        began = time.monotonic()
        env = {**os.environ, "STEPWELL_PURE": "1"} if RUNS[name].is_pure else dict(os.environ)
        words = command(name, folder, quick=options.quick)
        done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL)
        if done.returncode:
            failed.append(name)
        result = "failed" if done.returncode else "measured"
        print(f"{name}: {result} in {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if options.folder is None:
        subprocess.run([sys.executable, HERE / "write_performance.py"], check=True)


if __name__ == "__main__":
    main()
