"""Runs DIAMOND's own data set: `real_loaders` starts this file. Arrays are read and written."""

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
    # Its sampler hands torch's constructor an argument that torch has not taken for long.
    torch.utils.data.Sampler.__init__ = lambda self, *_: None  # type: ignore[method-assign]
    return importlib.import_module("data")


def as_bytes(pictures: torch.Tensor) -> np.ndarray:
    return ((pictures.double() + 1) * 127.5).round().to(torch.uint8).numpy()


def arrays_of(one: Any, prefix: str) -> dict[str, np.ndarray]:
    """An episode, a segment or a batch, with bytes for pictures."""
    names = ("act", "rew", "end", "trunc", "mask_padding")
    found = {name: getattr(one, name).numpy() for name in names if hasattr(one, name)}
    found["obs"] = as_bytes(one.obs)
    if isinstance(one.info, dict) and "final_observation" in one.info:
        found["final"] = as_bytes(one.info["final_observation"])
    return {f"{prefix}{name}": array for name, array in found.items()}


def load(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All episodes, counts, and batches drawn by its own sampler; then one more is added."""
    np.random.seed(0)  # noqa: NPY002
    data = diamond()
    dataset = data.Dataset(folder)
    dataset.load_from_default_path()
    found: dict[str, np.ndarray] = {
        "episodes": np.array(dataset.num_episodes),
        "steps": np.array(len(dataset)),
        "counts_rew": np.array(dataset.counts_rew),
        "counts_end": np.array(dataset.counts_end),
    }
    for number in range(dataset.num_episodes):
        found |= arrays_of(dataset.load_episode(number), f"{number}/")
    for name, beyond in (("within", False), ("beyond", True)):
        weights = [0.25, 0.25, 0.5] if beyond else None
        sampler = data.BatchSampler(dataset, 0, 1, 200, 4, weights, beyond)
        batch = data.collate_segments_to_batch([dataset[one] for one in sampler.sample()])
        found |= arrays_of(batch, f"{name}/")
    chunks = data.DatasetTraverser(dataset, 8, 4)
    found["chunks"] = np.array([len(chunks), len(list(chunks))])
    dataset.add_episode(dataset.load_episode(0))
    found["starts"] = np.asarray(dataset.start_idx)
    found["lengths"] = np.asarray(dataset.lengths)
    return found


def save(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Write episodes as a run of DIAMOND would; then load them again, as it would go on."""
    data = diamond()
    dataset = data.Dataset(folder)
    for number in range(int(given["count"])):
        parts = {name: given[f"{number}/{name}"] for name in ("obs", "act", "rew", "end", "trunc")}
        tensors = {name: torch.from_numpy(array) for name, array in parts.items()}
        tensors["obs"] = tensors["obs"].div(255).mul(2).sub(1)
        final = given.get(f"{number}/final")
        info = {}
        if final is not None:
            info["final_observation"] = torch.from_numpy(final).div(255).mul(2).sub(1)
        dataset.add_episode(data.Episode(**tensors, info=info))
    dataset.save_to_default_path()
    try:
        data.Dataset(folder).load_from_default_path()
    except Exception as error:
        return {"reloads": np.array(type(error).__name__)}
    return {"reloads": np.array("yes")}


if __name__ == "__main__":
    answer({"load": load, "save": save})
