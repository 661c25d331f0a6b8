"""Exports to a disk that gets full: each format, at many places. Run as a program of its own.

Argument: a folder. Prints a line for each export: format, limit of a file's length, what came of it
as a user would read it, and what is left. That the process ends in peace is part of it: HDF5 used
to end it by a signal.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes
from stepwell.collectors.cli.errors import sentence_of
from support.exchanged_stores import noisy_store

FORMATS = {
    "npz": {},
    "d3rlpy": {},
    "minari": {},
    "minari arrow": {"data_format": "arrow"},
    "dreamerv3": {},
    "parquet": {},
    "lerobot": {},
    "rlds": {},
}


def tried(replay: SequenceReplayBuffer, name: str, folder: Path, limit: int) -> str:
    """Export with a limit on the size of a file, and return the message that a user would read."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    out = folder / "out-v0"
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        export_episodes(replay, name.split()[0], out, options=FORMATS[name])
    except Exception as error:
        return sentence_of(error) or f"TRACEBACK {error!r}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return "done"


def main(folder: Path, limits: list[int], formats: list[str]) -> None:
    """All formats, with all limits."""
    replay = noisy_store()
    for name in formats:
        for limit in limits:
            here = folder / f"{name}-{limit}".replace(" ", "-")
            here.mkdir()
            said = tried(replay, name, here, limit)
            left = sorted(path.name for path in here.iterdir())
            print(name, limit, said, left, sep="|", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2].split(",")], sys.argv[3:])
