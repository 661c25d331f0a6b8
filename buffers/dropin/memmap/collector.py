"""Gathers the steps of several envs, for learning from memory or storing as episodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepwell.buffers.dropin.memmap.config import as_numpy
from stepwell.buffers.dropin.memmap.datasets import BatchFinish, Items, make_loader, to_device
from stepwell.buffers.sampling.tensors import load_torch
from stepwell.buffers.whole_numbers import check_whole

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["EpisodeCollector", "EpisodeStore"]


class EpisodeStore(Protocol):
    """A buffer, as far as a collector needs it."""

    @property
    def fieldnames(self) -> Collection[str]:
        """Names of the fields of a step."""
        ...

    @property
    def meta_fieldnames(self) -> Collection[str]:
        """Names of the fields of an episode."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of a step's value, by name."""
        ...

    @property
    def meta_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of an episode's value, by name."""
        ...

    def store_episodes(self, episodes: Sequence[Mapping[str, Any]]) -> Any:
        """Store episodes, all or none."""
        ...


class EpisodeCollector:
    """Gathers steps of several envs, one group per env.

    Values are copied and keep their type, tensor or array, and their dtype. A call that fails
    changes nothing.

    Args:
        replay_buffer: The buffer that `store` stores the episodes in.
        num_groups: Number of groups N >= 1.
        fieldnames: Fields of steps to gather; None for all of the buffer's.
        meta_fieldnames: Fields of episodes to gather; None for all of the buffer's.
        strict: Reject unknown names; otherwise they are ignored.

    Raises:
        ValueError: There is no group, or a field is unknown.

    Example:
        >>> import tempfile
        >>> from stepwell.buffers.dropin.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer(tempfile.mkdtemp(), 10, 50, fields={"state": ("float", 3)})
        >>> collector = buffer.create_collector(num_groups=2)
        >>> for step in range(5):
        ...     collector.append(state=np.full((2, 3), step, np.float32))
        >>> len(collector), collector.env_major("state").shape
        (5, (2, 5, 3))
        >>> collector.store()
        >>> buffer.num_episodes
        2
    """

    def __init__(
        self,
        replay_buffer: EpisodeStore,
        num_groups: int,
        fieldnames: Collection[str] | None = None,
        meta_fieldnames: Collection[str] | None = None,
        strict: bool = True,
    ) -> None:
        check_whole("num_groups", num_groups, 1)
        self.replay_buffer = replay_buffer
        self.num_groups = num_groups
        self.fieldnames = _chosen("fieldnames", fieldnames, replay_buffer.fieldnames)
        self.meta_fieldnames = _chosen(
            "meta_fieldnames", meta_fieldnames, replay_buffer.meta_fieldnames
        )
        self.shapes = replay_buffer.shapes
        self.meta_shapes = replay_buffer.meta_shapes
        self.strict = strict
        self.clear()

    def __len__(self) -> int:
        """Steps of the longest group."""
        return self._count

    @property
    def lens(self) -> np.ndarray:
        """[N] int64: steps of each group; fewer than `len` for a group that has ended."""
        return np.where(self._ended < 0, self._count, self._ended)

    @property
    def mask(self) -> np.ndarray:
        """[N, T] bool: True for the steps before a group's end."""
        return np.arange(self._count) < self.lens[:, None]

    def clear(self) -> None:
        """Discard the gathered steps."""
        self._steps: dict[str, list[Any]] = {}  # by field: one value [N, *shape] per step
        self._meta: dict[str, list[Any]] = {}  # by meta field: one value per group
        self._count = 0
        self._ended = np.full(self.num_groups, -1, np.int64)
        self._some_ended = False

    def append(self, **data: Any) -> None:
        """Add one step of every group.

        All steps must have the same fields. The values of a group that has ended are ignored.

        Args:
            data: Fields of steps [N, *shape] or [N, 1, *shape]; meta fields [N, *shape], or one
                value for all groups.

        Raises:
            KeyError: A name is unknown.
            ValueError: A value has another shape, a field is missing or new, or every group has
                ended.
        """
        fields, meta = self._sorted(data)
        values = {name: self._step_of(name, value) for name, value in fields.items()}
        metas = {name: self._meta_of(name, value) for name, value in meta.items()}
        if not values:
            self._meta.update(metas)
            return
        self._check_same_fields(values)
        if self._some_ended and (self._ended >= 0).all():
            raise ValueError(
                f"append: expected a group whose episode is open, got {self.num_groups} of "
                f"{self.num_groups} that have ended; call store() or clear() first"
            )
        for name, value in values.items():
            self._steps.setdefault(name, []).append(value)
        self._meta.update(metas)
        self._count += 1

    def extend(self, **trajectories: Any) -> None:
        """Add all steps of a field at once, for example advantages that were computed later.

        Args:
            trajectories: Fields of steps [T, N, *shape], with T the number of gathered steps if
                there are any. Meta fields as in `append`.

        Raises:
            KeyError: A name is unknown.
            ValueError: A value has another shape, or the field has values already.
        """
        fields, meta = self._sorted(trajectories)
        count = self._count
        values: dict[str, Any] = {}
        for name, value in fields.items():
            values[name] = self._trajectory_of(name, value, count)
            count = len(values[name])
        self._meta.update({name: self._meta_of(name, value) for name, value in meta.items()})
        self._steps.update({name: list(value) for name, value in values.items()})
        self._count = count

    def end(self, groups: Any) -> None:
        """End groups after the newest step; their later values are ignored.

        Args:
            groups: [N] bool, or the groups' numbers. Groups that have ended already keep their
                ends.

        Raises:
            ValueError: The groups are invalid, or there is no step yet.
        """
        chosen = as_numpy(groups)
        numbers = np.arange(self.num_groups)
        is_mask = chosen.dtype == np.bool_ and chosen.shape == numbers.shape
        is_whole = chosen.dtype.kind in "iu" or not chosen.size
        if not is_mask and not (is_whole and np.isin(chosen, numbers).all()):
            raise ValueError(
                f"groups: expected {self.num_groups} bools, or numbers from 0 to "
                f"{self.num_groups - 1}, got {groups!r}; name the groups that have ended"
            )
        if not self._count:
            raise ValueError(
                "groups: expected at least 1 step before an episode ends, got 0; append first"
            )
        is_chosen = chosen if is_mask else np.isin(numbers, chosen)
        self._ended[is_chosen & (self._ended < 0)] = self._count
        self._some_ended = bool((self._ended >= 0).any())

    def groups(self, name: str) -> list[Any]:
        """A field by group: N arrays or tensors [T, *shape], each with its own T.

        A meta field has N values.
        """
        if self._is_meta(name):
            return list(self._of(self._meta, name))
        values = _stacked(self._of(self._steps, name))
        return [values[:length, group] for group, length in enumerate(self.lens.tolist())]

    def time_major(self, name: str) -> Any:
        """A field as [T, N, *shape], 0 after a group's end; a meta field as [N, *shape]."""
        if self._is_meta(name):
            return _stacked(self._of(self._meta, name))
        values = _stacked(self._of(self._steps, name))
        for group, length in enumerate(self.lens.tolist()):
            if length < self._count:
                values[length:, group] = 0
        return values

    def env_major(self, name: str) -> Any:
        """A field as [N, T, *shape], 0 after a group's end; a meta field as [N, *shape]."""
        values = self.time_major(name)
        return values if self._is_meta(name) else values.swapaxes(0, 1)

    def all_data(
        self, fields: Sequence[str] | None = None, device: object = None
    ) -> dict[str, Any]:
        """The gathered steps, [N, T, *shape] by field.

        Args:
            fields: The fields; None for all that have values.
            device: Device of the tensors; None leaves them.

        Raises:
            ValueError: No step was gathered.
        """
        self._check_some()
        names = list(self._steps) if fields is None else fields
        data: dict[str, Any] = to_device({name: self.env_major(name) for name in names}, device)
        return data

    def dataloader(
        self,
        batch_size: int,
        fields: Sequence[str] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        to_named_tuple: Sequence[str] | None = None,
        shuffle: bool = False,
        device: object = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """The steps of all groups in batches [B, *shape], from memory.

        Args:
            batch_size: Steps per batch.
            fields: The fields; None for all that have values.
            filter_fields: Only steps whose fields have these values.
            to_named_tuple: Names of the fields of a named tuple; None for dicts.
            shuffle: Draw a new order for every pass.
            device: Device of the tensors; None leaves them.
            options: Further arguments of DataLoader.

        Raises:
            ImportError: PyTorch is not installed.
            ValueError: No step was gathered, or a filtered field is not scalar.
        """
        torch = load_torch("dataloader")
        mask = torch.as_tensor(self.mask)
        data = {name: torch.as_tensor(value) for name, value in self.all_data().items()}
        wanted = mask.clone()
        for name, value in (filter_fields or {}).items():
            wanted &= (self._numbers(data, name) == value).to(wanted.device)
        names = list(data) if fields is None else list(fields)
        rows = {name: self._named(data, name)[wanted.to(data[name].device)] for name in names}
        finish = BatchFinish(to_named_tuple=to_named_tuple, device=device)
        loading = {"batch_size": batch_size, "shuffle": shuffle, **options}
        loader: DataLoader[Any] = make_loader(_FlatRows(rows), finish, loading)
        return loader

    def store(self, **meta_data: Any) -> None:
        """Store one episode per group, all or none, and clear the collector.

        Args:
            meta_data: Meta fields [N, *shape], or one value for all groups; they replace the values
                of `append`.

        Raises:
            KeyError: A name is not that of a meta field.
            ValueError: No step was gathered, or the buffer refuses the episodes; the collector
                keeps them.
        """
        self._check_some()
        fields, meta = self._sorted(meta_data)
        if fields:
            raise KeyError(
                f"{min(fields)} is a field of steps: expected meta fields alone, "
                f"{', '.join(sorted(self.meta_fieldnames)) or 'of which there are none'}; give it "
                f"to append or extend"
            )
        metas = {**self._meta, **{name: self._meta_of(name, v) for name, v in meta.items()}}
        episodes: list[dict[str, Any]] = [
            {name: values[group] for name, values in metas.items()}
            for group in range(self.num_groups)
        ]
        for name in self._steps:
            for episode, values in zip(episodes, self.groups(name), strict=True):
                episode[name] = values
        self.replay_buffer.store_episodes(episodes)
        self.clear()

    def _sorted(self, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split data into fields of steps and meta fields."""
        if data.keys() <= self.fieldnames:
            return dict(data), {}
        known = self.fieldnames | self.meta_fieldnames
        unknown = sorted(data.keys() - known)
        if unknown and self.strict:
            raise KeyError(
                f"unknown field {unknown[0]!r}: expected some of {', '.join(sorted(known))}; "
                f"add it to the buffer's fields, or collect with strict=False"
            )
        return (
            {name: value for name, value in data.items() if name in self.fieldnames},
            {name: value for name, value in data.items() if name in self.meta_fieldnames},
        )

    def _step_of(self, name: str, value: Any) -> Any:
        """Copy the value of one step, [N, *shape]."""
        array, shape = _copy(value), tuple(self.shapes[name])
        if tuple(array.shape) == (self.num_groups, 1, *shape):
            return array[:, 0]
        if tuple(array.shape) != (self.num_groups, *shape):
            axes = ", ".join(map(str, (self.num_groups, *shape)))
            raise ValueError(
                f"field {name!r}: expected one step of {self.num_groups} groups, an array of shape "
                f"({axes}), got {tuple(array.shape)}; extend takes whole trajectories"
            )
        return array

    def _trajectory_of(self, name: str, value: Any, count: int) -> Any:
        """Copy the values of all steps, [T, N, *shape]."""
        array, shape = _copy(value), tuple(self.shapes[name])
        got = tuple(array.shape)
        steps = int(array.shape[0]) if got[1:] == (self.num_groups, *shape) else 0
        if not steps or (count and steps != count):
            axes = ", ".join(map(str, (count or "time", self.num_groups, *shape)))
            raise ValueError(
                f"field {name!r}: expected trajectories of shape ({axes}), the time first, got "
                f"{got}; append takes single steps"
            )
        if name in self._steps:
            raise ValueError(
                f"field {name!r}: expected one without values, got one with {self._count} steps; "
                f"store or clear them first"
            )
        return array

    def _meta_of(self, name: str, value: Any) -> list[Any]:
        """Copy the value of each group."""
        array, shape = _copy(value), tuple(self.meta_shapes[name])
        one = {shape, (), (1,)} if shape in ((), (1,)) else {shape}
        got = tuple(array.shape)
        if got in {(self.num_groups, *each) for each in one}:
            return list(array.reshape((self.num_groups, *shape)))
        if got in one:
            return [array.reshape(shape)] * self.num_groups
        raise ValueError(
            f"meta field {name!r}: expected a value of shape {shape}, or one for each of "
            f"{self.num_groups} groups, got {got}; reshape it first"
        )

    def _check_same_fields(self, values: Mapping[str, Any]) -> None:
        if not self._steps:
            return
        if values.keys() != self._steps.keys():
            odd = sorted(values.keys() ^ self._steps.keys())
            raise ValueError(
                f"expected the fields of the steps before ({', '.join(sorted(self._steps))}), got "
                f"{'none for' if odd[0] in self._steps else 'one for'} {odd[0]!r}; give every "
                f"field with every step, or all its steps at the end with extend"
            )
        for name, value in values.items():
            if _is_tensor(value) != _is_tensor(self._steps[name][0]):
                raise ValueError(
                    f"field {name!r}: expected tensors at all steps or at none, got both; convert "
                    f"one of them"
                )

    def _check_some(self) -> None:
        if not self._count:
            raise ValueError(
                "the collector is empty: expected at least 1 step, got 0; call append or extend "
                "first"
            )

    def _is_meta(self, name: str) -> bool:
        """True if a name is that of a meta field; KeyError if it is unknown."""
        if name not in self.fieldnames | self.meta_fieldnames:
            raise KeyError(
                f"unknown field {name!r}: expected one of "
                f"{', '.join(sorted(self.fieldnames | self.meta_fieldnames))}"
            )
        return name in self.meta_fieldnames

    def _of(self, values: Mapping[str, list[Any]], name: str) -> list[Any]:
        if name not in values:
            raise KeyError(
                f"field {name!r} has no values: expected one of "
                f"{', '.join([*self._steps, *self._meta]) or 'none'}; append or extend it first"
            )
        return values[name]

    def _named(self, data: Mapping[str, Any], name: str) -> Any:
        self._of(self._steps, name)
        return data[name]

    def _numbers(self, data: Mapping[str, Any], name: str) -> Any:
        values = self._named(data, name)
        if values.ndim != 2:
            raise ValueError(
                f"filter_fields: expected scalar fields, got {name!r} of shape "
                f"{tuple(values.shape[2:])}; filter by another field"
            )
        return values


class _FlatRows:
    """Rows in memory as a dataset that a DataLoader reads a batch at a time.

    Args:
        data: Tensors [R, *shape] by name.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)

    def __len__(self) -> int:
        return max((len(values) for values in self._data.values()), default=0)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self._data.items()}

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Several rows, read at once."""
        places = list(indices)
        collated = {name: values[places] for name, values in self._data.items()}
        return Items(collated, None, frozenset())


def _chosen(what: str, names: Collection[str] | None, known: Collection[str]) -> set[str]:
    """Check a choice of names."""
    chosen = set(known) if names is None else set(names)
    unknown = sorted(chosen - set(known))
    if unknown:
        raise ValueError(
            f"{what}: expected some of the buffer's ({', '.join(sorted(known))}), got "
            f"{unknown[0]!r}; add it to the buffer's fields first"
        )
    return chosen


def _is_tensor(value: Any) -> bool:
    return type(value) is not np.ndarray and hasattr(value, "detach")


def _copy(value: Any) -> Any:
    """Copy a tensor or an array."""
    if _is_tensor(value):
        return value.clone()
    if isinstance(value, list | tuple) and value and all(map(_is_tensor, value)):
        return load_torch("a list of tensors").stack(list(value))
    return np.array(value)


def _stacked(values: list[Any]) -> Any:
    """Stack tensors or arrays."""
    if _is_tensor(values[0]):
        return load_torch("tensors").stack(values)
    return np.stack(values)
