"""Runs DreamerV3's own replay: `real_loaders` starts this file. Arrays are read and written."""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from support.libraries.real_loaders import answer


def dreamer() -> Any:
    """DreamerV3's module ``embodied.core.replay``, without the packages around it.

    They import JAX, envs and more; the replay itself needs ``elements`` and numpy.
    """
    root = Path(os.environ["REAL_SOURCES"])
    for name in ("embodied", "embodied.core"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("embodied.core.replay")


def load(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All items in their order, and batches drawn as for training."""
    length = int(given["length"])
    replay = dreamer().Replay(length=length, directory=str(folder), seed=0)
    replay.load()
    found: dict[str, np.ndarray] = {"items": np.array(len(replay))}
    items = [replay._getseq(*replay.items[number]) for number in replay.items]
    for key in items[0] if items else ():
        found[f"item/{key}"] = np.stack([item[key] for item in items])
    if items:
        found |= {f"batch/{key}": array for key, array in replay.sample(100).items()}
    return found


def save(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add rows of several workers, and save twice, as a run with checkpoints would."""
    replay = dreamer().Replay(
        length=4, directory=str(folder), chunksize=int(given["chunksize"]), save_wait=True
    )
    keys = [key for key in given if key not in ("worker", "chunksize")]
    rows = len(given["worker"])
    for row in range(rows):
        replay.add({key: given[key][row] for key in keys}, int(given["worker"][row]))
        if row == rows // 2:
            replay.save()
    replay.save()
    return {"rows": np.array(rows)}


if __name__ == "__main__":
    answer({"load": load, "save": save})
