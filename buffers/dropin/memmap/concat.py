"""Several buffers read as one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np

from stepwell.buffers.dropin.memmap.datasets import Items
from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer
from stepwell.buffers.sampling.tensors import load_torch

__all__ = ["ConcatDataset", "ConcatReplayBuffer"]

Names = Sequence[str] | None
Filter = Mapping[str, object] | None


class ConcatReplayBuffer:
    """The concatenated buffers of several folders, for reading only.

    They may be empty, differ in size, and be written by other processes (see `refresh`).

    Args:
        folders: Folders of buffers with equal fields.

    Raises:
        ValueError: There is no folder, one holds no buffer, or their fields differ.

    Example:
        >>> for name in ("replay_a", "replay_b"):
        ...     with ReplayBuffer(name, 10, 50, fields={"state": "float"}) as buffer:
        ...         buffer.store_episode(state=np.arange(5.0))
        >>> with ConcatReplayBuffer(["replay_a", "replay_b"]) as both:
        ...     len(both), both.max_episodes
        (2, 20)
    """

    read_only = True

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        if isinstance(folders, str | os.PathLike) or not len(folders):
            raise ValueError(
                f"folders: expected a list of at least one folder, got {folders!r}; name the "
                f"folders of the buffers"
            )
        with contextlib.ExitStack() as opened:
            self.buffers = [
                opened.enter_context(ReplayBuffer.from_folder(os.fspath(folder), read_only=True))
                for folder in folders
            ]
            for buffer in self.buffers[1:]:
                _check_same(self.buffers[0], buffer)
            self._opened = opened.pop_all()
        first = self.buffers[0]
        self.fieldnames, self.meta_fieldnames = first.fieldnames, first.meta_fieldnames
        self.shapes, self.meta_shapes = first.shapes, first.meta_shapes

    @property
    def num_episodes(self) -> int:
        """Episodes stored."""
        return sum(buffer.num_episodes for buffer in self.buffers)

    @property
    def max_episodes(self) -> int:
        """Number of slots."""
        return sum(buffer.max_episodes for buffer in self.buffers)

    @property
    def max_timesteps(self) -> int:
        """Steps of the longest possible episode of any buffer."""
        return max(buffer.max_timesteps for buffer in self.buffers)

    def __len__(self) -> int:
        return sum(map(len, self.buffers))

    def dataset(
        self,
        n_steps: int | None = None,
        fields: Names = None,
        current_fields: Names = None,
        next_fields: Names = None,
        sequence_fields: Names = None,
        timestep_level: bool = False,
        filter_meta: Filter = None,
        filter_fields: Filter = None,
        fieldname_map: Mapping[str, str] | None = None,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
        return_indices: bool = False,
        include_metadata: bool = True,
    ) -> ConcatDataset:
        """A dataset of the stored episodes; for the arguments see `ReplayBuffer.dataset`.

        The slots of ``return_indices`` are those in each buffer.

        Raises:
            ValueError: The buffers are empty, or arguments contradict each other.
            ImportError: PyTorch is not installed.
        """
        if not len(self):
            folders = ", ".join(str(buffer.folder) for buffer in self.buffers)
            raise ValueError(
                f"the replay buffer is empty: expected at least 1 episode in {folders}, got 0; "
                f"store one first"
            )
        return ConcatDataset(
            [
                buffer.dataset(
                    n_steps,
                    fields,
                    current_fields,
                    next_fields,
                    sequence_fields,
                    timestep_level,
                    filter_meta,
                    filter_fields,
                    fieldname_map,
                    slice_by_episode_len,
                    return_episode_lens,
                    return_indices,
                    include_metadata,
                )
                for buffer in self.buffers
                if len(buffer)
            ]
        )

    # Loads what `dataset` above returns. Any, as a type checker expects a ReplayBuffer as self.
    dataloader: Any = ReplayBuffer.dataloader

    def get_all_data(
        self, fields: Names = None, meta_fields: Names = None, device: object = None
    ) -> dict[str, Any]:
        """All episodes as tensors ``[episodes, longest, ...]`` and ``[episodes, ...]`` by name.

        Args:
            fields: Fields of steps; None for all, or for none if ``meta_fields`` is given.
            meta_fields: Fields of episodes; None for all, or for none if ``fields`` is given.
            device: Device of the tensors.
        """
        torch = load_torch("get_all_data")
        parts = [buffer.get_all_data(fields, meta_fields, device) for buffer in self.buffers]
        parts = [part for part in parts if part]
        fields_of_steps = self.buffers[0].stored.config.fields
        joined: dict[str, Any] = {}
        for name in parts[0] if parts else ():
            values = [part[name] for part in parts]
            joined[name] = (
                _concatenate(torch, values, fields_of_steps[name].default)
                if name in fields_of_steps
                else torch.cat(values)
            )
        return joined

    def refresh(self) -> bool:
        """Read what other processes have stored since.

        Returns:
            Whether there was anything new.
        """
        return any([buffer.refresh() for buffer in self.buffers])

    def flush(self) -> None:
        """Do nothing: the buffers are read only."""

    def close(self) -> None:
        """Release the files; closing twice is harmless."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        """Raise: the buffers are read only."""
        raise NotImplementedError(
            "a ConcatReplayBuffer is read-only, expected a ReplayBuffer: open one of the folders"
        )

    one_episode = batched_episode = store = store_batch = store_meta_batch = _refuse
    store_episode = store_episodes = advance_episode = update = clear = reset_ = _refuse
    store_datapoint = store_meta_datapoint = _refuse
    store_batch_datapoint = store_batch_meta_datapoint = _refuse


class ConcatDataset:
    """Concatenated datasets.

    Args:
        datasets: At least one.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = np.cumsum([len(dataset) for dataset in datasets]).tolist()

    def __len__(self) -> int:
        return int(self.cumulative_sizes[-1])

    def __getitem__(self, index: int) -> Any:
        owners, places = self._locate([index])
        return self.datasets[owners[0]][int(places[0])]

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Several items, read at once from each dataset.

        Args:
            indices: Positions in the dataset; -1 is the last one.
        """
        owners, places = self._locate(indices)
        order = np.argsort(owners, kind="stable")
        parts = [
            self.datasets[owner].__getitems__(places[owners == owner].tolist())
            for owner in np.unique(owners).tolist()
        ]
        return parts[0] if len(parts) == 1 else _merged(parts, np.argsort(order))

    def _locate(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The dataset of each index, and the position in it."""
        count = len(self)
        wanted = np.asarray([int(index) for index in indices], np.int64)
        if len(wanted) and not (-count <= int(wanted.min()) and int(wanted.max()) < count):
            raise IndexError(f"expected indices from 0 to {count - 1}, got {list(indices)}")
        wanted = np.where(wanted < 0, wanted + count, wanted)
        owners = np.searchsorted(self.cumulative_sizes, wanted, side="right")
        return owners, wanted - np.asarray([0, *self.cumulative_sizes])[owners]


def _merged(parts: Sequence[Items], order: np.ndarray) -> Items:
    """Join items of several datasets, and reorder them."""
    torch = load_torch("a dataset")
    places, padded = torch.from_numpy(order), parts[0].padded
    collated: dict[str, Any] = {}
    for name in parts[0].collated:
        values = [part.collated[name] for part in parts]
        joined = _concatenate(torch, values, 0) if name in padded else torch.cat(values)
        collated[name] = joined[places]
    if parts[0].lengths is None:
        return Items(collated, None, padded)
    lengths = np.concatenate([part.lengths for part in parts if part.lengths is not None])
    return Items(collated, lengths[order].tolist(), padded)


def _concatenate(torch: Any, values: Sequence[Any], filler: float) -> Any:
    """Concatenate values [B, T, ...] of different T, padded to the longest T."""
    longest = max(value.shape[1] for value in values)
    if all(value.shape[1] == longest for value in values):
        return torch.cat(values)
    rows = sum(len(value) for value in values)
    joined = values[0].new_empty((rows, longest, *values[0].shape[2:]))
    for part, value in zip(joined.split([len(value) for value in values]), values, strict=True):
        part[:, : value.shape[1]] = value
        part[:, value.shape[1] :] = filler
    return joined


def _check_same(first: ReplayBuffer, other: ReplayBuffer) -> None:
    """Raise ValueError for buffers whose values do not fit in one batch."""
    for what in ("fields", "meta_fields"):
        mine, theirs = (
            {field.name: (field.type, field.shape) for field in fields.values()}
            for fields in (
                getattr(first.stored.config, what),
                getattr(other.stored.config, what),
            )
        )
        if mine != theirs:
            name = min(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
            raise ValueError(
                f"{other.folder}: expected the {what} of {first.folder}, but {name!r} is "
                f"{theirs.get(name, 'missing')} instead of {mine.get(name, 'missing')}; read "
                f"buffers of the same fields together"
            )
