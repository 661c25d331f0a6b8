"""Runs IRIS's own data set: `real_loaders` starts this file. Arrays are read and written."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    """All episodes, and batches drawn from either end of them."""
    random.seed(0)
    dataset = iris("dataset").EpisodesDataset()
    dataset.load_disk_checkpoint(folder)
    found: dict[str, np.ndarray] = {"seen": np.array(dataset.num_seen_episodes)}
    for number, episode in enumerate(dataset.episodes):
        found |= arrays_of(episode, f"{number}/")
    for name, from_start in (("start", True), ("end", False)):
        batch = dataset.sample_batch(200, 4, from_start)
        found |= {f"{name}/{key}": tensor.numpy() for key, tensor in batch.items()}
    found["chunks"] = np.array(sum(len(b["ends"]) for b in dataset.traverse(8, 4)))
    return found


def save(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Write episodes, the last one in two parts, as a run of IRIS would."""
    dataset = iris("dataset").EpisodesDataset()
    made = iris("episode").Episode
    count = int(given["count"])
    for number in range(count):
        names = ("observations", "actions", "rewards", "ends", "mask_padding")
        parts = [torch.from_numpy(given[f"{number}/{name}"]) for name in names]
        if number < count - 1:
            dataset.add_episode(made(*parts))
        else:
            dataset.add_episode(made(*(part[:2] for part in parts)))
            dataset.update_episode(number, made(*(part[2:] for part in parts)))
    folder.mkdir(parents=True)
    dataset.update_disk_checkpoint(folder)
    return {"written": np.array(count)}


if __name__ == "__main__":
    answer({"load": load, "save": save})
