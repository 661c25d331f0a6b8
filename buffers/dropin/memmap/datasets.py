"""Data loaders for PyTorch, which read stored episodes a batch at a time."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ...base.number_checks import whole_number
from ...sampling.tensors import load_torch
from .episode_folder import SlotReader

Values = dict[str, np.ndarray]
Names = Sequence[str] | None


class _Dataset(ABC):
    """Base of all data sets: the episodes that were stored when it was made."""

    # Of `filter_meta` only episodes are chosen whose fields have these values. Episodes stored
    # later are not in it. An episode that was overwritten since is refused.

    def __init__(
        self,
        rows: SlotReader,
        filter_meta: Mapping[str, object] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
    ) -> None:
        load_torch("a dataloader")  # raises now, rather than at the first batch
        self.rows = rows
        self._names = dict(fieldname_map or {})
        metas = rows.metas(rows.numbers)
        is_wanted = np.ones(len(rows.numbers), np.bool_)
        for name, value in (filter_meta or {}).items():
            field = rows.config.meta_fields.get(name)
            if field is None:
                raise ValueError(
                    f"filter_meta names {name!r}, expected some of: {', '.join(metas)}"
                )
            if field.shape != ():
                raise ValueError(
                    f"filter_meta: expected fields of one number, got {name!r} of shape "
                    f"{field.shape}"
                )
            is_wanted &= metas[name] == value
        self._places = np.flatnonzero(is_wanted)

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One item, as the original's data sets give it: tensors [...] by name."""
        batch = self.__getitems__([range(len(self))[index]])
        return {name: values[0] for name, values in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        """A batch of tensors [B, ...] by name, read at once."""
        torch: Any = load_torch("a dataloader")
        values = self._read(np.asarray(indices, np.int64))
        return {
            self._names.get(name, name): torch.from_numpy(np.ascontiguousarray(array))
            for name, array in values.items()
        }

    @abstractmethod
    def _read(self, places: np.ndarray) -> Values:
        """Arrays [B, ...] of the items at some positions, by their names before `fieldname_map`."""

    def _fields(
        self, what: str, names: Names, default: Sequence[str] | None = None
    ) -> Sequence[str]:
        """Check names of fields of steps; None for all of them, or for a default."""
        known = self.rows.config.fields
        if names is None:
            return tuple(known) if default is None else default
        if isinstance(names, str):
            raise ValueError(f"{what}: expected a tuple of names, got {names!r}: put it in one")
        for name in names:
            if name not in known:
                raise ValueError(f"{what} names {name!r}, expected some of: {', '.join(known)}")
        return tuple(names)


class Trajectories(_Dataset):
    """Whole episodes, zero padded to the longest one of a batch, with ``_lens``."""

    # With a mask there is `_mask` [B, T] bool: True for the episodes' own steps.

    def __init__(self, fields: Names, *chosen: Any, return_mask: bool) -> None:
        super().__init__(*chosen)
        self._shown = self._fields("fields", fields)
        self._return_mask = return_mask

    def __len__(self) -> int:
        return len(self._places)

    def _read(self, places: np.ndarray) -> Values:
        chosen = self._places[places]
        numbers, lengths = self.rows.numbers[chosen], self.rows.lengths[chosen]
        values = self.rows.episodes(self._shown, numbers)
        values |= self.rows.metas(numbers) | {"_lens": lengths}
        if self._return_mask:
            values["_mask"] = np.arange(int(lengths.max())) < lengths[:, None]
        return values


class _StepDataset(_Dataset):
    """Base of the data sets in which each item starts at one step of an episode."""

    def __init__(self, horizon: int, *chosen: Any) -> None:
        super().__init__(*chosen)
        # The last ``horizon - 1`` steps of an episode start no item.
        counts = np.maximum(self.rows.lengths[self._places] - (horizon - 1), 0)
        self._stops = np.cumsum(counts)
        self._begins = self._stops - counts

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    def _at(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the items' episodes [B], and of the steps in them [B]."""
        place = np.searchsorted(self._stops, items, side="right")
        return self._places[place], items - self._begins[place]


class Steps(_StepDataset):
    """Single steps of all episodes."""

    def __init__(self, fields: Names, *chosen: Any) -> None:
        super().__init__(1, *chosen)
        self._shown = self._fields("fields", fields)

    def _read(self, places: np.ndarray) -> Values:
        chosen, steps = self._at(places)
        numbers = self.rows.numbers[chosen]
        return self.rows.steps(self._shown, numbers, steps) | self.rows.metas(numbers)


class Transitions(_StepDataset):
    """Transitions of up to n steps: from step t to t + n, or to the episode's last stored step.

    Every step except an episode's last one starts a transition.

    Args:
        n_steps: n >= 1.
        current_fields: Fields of step t; None for all.
        next_fields: Fields of the later step, with the prefix ``next_``; None for all.
        sequence_fields: Fields of step t up to, and without, the later step, [n, ...] zero padded,
            with the prefix ``seq_``; None for none.
        *chosen: Arguments of `_Dataset`.
    """

    def __init__(
        self,
        n_steps: int,
        current_fields: Names,
        next_fields: Names,
        sequence_fields: Names,
        *chosen: Any,
    ) -> None:
        self._n = whole_number("n_steps", n_steps, 1)
        super().__init__(2, *chosen)
        self._now = self._fields("current_fields", current_fields)
        self._later = self._fields("next_fields", next_fields)
        self._between = self._fields("sequence_fields", sequence_fields, ())

    def _read(self, places: np.ndarray) -> Values:
        rows = self.rows
        chosen, steps = self._at(places)
        numbers = rows.numbers[chosen]
        taken = np.minimum(self._n, rows.lengths[chosen] - steps - 1)
        values = rows.steps(self._now, numbers, steps)
        later = rows.steps(self._later, numbers, steps + taken)
        values |= {f"next_{name}": value for name, value in later.items()}
        runs = rows.windows(self._between, numbers, steps, self._n)
        is_after = np.arange(self._n) >= taken[:, None]
        for name, run in runs.items():
            run[is_after] = 0
            values[f"seq_{name}"] = run
        return values | {"n_step_lens": taken} | rows.metas(numbers)


def make_loader(dataset: Any, to_named_tuple: Names, options: Mapping[str, Any]) -> Any:
    """A `torch.utils.data.DataLoader` of a data set: of named tuples, or of dicts without names."""
    if options["batch_size"] is None:
        raise ValueError(
            "batch_size: expected a whole number >= 1, got None; single items are those of "
            "loader.dataset"
        )
    for name in ("collate_fn", "dataset"):
        if name in options:
            raise ValueError(f"{name}: expected none, as the loader has its own; leave it out")
    if to_named_tuple is not None:
        _tuple_class(tuple(to_named_tuple))  # raises now, rather than after the first batch
    loader = _loader_class()(dataset, collate_fn=_as_it_is, **options)
    loader.to_named_tuple = to_named_tuple
    return loader


def _as_it_is(batch: dict[str, Any]) -> dict[str, Any]:
    """Collate a batch of `_Dataset.__getitems__`; a lambda could not be sent to workers."""
    return batch


@cache
def _loader_class() -> Any:
    """The class of the loaders, which is created on first use, as it needs PyTorch."""
    base: Any = importlib.import_module("torch.utils.data").DataLoader

    class ReplayDataLoader(base):
        """Makes the named tuples in the learner's process: workers could not send them."""

        to_named_tuple: Names = None

        def __iter__(self) -> Iterator[Any]:
            batches, names = super().__iter__(), self.to_named_tuple
            return batches if names is None else (_named_batch(batch, names) for batch in batches)

    return ReplayDataLoader


def _named_batch(batch: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Turn a batch into a named tuple ``Batch``; a leading ``_`` of a name is removed."""
    batch_type = _tuple_class(tuple(names))
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(
            f"to_named_tuple: expected some of {', '.join(batch)}, got {missing[0]!r}; name fields "
            f"of the batch"
        )
    return batch_type(*(batch[name] for name in names))


@lru_cache(maxsize=256)
def _tuple_class(names: tuple[str, ...]) -> Any:
    """The named tuple class of some names, without their leading ``_``."""
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
