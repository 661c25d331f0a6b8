"""Reads a folder as IRIS's own data set does: `real_loaders` starts this file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from support.libraries.real_loaders import answer


def iris(module: str) -> Any:
    """A module of IRIS's; psutil, with which it watches its memory, may be missing."""
    sys.path.insert(0, os.path.join(os.environ["REAL_SOURCES"], "src"))
    if "psutil" not in sys.modules and importlib.util.find_spec("psutil") is None:
        sys.modules["psutil"] = types.ModuleType("psutil")
    return importlib.import_module(module)


def arrays_of(episode: Any, prefix: str) -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": tensor.numpy() for name, tensor in episode.__dict__.items()}


def load(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All episodes, and the number of segments in them."""
    dataset = iris("dataset").EpisodesDataset()
    dataset.load_disk_checkpoint(folder)
    found: dict[str, np.ndarray] = {"seen": np.array(dataset.num_seen_episodes)}
    for number, episode in enumerate(dataset.episodes):
        found |= arrays_of(episode, f"{number}/")
    found["chunks"] = np.array(sum(len(b["ends"]) for b in dataset.traverse(8, 4)))
    return found


if __name__ == "__main__":
    answer({"load": load})
