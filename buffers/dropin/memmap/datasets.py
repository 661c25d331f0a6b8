"""Datasets and data loaders for PyTorch, which read stored episodes a batch at a time."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder, SlotReader
from stepwell.buffers.sampling.tensors import load_torch
from stepwell.buffers.whole_numbers import whole_number

__all__ = [
    "BatchFinish",
    "EpisodeDataset",
    "Items",
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
    "make_loader",
    "to_device",
]

Values = dict[str, np.ndarray]


class FolderHolder(Protocol):
    """A buffer, as far as a dataset needs it."""

    @property
    def stored(self) -> EpisodeFolder:
        """The folder of its episodes."""
        ...


Source: TypeAlias = FolderHolder | str | Path


class Items(Sequence[dict[str, Any]]):
    """The items of a batch, as a sequence of items and as one collated batch.

    Args:
        collated: Tensors ``[B, ...]`` by name, zero padded in time.
        lengths: Steps of each item in the padded tensors; None if nothing is padded.
        padded: Names of the padded tensors.
    """

    def __init__(
        self, collated: Mapping[str, Any], lengths: Sequence[int] | None, padded: frozenset[str]
    ) -> None:
        self.collated = dict(collated)
        self.lengths = lengths
        self.padded = padded

    def __len__(self) -> int:
        return len(next(iter(self.collated.values())))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        item = {name: values[index] for name, values in self.collated.items()}
        if self.lengths is None:
            return item
        stop = self.lengths[index]
        return {name: v[:stop] if name in self.padded else v for name, v in item.items()}


class EpisodeDataset(ABC):
    """Base of all datasets: the episodes that were stored when it was made.

    Episodes stored later are not in it; make another one. An episode that was overwritten since is
    refused; changes by `update` are visible. A worker process opens the folder for itself.
    """

    def __init__(
        self,
        replay_buffer: Source,
        fieldname_map: Mapping[str, str] | None,
        include_metadata: bool,
        filter_meta: Mapping[str, object] | None,
        return_indices: bool,
        *,
        min_episode_len: int = 1,
    ) -> None:
        self._torch: Any = load_torch("a dataset")
        self.replay_buffer: Any = replay_buffer
        folder = (
            EpisodeFolder.read(Path(replay_buffer), None)
            if isinstance(replay_buffer, str | Path)
            else replay_buffer.stored
        )
        self._path = folder.path
        self._process = os.getpid()
        self._rows = SlotReader(folder)
        self._config = folder.config
        self.return_indices = return_indices
        self.fieldname_map = dict(fieldname_map or {})
        self._metas = tuple(self._config.meta_fields) if include_metadata else ()
        self._places = self._filtered(filter_meta, min_episode_len)

    @property
    def indices(self) -> Any:
        """Slots of the episodes, a tensor [E] int64."""
        return self._torch.from_numpy(self._rows.slots[self._places])

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Several items, read at once; a DataLoader reads its batches in this way.

        Args:
            indices: Positions in the dataset; -1 is the last one.
        """
        places = np.asarray([int(index) for index in indices], np.int64)
        count = len(self)
        if len(places) and not (-count <= int(places.min()) and int(places.max()) < count):
            raise IndexError(f"expected indices from 0 to {count - 1}, got {list(indices)}")
        places = np.where(places < 0, places + count, places)
        values = self._read(places)
        collated = {self._name(name): self._tensor(array) for name, array in values.items()}
        return Items(collated, self._lengths_of(places), self.padded)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the folder for itself on the first read.
        left_out = {"_torch": None, "replay_buffer": self._path, "_process": 0}
        return {**self.__dict__, **left_out, "_rows": self._rows.detached()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._torch = load_torch("a dataset")

    @property
    def padded(self) -> frozenset[str]:
        """Output names of the fields that are padded in time."""
        return frozenset()

    @abstractmethod
    def _read(self, places: np.ndarray) -> Values:
        """Arrays [B, ...] of the items at some positions, by their names before `fieldname_map`."""

    def _lengths_of(self, places: np.ndarray) -> Sequence[int] | None:
        """Steps of each item in the padded tensors; None if nothing is padded."""
        del places
        return None

    @property
    def rows(self) -> SlotReader:
        """The reader of this process."""
        if self._process != os.getpid():
            # Kept alive: releasing it here would close the parent process's folder.
            self._inherited = self._rows
            self._rows = self._rows.through(EpisodeFolder.read(self._path, None))
            self._process = os.getpid()
        return self._rows

    def _name(self, name: str) -> str:
        return self.fieldname_map.get(name, name)

    def _tensor(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array))

    def _known(
        self, what: str, names: Sequence[str] | None, default: Sequence[str]
    ) -> tuple[str, ...]:
        """Check names of fields of steps."""
        if names is None:
            return tuple(default)
        if isinstance(names, str):
            raise ValueError(f"{what}: expected a tuple of names, got {names!r}: put it in one")
        for name in names:
            if name not in self._config.fields:
                raise ValueError(
                    f"{what} names {name!r}, expected some of: {', '.join(self._config.fields)}"
                )
        return tuple(names)

    def _filtered(self, filters: Mapping[str, object] | None, min_episode_len: int) -> np.ndarray:
        """Positions [E] of the episodes that pass the filter and are long enough."""
        rows = self._rows
        is_wanted = rows.lengths >= min_episode_len
        for name, value in (filters or {}).items():
            if name == "episode_lens":
                is_wanted &= rows.lengths == value
                continue
            field = self._config.meta_fields.get(name)
            if field is None:
                known = ", ".join(["episode_lens", *self._config.meta_fields])
                raise ValueError(f"filter_meta names {name!r}, expected some of: {known}")
            if field.shape != ():
                raise ValueError(
                    f"filter_meta: expected fields of one number, got {name!r} of shape "
                    f"{field.shape}"
                )
            is_wanted &= _is_equal(rows.metas([name], rows.numbers)[name], value)
        return np.flatnonzero(is_wanted)

    def _first_steps(self, horizon: int, filters: Mapping[str, object] | None) -> _StepIndex:
        """Index of the steps that are followed by ``horizon - 1`` others and pass the filter."""
        index = _StepIndex(self._rows.lengths[self._places], horizon)
        is_wanted: np.ndarray | None = None
        for name, value in (filters or {}).items():
            self._known("filter_fields", (name,), ())
            shape = self._config.fields[name].shape
            if shape != ():
                raise ValueError(
                    f"filter_fields only supports scalar fields: expected shape (), got {shape} of "
                    f"{name!r}"
                )
            is_equal = _is_equal(self._rows.all_steps(name, self._places), value)
            is_wanted = is_equal if is_wanted is None else is_wanted & is_equal
        return index if is_wanted is None else index.only(is_wanted)


class ReplayDatasetTrajectory(EpisodeDataset):
    """Whole episodes.

    Args:
        replay_buffer: The buffer, or its folder.
        fields: Fields of steps in each item; None for all.
        fieldname_map: Output names by field name.
        include_metadata: True if items have the fields of episodes.
        filter_meta: Only episodes whose fields have these values.
        filter_fields: Not supported for whole episodes.
        return_indices: True if items have ``_index``, the episode's slot.
        slice_by_episode_len: Only the episode's own steps; else ``max_timesteps`` steps, with the
            fields' defaults after its end.
        return_episode_lens: True if items have ``_lens``, the number of steps.

    Raises:
        ValueError: A field is unknown, or arguments contradict each other.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
        return_indices: bool = False,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
    ) -> None:
        if filter_fields is not None:
            raise ValueError(
                "filter_fields: expected a dataset of steps, got whole episodes; give "
                "timestep_level=True or n_steps, or leave it out"
            )
        if not slice_by_episode_len and not return_episode_lens:
            raise ValueError(
                "slice_by_episode_len=False: expected return_episode_lens=True, got False: "
                "episode ends are not marked otherwise; leave one of the two out"
            )
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self.slice_by_episode_len = slice_by_episode_len
        self.return_episode_lens = return_episode_lens

    @property
    def padded(self) -> frozenset[str]:
        """Output names of the fields that are padded in time."""
        return frozenset(self._name(name) for name in self.fields)

    def _read(self, places: np.ndarray) -> Values:
        chosen = self._places[places]
        rows = self.rows
        numbers, lengths = rows.numbers[chosen], rows.lengths[chosen]
        values = rows.episodes(self.fields, numbers)
        if not self.slice_by_episode_len:
            values = {name: self._filled(name, v, lengths) for name, v in values.items()}
        values |= rows.metas(self._metas, numbers)
        if self.return_episode_lens:
            values["_lens"] = lengths
        if self.return_indices:
            values["_index"] = rows.slots[chosen]
        return values

    def _lengths_of(self, places: np.ndarray) -> Sequence[int] | None:
        if not self.slice_by_episode_len:
            return None
        lengths: list[int] = self._rows.lengths[self._places[places]].tolist()
        return lengths

    def _filled(self, name: str, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        field, most = self._config.fields[name], self._config.max_timesteps
        filled = field.full((len(values), most))
        is_step = np.arange(most) < lengths[:, None]
        filled[is_step] = values[is_step[:, : values.shape[1]]]
        return filled


ReplayDataset = ReplayDatasetTrajectory


class _StepDataset(EpisodeDataset):
    """Base of the datasets in which each item starts at one step of an episode."""

    _index: _StepIndex

    @property
    def timepoints(self) -> Any:
        """Slot and step of each item, a tensor [N, 2] int64."""
        places, steps = self._index.at(np.arange(len(self._index)))
        return self._torch.from_numpy(np.stack([self._rows.slots[self._places[places]], steps], 1))

    def __len__(self) -> int:
        return len(self._index)


class ReplayDatasetTimestep(_StepDataset):
    """Single steps of all episodes.

    Args:
        replay_buffer: The buffer, or its folder.
        fields: Fields of steps in each item; None for all.
        fieldname_map: Output names by field name.
        return_indices: True if items have ``_indices`` [2], the episode's slot and the step.
        include_metadata: True if items have the fields of the episode.
        filter_meta: Only episodes whose fields have these values.
        filter_fields: Only steps whose (scalar) fields have these values.

    Raises:
        ValueError: A field is unknown.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self._index = self._first_steps(1, filter_fields)

    def _read(self, places: np.ndarray) -> Values:
        rows = self.rows
        which, steps = self._index.at(places)
        chosen = self._places[which]
        numbers = rows.numbers[chosen]
        values = rows.steps(self.fields, numbers, steps)
        values |= rows.metas(self._metas, numbers)
        if self.return_indices:
            values["_indices"] = np.stack([rows.slots[chosen], steps], 1)
        return values


class ReplayDatasetNStep(_StepDataset):
    """Transitions of up to n steps: from step t to t + n, or to the episode's last stored step.

    Every step except an episode's last one starts a transition.

    Args:
        replay_buffer: The buffer, or its folder.
        n_steps: n >= 1.
        current_fields: Fields of step t; None for all.
        next_fields: Fields of the later step, with the prefix ``next_``; None for all.
        sequence_fields: Fields of step t up to, and without, the later step, [n, ...] zero padded,
            with the prefix ``seq_``; None for none.
        fieldname_map: Output names by field name.
        return_indices: True if items have ``_indices`` [2], the episode's slot and the step.
        include_metadata: True if items have the fields of the episode.
        filter_meta: Only episodes whose fields have these values.
        filter_fields: Only steps t whose (scalar) fields have these values.

    Raises:
        ValueError: A field is unknown.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        n_steps: int,
        current_fields: Sequence[str] | None = None,
        next_fields: Sequence[str] | None = None,
        sequence_fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
    ) -> None:
        n_steps = whole_number("n_steps", n_steps, 1)
        super().__init__(
            replay_buffer,
            fieldname_map,
            include_metadata,
            filter_meta,
            return_indices,
            min_episode_len=2,
        )
        self.n_steps = int(n_steps)
        every = tuple(self._config.fields)
        self.current_fields = self._known("current_fields", current_fields, every)
        self.next_fields = self._known("next_fields", next_fields, every)
        self.sequence_fields = self._known("sequence_fields", sequence_fields, ())
        self._index = self._first_steps(2, filter_fields)

    def _read(self, places: np.ndarray) -> Values:
        rows = self.rows
        which, steps = self._index.at(places)
        chosen = self._places[which]
        numbers = rows.numbers[chosen]
        taken = np.minimum(self.n_steps, rows.lengths[chosen] - steps - 1)
        runs = rows.windows(self.sequence_fields, numbers, steps, self.n_steps)
        single = [name for name in self.current_fields if name not in runs]
        now, later = self._pairs(rows, single, numbers, steps, steps + taken)
        now |= {name: runs[name][:, 0].copy() for name in self.current_fields if name in runs}
        values = {name: now[name] for name in self.current_fields}
        values |= {f"next_{name}": later[name] for name in self.next_fields}
        is_after = np.arange(self.n_steps) >= taken[:, None]
        for name in self.sequence_fields:
            runs[name][is_after] = 0
            values[f"seq_{name}"] = runs[name]
        values["n_step_lens"] = taken
        values |= rows.metas(self._metas, numbers)
        if self.return_indices:
            values["_indices"] = np.stack([rows.slots[chosen], steps], 1)
        return values

    def _pairs(
        self,
        rows: SlotReader,
        single: Sequence[str],
        numbers: np.ndarray,
        now: np.ndarray,
        later: np.ndarray,
    ) -> tuple[Values, Values]:
        """Both steps of each item: in one read if they have the same fields."""
        batch = len(numbers)
        if set(single) != set(self.next_fields):
            return (
                rows.steps(single, numbers, now),
                rows.steps(self.next_fields, numbers, later),
            )
        both = rows.steps(single, np.tile(numbers, 2), np.concatenate([now, later]))
        return (
            {name: values[:batch] for name, values in both.items()},
            {name: values[batch:] for name, values in both.items()},
        )


class ReplayDatasetTimeWindow(EpisodeDataset):
    """A random window of each episode, padded with zeros where the episode is shorter.

    Args:
        replay_buffer: The buffer, or its folder.
        window_length: Steps of a window, >= 1.
        fields: Fields of steps in each item; None for all.
        fieldname_map: Output names by field name.
        include_metadata: True if items have the fields of the episode.
        filter_meta: Only episodes whose fields have these values.
        return_indices: True if items have ``_index``, the episode's slot, and ``_start``, the
            window's first step.
        seed: Seed of the windows; None for a random one. Each worker process has its own generator.

    Raises:
        ValueError: A field is unknown.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        window_length: int,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        return_indices: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.window_length = whole_number("window_length", window_length, 1)
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self._seed = np.random.SeedSequence(seed)
        self._rng = np.random.default_rng(self._seed)
        self._rng_worker = -1

    def _read(self, places: np.ndarray) -> Values:
        chosen = self._places[places]
        rows = self.rows
        numbers, lengths = rows.numbers[chosen], rows.lengths[chosen]
        taken = np.minimum(self.window_length, lengths)
        start = self._generator().integers(0, lengths - taken + 1)
        values = rows.windows(self.fields, numbers, start, self.window_length)
        values |= rows.metas(self._metas, numbers)
        values["_lens"] = taken
        values["_reaches_episode_end"] = start + taken >= lengths
        if self.return_indices:
            values["_index"], values["_start"] = rows.slots[chosen], start
        return values

    def _generator(self) -> np.random.Generator:
        """The generator of this process; a worker's depends on DataLoader's seed and its number."""
        info = importlib.import_module("torch.utils.data").get_worker_info()
        if info is not None and info.seed != self._rng_worker:
            self._rng_worker = info.seed
            self._rng = np.random.default_rng([*self._seed.generate_state(2).tolist(), info.seed])
        return self._rng


class BatchFinish(NamedTuple):
    """The last step of a batch, done in the learner's process instead of the workers.

    Args:
        padded: Names of the fields that are padded in time; None if there are none.
        return_mask: Add ``_mask`` [B, T] bool: True for the episodes' own steps.
        to_named_tuple: Names of the fields of a named tuple; None for a dict.
        device: Device of the tensors; None leaves them.
    """

    padded: frozenset[str] | None = None
    return_mask: bool = False
    to_named_tuple: Sequence[str] | None = None
    device: object = None

    def __call__(self, batch: dict[str, Any]) -> Any:
        """Finish a batch."""
        batch = to_device(batch, self.device)
        if self.return_mask:
            lengths = batch["_lens"]
            torch = importlib.import_module("torch")
            padded = [batch[name] for name in self.padded or () if name in batch]
            most = padded[0].shape[1] if padded else int(lengths.max())
            steps = torch.arange(most, device=lengths.device)
            batch["_mask"] = steps[None] < lengths[:, None]
        if self.to_named_tuple is None:
            return batch
        return _named_batch(batch, self.to_named_tuple)


def make_loader(dataset: Any, finish: BatchFinish, options: Mapping[str, Any]) -> Any:
    """A `torch.utils.data.DataLoader` of a dataset.

    Args:
        dataset: The dataset.
        finish: The last step of each batch.
        options: Arguments of DataLoader, ``batch_size`` and so on.

    Raises:
        ValueError: A name cannot be used in a named tuple.
        ImportError: PyTorch is not installed.
    """
    if finish.to_named_tuple is not None:
        _tuple_class(tuple(finish.to_named_tuple))  # raises now, rather than after the first batch
    # A partial of a module function can be pickled for the workers; a closure cannot.
    collate = partial(_collated, finish.padded)
    loader = _loader_class()(dataset, collate_fn=collate, **options)
    loader.finish = finish
    return loader


def _collated(padded: frozenset[str] | None, items: Any) -> dict[str, Any]:
    """Collate items, also those of a dataset of the caller's."""
    if isinstance(items, Items):
        return items.collated
    torch = importlib.import_module("torch")
    if padded is None:
        collate: Any = importlib.import_module("torch.utils.data").default_collate
        found: dict[str, Any] = collate(list(items))
        return found
    pad = torch.nn.utils.rnn.pad_sequence
    batch: dict[str, Any] = {}
    for name in items[0]:
        values = [torch.as_tensor(item[name]) for item in items]
        is_padded = name in padded and values[0].ndim > 0
        batch[name] = pad(values, batch_first=True) if is_padded else torch.stack(values)
    return batch


@cache
def _loader_class() -> Any:
    """The class of the loaders, which is created on first use, as it needs PyTorch.

    Raises:
        ImportError: PyTorch is not installed.
    """
    load_torch("a dataloader")
    base: Any = importlib.import_module("torch.utils.data").DataLoader

    class ReplayDataLoader(base):  # type: ignore[misc]
        """The class of the loaders of `make_loader`."""

        finish = BatchFinish()

        def __iter__(self) -> Iterator[Any]:
            return (self.finish(batch) for batch in super().__iter__())

    return ReplayDataLoader


def _named_batch(batch: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Turn a batch into a named tuple ``Batch``; a leading ``_`` of a name is removed.

    Args:
        batch: Values by name.
        names: The names of the fields, in order.

    Raises:
        ValueError: The batch has no such value, or a name cannot be used in a named tuple.

    Example:
        >>> _named_batch({"state": 1, "_lens": 2, "action": 3}, ("state", "_lens"))
        Batch(state=1, lens=2)
    """
    batch_type = _tuple_class(tuple(names))
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(
            f"to_named_tuple: expected some of {', '.join(batch)}, got {missing[0]!r}; name fields "
            f"of the batch"
        )
    return batch_type(*(batch[name] for name in names))


def to_device(batch: Any, device: object) -> Any:
    """Move the tensors of a batch to a device; None leaves them."""
    if device is None:
        return batch
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    return batch.to(device) if hasattr(batch, "to") else batch


@lru_cache(maxsize=256)
def _tuple_class(names: tuple[str, ...]) -> Any:
    """The named tuple class of some names, without their leading ``_``.

    Raises:
        ValueError: A name is not an identifier, or two names become equal.
    """
    fields = [name.lstrip("_") for name in names]
    invalid = [name for name in fields if not name.isidentifier()]
    twice = [name for name in fields if fields.count(name) > 1]
    if invalid or twice:
        raise ValueError(
            f"to_named_tuple: expected different names such as 'state' or '_lens', got "
            f"{(invalid or twice)[0]!r}{'' if invalid else ' twice'}; name each field once"
        )
    make: Any = namedtuple  # type checkers require literal names
    return make("Batch", fields)


class _StepIndex:
    """Numbers the steps of concatenated episodes.

    Args:
        lengths: [E] steps of the episodes.
        horizon: The last ``horizon - 1`` steps of each episode have no number.

    Example:
        >>> index = _StepIndex(np.array([3, 1, 2]), horizon=2)
        >>> [each.tolist() for each in index.at(np.arange(len(index)))]
        [[0, 0, 2], [0, 1, 0]]
    """

    def __init__(self, lengths: np.ndarray, horizon: int = 1) -> None:
        self._lengths = lengths
        counts = np.maximum(lengths - (horizon - 1), 0)
        self._stops = np.cumsum(counts)
        self._begins = self._stops - counts
        self._subset: np.ndarray | None = None

    def only(self, is_wanted: np.ndarray) -> _StepIndex:
        """Renumber a subset of the steps.

        Args:
            is_wanted: [steps] bool for all steps of the episodes, also those without a number.
        """
        everything = np.arange(len(self))
        place, step = self.at(everything)
        first = np.cumsum(self._lengths) - self._lengths
        fewer = _StepIndex(self._lengths)
        fewer._stops, fewer._begins = self._stops, self._begins
        fewer._subset = everything[is_wanted[first[place] + step]]
        return fewer

    def __len__(self) -> int:
        if self._subset is not None:
            return len(self._subset)
        return int(self._stops[-1]) if len(self._stops) else 0

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the episodes [B], and of the steps in them [B], of some numbers."""
        if self._subset is not None:
            numbers = self._subset[numbers]
        place = np.searchsorted(self._stops, numbers, side="right")
        return place, numbers - self._begins[place]


def _is_equal(values: np.ndarray, value: object) -> np.ndarray:
    """Compare numbers [n] with a value; True and False match every number's truth value."""
    found: np.ndarray = (values.astype(np.bool_) if isinstance(value, bool) else values) == value
    return found
