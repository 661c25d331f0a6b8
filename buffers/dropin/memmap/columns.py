"""Stored steps as if they lay in one array ``[max_episodes, max_timesteps, ...]``, to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.declared import DeclaredField
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows

__all__ = ["StoredColumn", "columns_of", "lengths_by_slot", "metas_by_slot"]


class StoredColumn:
    """A field of steps, read where it is indexed; what no step is has the field's default.

    Args:
        folder: Where the episodes are.
        field: The field.
    """

    def __init__(self, folder: EpisodeFolder, field: DeclaredField) -> None:
        self._folder = folder
        self._field = field
        config = folder.config
        self.shape = (config.max_episodes, config.max_timesteps, *field.shape)
        self.dtype = field.dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """What numpy would give of such an array, in new memory; the first index are slots."""
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if first is None or first is Ellipsis:
            return np.asarray(self)[key]
        wanted = np.arange(self.shape[0])[first]
        if wanted.ndim == 0:
            return self._read(wanted[None])[0][rest]
        return self._read(wanted)[(slice(None), *rest) if rest else ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # it is one
        whole = self._read(np.arange(self.shape[0]))
        return whole if dtype is None else whole.astype(dtype)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError(
            f"data[{self._field.name!r}] can only be read, got an assignment to it: change stored "
            f"steps with update()"
        )

    def _read(self, slots: np.ndarray) -> np.ndarray:
        out = self._field.filled((len(slots), self.shape[1]))
        rows = EpisodeRows(self._folder)
        is_there = slots < len(rows.numbers)
        if is_there.any():
            numbers, lengths = rows.numbers[slots[is_there]], rows.lengths[slots[is_there]]
            found = rows.wholes([self._field.name], numbers)[self._field.name]
            is_step = np.arange(self.shape[1]) < lengths[:, None]
            part = out[is_there]
            part[is_step] = found[is_step[:, : found.shape[1]]]
            out[is_there] = part
        return out


def columns_of(folder: EpisodeFolder) -> dict[str, StoredColumn]:
    """All fields of steps, by name."""
    return {name: StoredColumn(folder, field) for name, field in folder.config.fields.items()}


def lengths_by_slot(folder: EpisodeFolder) -> np.ndarray:
    """Steps of the episode in each slot, [max_episodes] int32; 0 where there is none."""
    lengths = np.zeros(folder.config.max_episodes, np.int32)
    stored = EpisodeRows(folder).lengths
    lengths[: len(stored)] = stored
    return lengths


def metas_by_slot(folder: EpisodeFolder) -> dict[str, np.ndarray]:
    """All fields of episodes, ``[max_episodes, ...]`` by name."""
    rows = EpisodeRows(folder)
    found = {"episode_lens": lengths_by_slot(folder)}
    for name, field in folder.config.meta_fields.items():
        found[name] = field.filled((folder.config.max_episodes,))
        found[name][: len(rows.numbers)] = rows.metas([name], rows.numbers)[name]
    return found
