"""Writes folders as memmap-replay-buffer does, without it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

DTYPES = {"int": np.int32, "float": np.float32, "bool": np.bool_, "uint8": np.uint8}
FIELDS: dict[str, Any] = {
    "state": ("uint8", (2, 3)),
    "action": ("int", 2, 7),
    "reward": "float",
    "done": ("bool", ()),
}
META: dict[str, Any] = {"task": "int", "goal": ("float", (2,), 0.5)}


class OriginalWriter:
    """A ring of slots in a folder, as the original writes it."""

    def __init__(
        self,
        folder: Path,  # the folder, which is created
        max_episodes: int = 4,
        max_timesteps: int = 6,
        fields: Mapping[str, Any] = FIELDS,
        meta_fields: Mapping[str, Any] = META,
        circular: bool = False,
        protocol: int | None = None,  # protocol of the pickle
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.slots, self.circular = max_episodes, circular
        config = {
            "max_episodes": max_episodes,
            "max_timesteps": max_timesteps,
            "fields": dict(fields),
            "meta_fields": dict(meta_fields),
            "circular": circular,
        }
        (folder / "metadata.pkl").write_bytes(pickle.dumps(config, protocol))
        self.data = {
            name: self._array(f"{name}.data.npy", info, (max_episodes, max_timesteps))
            for name, info in fields.items()
        }
        internal = {"episode_lens": "int", "_initted": "bool"}
        self.meta = {
            name: self._array(f"{name}.data.meta.npy", info, (max_episodes,))
            for name, info in {**meta_fields, **internal}.items()
        }
        self.state = {
            name: self._array(f"{name}.state.npy", "int", ())
            for name in ("num_episodes", "episode_index", "timestep_index")
        }

    def begin(self, steps: Mapping[str, np.ndarray], meta: Mapping[str, Any], slot: int) -> None:
        """Write the first steps of an episode into a slot."""
        count = len(next(iter(steps.values())))
        for name, values in steps.items():
            self.data[name][slot, :count] = values
        for name, value in meta.items():
            self.meta[name][slot] = value
        self.meta["_initted"][slot] = True
        self.meta["episode_lens"][slot] = count
        self.state["timestep_index"][()] = count

    def store(self, steps: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> int:
        """Write a whole episode; returns its slot."""
        slot = int(self.state["episode_index"])
        self.begin(steps, meta, slot)
        following = (slot + 1) % self.slots
        self.state["episode_index"][()] = following
        self.state["timestep_index"][()] = 0
        count = int(self.state["num_episodes"]) + 1
        self.state["num_episodes"][()] = min(count, self.slots)
        self.meta["_initted"][following] = False
        return slot

    def close(self) -> None:
        """All of it into the files."""
        arrays: list[Any] = [*self.data.values(), *self.meta.values(), *self.state.values()]
        for array in arrays:
            array.flush()

    def _array(self, file: str, info: Any, leading: tuple[int, ...]) -> np.ndarray:
        kind, shape, *_ = (info, ()) if isinstance(info, str) else info
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return open_memmap(self.folder / file, "w+", DTYPES[kind], (*leading, *sizes))


def tagged(number: int, steps: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Episode of a number: every value identifies the episode and the step."""
    time = np.arange(steps)
    state = np.zeros((steps, 2, 3), np.uint8)
    state[:, 0, 0], state[:, 0, 1] = number % 256, time
    state[:, 1] = (number * 31 + time[:, None] * 7 + np.arange(3)) % 256
    fields = {
        "state": state,
        "action": np.stack([np.full(steps, number), time], -1).astype(np.int32),
        "reward": (number + time / 64).astype(np.float32),
        "done": time == steps - 1,
    }
    return fields, {"task": number, "goal": np.array([number, steps], np.float32)}
