"""Reads a folder as DIAMOND's own data set does: `real_loaders` starts this file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.libraries.real_loaders import answer


def diamond() -> Any:
    """DIAMOND's package ``data``; what only its training needs may be missing."""
    sys.path.insert(0, os.path.join(os.environ["REAL_SOURCES"], "src"))
    for name, part in (("wandb", ""), ("omegaconf", "OmegaConf")):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
            setattr(sys.modules[name], part or "init", None)
    return importlib.import_module("data")


def as_bytes(pictures: torch.Tensor) -> np.ndarray:
    array: np.ndarray = ((pictures.double() + 1) * 127.5).round().to(torch.uint8).numpy()
    return array


def arrays_of(one: Any, prefix: str) -> dict[str, np.ndarray]:
    """An episode, with bytes for pictures."""
    found = {name: getattr(one, name).numpy() for name in ("act", "rew", "end", "trunc")}
    found["obs"] = as_bytes(one.obs)
    if "final_observation" in one.info:
        found["final"] = as_bytes(one.info["final_observation"])
    return {f"{prefix}{name}": array for name, array in found.items()}


def load(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All episodes, and counts; then one more is added."""
    data = diamond()
    dataset = data.Dataset(folder)
    dataset.load_from_default_path()
    found: dict[str, np.ndarray] = {
        "episodes": np.array(dataset.num_episodes),
        "steps": np.array(len(dataset)),
    }
    for number in range(dataset.num_episodes):
        found |= arrays_of(dataset.load_episode(number), f"{number}/")
    dataset.add_episode(dataset.load_episode(0))
    found["lengths"] = np.asarray(dataset.lengths)
    return found


if __name__ == "__main__":
    answer({"load": load})
