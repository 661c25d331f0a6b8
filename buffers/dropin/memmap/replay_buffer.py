"""The buffer of memmap-replay-buffer, on a Stepwell store, and its loaders for PyTorch."""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from ...base.errors import not_copied
from ...base.number_checks import whole_number
from ...replay.replay import SequenceReplayBuffer
from ...sampling.tensors import load_torch
from .config import Config, check_names, parse_fields
from .episode_folder import EpisodeFolder, SlotReader

Values = dict[str, np.ndarray]
Names = Sequence[str] | None


class _Dataset(ABC):
    """Base of all data sets: the episodes that were stored when it was made."""

    # Of `filter_meta` only episodes are chosen whose fields have these values. Episodes stored
    # later are not in it. An episode that was overwritten since is refused.

    _behind: ClassVar[int | None] = None  # steps behind each item's first one; None: it has all

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
        lengths = rows.lengths[self._places]  # of which none is 0
        counts = np.ones_like(lengths) if self._behind is None else lengths - self._behind
        self._stops = np.cumsum(counts)
        self._begins = self._stops - counts

    def _check_names(self, *names: str) -> None:
        """Refuse a `fieldname_map` that does not fit items of these names and the episodes'."""
        known = dict.fromkeys([*names, *self.rows.config.meta_fields])
        for name in self._names:
            if name not in known:
                raise ValueError(
                    f"fieldname_map names {name!r}, expected some of: {', '.join(known)}"
                )
        given = [self._names.get(name, name) for name in known]
        twice = [name for name in given if given.count(name) > 1 and self._names]
        if twice:
            raise ValueError(
                f"fieldname_map: expected different names, got {twice[0]!r} twice; rename both, or "
                f"leave one out with fields="
            )

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    def _at(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the items' episodes [B], and of the steps in them [B]."""
        place = np.searchsorted(self._stops, items, side="right")
        return self._places[place], items - self._begins[place]

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
        self._check_names(*self._shown, "_lens", *["_mask"] * return_mask)

    def _read(self, places: np.ndarray) -> Values:
        chosen, _ = self._at(places)
        numbers, lengths = self.rows.numbers[chosen], self.rows.lengths[chosen]
        values = self.rows.episodes(self._shown, numbers)
        values |= self.rows.metas(numbers) | {"_lens": lengths}
        if self._return_mask:
            values["_mask"] = np.arange(int(lengths.max())) < lengths[:, None]
        return values


class Steps(_Dataset):
    """Single steps of all episodes."""

    _behind = 0

    def __init__(self, fields: Names, *chosen: Any) -> None:
        super().__init__(*chosen)
        self._shown = self._fields("fields", fields)
        self._check_names(*self._shown)

    def _read(self, places: np.ndarray) -> Values:
        chosen, steps = self._at(places)
        numbers = self.rows.numbers[chosen]
        return self.rows.steps(self._shown, numbers, steps) | self.rows.metas(numbers)


class Transitions(_Dataset):
    """Transitions of up to n steps: from step t to t + n, or to the episode's last stored step."""

    # Every step except an episode's last one starts one; `ReplayBuffer.dataloader` names the parts.

    _behind = 1

    def __init__(
        self,
        n_steps: int,
        current_fields: Names,
        next_fields: Names,
        sequence_fields: Names,
        *chosen: Any,
    ) -> None:
        self._n = whole_number("n_steps", n_steps, 1)
        super().__init__(*chosen)
        self._now = self._fields("current_fields", current_fields)
        self._later = self._fields("next_fields", next_fields)
        self._between = self._fields("sequence_fields", sequence_fields, ())
        more = [f"next_{name}" for name in self._later] + [f"seq_{name}" for name in self._between]
        self._check_names(*self._now, *more, "n_step_lens")

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


class ReplayBuffer:
    """Episodes of typed fields in a folder, read as episodes, steps or n-step transitions.

    An open episode is kept in RAM and stored as a whole when it ends; it is durable when that call
    returns. An episode that never ends is never visible, and leaves no files.

    An existing folder is continued. All buffers of one process that write into the same folder
    share their episodes; another process may read it at the same time (`from_folder` with
    ``read_only=True``).

    Args:
        folder: Folder of the episodes.
        max_episodes: Number of episodes.
        max_timesteps: Steps of the longest episode.
        fields: Fields of a step: name to ``"float"``, ``"int"``, ``"bool"`` or ``"uint8"``, or to a
            tuple of that, a shape and, optionally, a default.
        meta_fields: Fields of an episode, in the same notation.
        circular: True if a new episode replaces the oldest one when the buffer is full.
        overwrite: Remove the stored episodes.

    Raises:
        ValueError: The folder holds something else or has another configuration, or a field is
            invalid.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> import numpy as np
        >>> buffer = ReplayBuffer(
        ...     "replay_data",
        ...     max_episodes=1000,
        ...     max_timesteps=500,
        ...     fields={"state": ("float", 3), "reward": "float"},
        ...     meta_fields={"task": "int"},
        ...     circular=True,
        ... )
        >>> for task in range(2):
        ...     with buffer.one_episode(task=task):
        ...         for step in range(4):
        ...             buffer.store(state=np.zeros(3), reward=1.0)
        >>> buffer.num_episodes
        2
        >>> buffer.close()
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a ReplayBuffer", "open its folder again, ReplayBuffer.from_folder(folder)")

    def __init__(
        self,
        folder: str | Path,
        max_episodes: int,
        max_timesteps: int,
        fields: Mapping[str, Any],
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool = False,
        overwrite: bool = False,
    ) -> None:
        config = Config(
            whole_number("max_episodes", max_episodes, 1),
            whole_number("max_timesteps", max_timesteps, 1),
            parse_fields("fields", fields),
            parse_fields("meta_fields", meta_fields or {}),
            bool(circular),
        ).checked()
        self._begin(EpisodeFolder.write(Path(folder), config, overwrite=overwrite))

    @classmethod
    def from_folder(cls, folder: str | Path, read_only: bool = False) -> Self:
        """Open the buffer in a folder with its own configuration.

        Args:
            folder: Folder of the episodes.
            read_only: Open for reading only, also while another process writes: the episodes that
                are there now.

        Raises:
            ValueError: The folder holds no buffer.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
        """
        buffer = cls.__new__(cls)
        path = Path(folder)
        buffer._begin(
            EpisodeFolder.read(path)
            if read_only
            else EpisodeFolder.write(path, None, overwrite=False)
        )
        return buffer

    def _begin(self, stored: EpisodeFolder) -> None:
        self.folder = stored.path
        self._stored = stored
        stored.users.add(self)
        self._steps: dict[str, list[np.ndarray]] | None = None  # of the open episode

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The underlying Stepwell replay, with fields ``observation/NAME``."""
        return self._stored.replay

    @property
    def num_episodes(self) -> int:
        """Episodes stored."""
        return self._stored.total - self._stored.oldest

    def __len__(self) -> int:
        return self.num_episodes

    @contextlib.contextmanager
    def one_episode(self, **meta_data: object) -> Generator[dict[str, object]]:
        """Open an episode, and store it on leaving the context; an exception discards it.

        Args:
            **meta_data: Fields of the episode.

        Yields:
            A dict for fields of the episode that become known later.

        Raises:
            ValueError: There is no room, or another episode is open.
        """
        stored, config = self._stored, self._stored.config
        stored.check_writable("one_episode")
        if self._steps is not None:
            raise ValueError(
                "one_episode: expected no open episode, got one; leave its block first"
            )
        stored.check_room()
        metas = _whole_metas(config, meta_data)
        later: dict[str, object] = {}
        self._steps = {name: [] for name in config.fields}
        try:
            yield later
            if later:
                check_names("one_episode", later, config.meta_fields)
                metas |= _converted_metas(config, later)
            steps = {name: np.stack(rows) for name, rows in self._steps.items() if rows}
        finally:
            self._steps = None
        if steps:
            stored.add(steps, metas)

    def store(self, **data: object) -> None:
        """Add a step to the open episode; missing fields, and those that are None, get defaults.

        Raises:
            ValueError: A value does not fit, or no episode is open; nothing was added.
        """
        self._stored.check_writable("store")
        config = self._stored.config
        check_names("store", data, config.fields)
        if self._steps is None:
            raise ValueError(
                "store: expected an open episode, got none; call it within one_episode()"
            )
        most = config.max_timesteps
        if len(next(iter(self._steps.values()))) == most:
            raise ValueError(
                f"store: expected at most max_timesteps={most} steps in an episode, got "
                f"{most + 1}; make it larger"
            )
        values = {
            name: field.full(()) if data.get(name) is None else field.convert(data[name]).copy()
            for name, field in config.fields.items()
        }
        for name, value in values.items():
            self._steps[name].append(value)

    def store_episode(self, **data: object) -> None:
        """Store a whole episode.

        Args:
            **data: Fields of steps ``[T, ...]``, and of the episode; missing ones get defaults.

        Raises:
            ValueError: A value does not fit; nothing was stored.
        """
        stored = self._stored
        stored.check_writable("store_episode")
        config = stored.config
        check_names("store_episode", data, {**config.fields, **config.meta_fields})
        given = {
            name: config.fields[name].convert(value, (-1,))
            for name, value in data.items()
            if name in config.fields
        }
        lengths = {name: len(values) for name, values in given.items()}
        steps = next(iter(lengths.values()), 0)
        if len(set(lengths.values())) != 1 or not steps:
            raise ValueError(
                f"all fields must have the same time dimension: expected at least one step, and "
                f"as many in each field of steps, got "
                f"{lengths or 'none of ' + ', '.join(config.fields)}"
            )
        if steps > config.max_timesteps:
            raise ValueError(
                f"an episode of {steps} steps: expected at most "
                f"max_timesteps={config.max_timesteps}; make it larger"
            )
        metas = {name: value for name, value in data.items() if name in config.meta_fields}
        stored.add(
            {
                name: given[name] if name in given else field.full((steps,))
                for name, field in config.fields.items()
            },
            _whole_metas(config, metas),
        )

    def dataloader(
        self,
        batch_size: int,
        n_steps: int | None = None,
        *,
        fields: Names = None,
        current_fields: Names = None,
        next_fields: Names = None,
        sequence_fields: Names = None,
        filter_meta: Mapping[str, object] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_mask: bool = False,
        timestep_level: bool = False,
        to_named_tuple: Names = None,
        **options: Any,
    ) -> Any:
        """A `torch.utils.data.DataLoader` of the episodes that are stored now.

        Its batches are whole episodes, zero padded in time, with their lengths ``_lens``; with
        ``timestep_level`` single steps; with ``n_steps`` transitions. All have the fields of the
        episodes.

        Args:
            batch_size: Items per batch.
            n_steps: Items are transitions of up to ``n_steps`` steps, ``n_step_lens``; the last
                ones of an episode have fewer.
            fields: Fields of steps; None for all.
            current_fields: With ``n_steps``: fields of the first step; None for all.
            next_fields: With ``n_steps``: fields of the step after the last one, with the prefix
                ``next_``; None for all.
            sequence_fields: With ``n_steps``: fields of all its steps, zero padded, with the prefix
                ``seq_``; None for none.
            filter_meta: Only episodes whose fields have these values.
            fieldname_map: Names by names of the batches, all different.
            return_mask: Add ``_mask`` [B, T] bool to batches of episodes: False after their ends.
            timestep_level: Items are single steps.
            to_named_tuple: Names of the fields of a named tuple, which drops their leading ``_``;
                None for dicts.
            **options: Arguments of DataLoader, such as ``shuffle``, ``drop_last`` or
                ``num_workers``. Each worker opens the folder for itself.

        Raises:
            ValueError: The buffer is empty, or arguments contradict each other.
            ImportError: PyTorch is not installed.
        """
        if n_steps is not None and timestep_level:
            raise ValueError("n_steps and timestep_level: expected one of the two, got both")
        if return_mask and (n_steps is not None or timestep_level):
            raise ValueError("return_mask is only supported for trajectory-level data")
        self._stored.check_open()
        if not self.num_episodes:
            raise ValueError(
                f"the replay buffer is empty: expected at least 1 episode in {self.folder}, got 0; "
                f"store one first"
            )
        # The data set is of the episodes that are there now: those of later are not in it.
        chosen = SlotReader(self._stored), filter_meta, fieldname_map
        dataset: Any
        if n_steps is not None:
            names = current_fields, next_fields, sequence_fields
            dataset = Transitions(n_steps, *names, *chosen)
        elif timestep_level:
            dataset = Steps(fields, *chosen)
        else:
            dataset = Trajectories(fields, *chosen, return_mask=return_mask)
        return make_loader(dataset, to_named_tuple, {"batch_size": batch_size, **options})

    def close(self) -> None:
        """Release the files; an open episode is lost.

        If another buffer of this process has the folder open, closing that one releases them.
        """
        self._stored.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _whole_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    """All fields of an episode; missing ones get defaults."""
    if metas:
        check_names("meta fields", metas, config.meta_fields)
    defaults = {name: field.full(()) for name, field in config.meta_fields.items()}
    return defaults | _converted_metas(config, metas)


def _converted_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    fields = config.meta_fields
    return {name: fields[name].convert(value).copy() for name, value in metas.items()}
