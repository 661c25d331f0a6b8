"""What all datasets of a buffer have in common: episodes as they were, read a batch at a time."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows
from stepwell.buffers.dropin.memmap.step_index import StepIndex
from stepwell.buffers.sampling.tensors import load_torch

if TYPE_CHECKING:
    from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer

__all__ = ["EpisodeDataset", "Items", "Source", "Values"]

Values = dict[str, np.ndarray]
Source: TypeAlias = "ReplayBuffer | str | Path"


class Items(Sequence[dict[str, Any]]):
    """The items of a batch: one after the other as a dataset gives them, and as one batch.

    Args:
        collated: Tensors ``[B, ...]`` by name, padded with zeros in time.
        lengths: How many steps of the padded ones each item has; None where none are padded.
        padded: Names of those that are.
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
    """What all datasets have in common: the episodes that there were when it was made.

    What is stored later is not in it; make another one. An episode that was overwritten since is
    refused, never given in a changed form; values that `update` changes are seen. In a worker
    process the folder is opened anew, to read.
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
        self._rows = EpisodeRows(folder)
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
        """Several items, read at once; DataLoader asks for a batch so.

        Args:
            indices: Which ones; -1 is the last.
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
        # Another process opens the folder itself, when it reads.
        left_out = {"_torch": None, "replay_buffer": self._path, "_process": 0}
        return {**self.__dict__, **left_out, "_rows": self._rows.detached()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._torch = load_torch("a dataset")

    @property
    def padded(self) -> frozenset[str]:
        """Names, as they are handed out, of what is padded in time."""
        return frozenset()

    @abstractmethod
    def _read(self, places: np.ndarray) -> Values:
        """Arrays [B, ...] by name of the items at some places, before names are mapped."""

    def _lengths_of(self, places: np.ndarray) -> Sequence[int] | None:
        """How many steps of what is padded the items have; None where nothing is."""
        del places
        return None

    @property
    def rows(self) -> EpisodeRows:
        """Reads the episodes in this process."""
        if self._process != os.getpid():
            self._inherited = self._rows  # of the parent process: not to be used, nor to be closed
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
        """Names of fields of steps, checked."""
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

    def _filtered(self, wanted: Mapping[str, object] | None, least: int) -> np.ndarray:
        """Which of the episodes are wanted and long enough, [E]."""
        rows = self._rows
        is_wanted = rows.lengths >= least
        for name, value in (wanted or {}).items():
            if name == "episode_lens":
                is_wanted &= rows.lengths == value
                continue
            field = self._config.meta_fields.get(name)
            if field is None:
                there = ", ".join(["episode_lens", *self._config.meta_fields])
                raise ValueError(f"filter_meta names {name!r}, expected some of: {there}")
            if field.shape != ():
                raise ValueError(
                    f"filter_meta: expected fields of one number, got {name!r} of shape "
                    f"{field.shape}"
                )
            is_wanted &= _is_equal(rows.metas([name], rows.numbers)[name], value)
        return np.flatnonzero(is_wanted)

    def _steps(self, horizon: int, wanted: Mapping[str, object] | None) -> StepIndex:
        """The steps that items begin with: those after which ``horizon - 1`` others follow."""
        index = StepIndex(self._rows.lengths[self._places], horizon)
        is_wanted: np.ndarray | None = None
        for name, value in (wanted or {}).items():
            self._known("filter_fields", (name,), ())
            shape = self._config.fields[name].shape
            if shape != ():
                raise ValueError(
                    f"filter_fields only supports scalar fields: expected shape (), got {shape} of "
                    f"{name!r}"
                )
            verdict = _is_equal(self._rows.scalars(name, self._places), value)
            is_wanted = verdict if is_wanted is None else is_wanted & verdict
        return index if is_wanted is None else index.only(is_wanted)

    def _timepoints(self, index: StepIndex) -> Any:
        places, steps = index.at(np.arange(len(index)))
        return self._torch.from_numpy(np.stack([self._rows.slots[self._places[places]], steps], 1))


def _is_equal(values: np.ndarray, value: object) -> np.ndarray:
    """Where numbers [n] are what is wanted; of True and False every number is one."""
    found: np.ndarray = (values.astype(np.bool_) if isinstance(value, bool) else values) == value
    return found
