"""The buffer of memmap-replay-buffer, on a Stepwell store."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from stepwell.buffers.dropin.memmap.collector import EpisodeCollector
from stepwell.buffers.dropin.memmap.config import (
    Codecs,
    Config,
    MemmapField,
    check_names,
    parse_fields,
    read_marker,
)
from stepwell.buffers.dropin.memmap.datasets import (
    BatchFinish,
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTrajectory,
    make_loader,
    to_device,
)
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder, SlotReader
from stepwell.buffers.dropin.memmap.writer import Edit, OpenEpisodes, batch_size_of, whole_episode
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.tensors import load_torch
from stepwell.buffers.whole_numbers import whole_number

__all__ = ["ReplayBuffer"]

Names = Sequence[str] | None
Filter = Mapping[str, object] | None


class ReplayBuffer:
    """Episodes of typed fields in a folder, read as episodes, steps or n-step transitions.

    An open episode is kept in RAM and stored as a whole when it ends; it is durable when that call
    returns. An episode that never ends is never visible, and leaves no files.
    Episode indices are slots, 0 to ``max_episodes - 1``.

    An existing folder is continued. All buffers of one process that write into the same folder
    share their episodes; another process may read it at the same time (``read_only=True`` and
    `refresh`).

    Args:
        folder: Folder of the episodes.
        max_episodes: Number of slots.
        max_timesteps: Steps of the longest episode.
        fields: Fields of a step: name to ``"float"``, ``"int"``, ``"bool"`` or ``"uint8"``, or to a
            tuple of that, a shape and, optionally, a default. ``...`` uses the folder's fields.
        meta_fields: Fields of an episode, in the same notation.
        circular: True if a new episode replaces the oldest one when the buffer is full. None means
            False, or the folder's setting if ``fields`` is ``...``.
        overwrite: Remove the stored episodes.
        read_only: Open for reading only.
        flush_every_store_step: Has no effect: episodes are durable when they end.
        codec: Codecs of new fields, one for all or by name, as in `SequenceReplayBuffer`; None
            chooses by type and shape.

    Raises:
        ValueError: The folder holds something else or has another configuration, or arguments
            contradict each other.
        StoreLocked: Another process writes into the folder.

    Example:
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
        ...             _ = buffer.store(state=np.zeros(3), reward=1.0)
        >>> buffer.num_episodes, buffer.episode_lens[:3].tolist()
        (2, [4, 4, 0])
        >>> buffer.close()
    """

    def __init__(
        self,
        folder: str | Path,
        max_episodes: int,
        max_timesteps: int,
        fields: Any,
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool | None = None,
        overwrite: bool = False,
        read_only: bool = False,
        flush_every_store_step: int = 1,
        *,
        codec: Codecs = None,
    ) -> None:
        if flush_every_store_step < 0:
            raise ValueError(
                f"flush_every_store_step: expected a number >= 0, got {flush_every_store_step}"
            )
        path = Path(folder)
        config = _config(path, max_episodes, max_timesteps, fields, meta_fields, circular)
        if read_only and overwrite:
            raise ValueError(
                "overwrite=True: expected a buffer to write into, got read_only=True; leave one out"
            )
        self.flush_every_store_step = flush_every_store_step
        self._begin(
            EpisodeFolder.read(path, config)
            if read_only
            else EpisodeFolder.write(path, config, codec, overwrite=overwrite)
        )

    @classmethod
    def from_folder(cls, folder: str | Path, read_only: bool = False) -> Self:
        """Open the buffer in a folder with its own configuration.

        Args:
            folder: Folder of the episodes.
            read_only: Open for reading only, also while another process writes.

        Raises:
            ValueError: The folder holds no buffer.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
        """
        buffer = cls.__new__(cls)
        buffer.flush_every_store_step = 1
        path = Path(folder)
        buffer._begin(
            EpisodeFolder.read(path, None)
            if read_only
            else EpisodeFolder.write(path, None, None, overwrite=False)
        )
        return buffer

    def _begin(self, stored: EpisodeFolder) -> None:
        config = stored.config
        self.stored = stored
        stored.users.add(self)
        self.folder = stored.path
        self.max_episodes = config.max_episodes
        self.max_timesteps = config.max_timesteps
        self.circular = config.circular
        self.read_only = stored.is_read_only
        self.fieldnames = set(config.fields)
        self.meta_fieldnames = {*config.meta_fields, "episode_lens"}
        self.shapes = {name: field.shape for name, field in config.fields.items()}
        self.dtypes = {name: field.dtype for name, field in config.fields.items()}
        metas = config.meta_fields.items()
        self.meta_shapes = {name: field.shape for name, field in metas} | {"episode_lens": ()}
        self.meta_dtypes = {name: field.dtype for name, field in metas}
        self._open = OpenEpisodes(stored)

    def __reduce__(self) -> tuple[Callable[..., ReplayBuffer], tuple[object, ...]]:
        return type(self).from_folder, (self.folder, True)

    @cached_property
    def memory_namedtuple(self) -> Any:
        """The named tuple class of the steps that `store` returns."""
        names: Any = list(self.stored.config.fields)
        return namedtuple("Memory", names)

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The underlying Stepwell replay, with fields ``observation/NAME``; `update` leaves it."""
        return self.stored.replay

    @property
    def num_episodes(self) -> int:
        """Episodes stored."""
        return min(self.stored.total, self.max_episodes)

    @property
    def episode_index(self) -> int:
        """Slot of the next episode."""
        return self.stored.total % self.max_episodes

    @property
    def timestep_index(self) -> int:
        """Steps of the open episode."""
        return self._open.steps

    @property
    def is_new_episode(self) -> bool:
        """True if the open episode has no step yet."""
        return self.timestep_index == 0

    @property
    def episode_lens(self) -> np.ndarray:
        """Steps of the episode in each slot, [max_episodes] int32; 0 in an empty slot."""
        lengths = np.zeros(self.max_episodes, np.int32)
        stored = SlotReader(self.stored).lengths
        lengths[: len(stored)] = stored
        return lengths

    @property
    def data(self) -> dict[str, _StoredSteps]:
        """Fields of steps by name, indexed like arrays ``[max_episodes, max_timesteps, ...]``."""
        fields = self.stored.config.fields
        return {name: _StoredSteps(self.stored, field) for name, field in fields.items()}

    @property
    def meta_data(self) -> dict[str, np.ndarray]:
        """Fields of episodes by name, new arrays ``[max_episodes, ...]``."""
        reader = SlotReader(self.stored)
        found = {"episode_lens": self.episode_lens}
        for name, field in self.stored.config.meta_fields.items():
            found[name] = field.full((self.max_episodes,))
            found[name][: len(reader.numbers)] = reader.metas([name], reader.numbers)[name]
        return found

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
        self.stored.check_writable("one_episode")
        with self._open.context(None, meta_data) as later:
            yield later

    @contextlib.contextmanager
    def batched_episode(self, batch_size: int, **meta_batch: object) -> Generator[None]:
        """Open several episodes that end together, for steps of `store_batch`.

        Args:
            batch_size: Number of episodes.
            **meta_batch: Fields of the episodes, ``[batch_size, ...]``.
        """
        self.stored.check_writable("batched_episode")
        with self._open.context(batch_size, meta_batch):
            yield

    def store(self, **data: object) -> Any:
        """Add a step to the open episode; missing fields, and those that are None, get defaults.

        Returns:
            The step as a named tuple of arrays.

        Raises:
            ValueError: A value does not fit; nothing was added.
        """
        self.stored.check_writable("store")
        return self.memory_namedtuple(*self._open.add(None, data).values())

    def store_batch(self, **data: object) -> None:
        """Add a step to each of several open episodes, values ``[batch, ...]``.

        Raises:
            ValueError: A value does not fit; nothing was added.
        """
        self.stored.check_writable("store_batch")
        check_names("store_batch", data, self.stored.config.fields)
        self._open.add(batch_size_of(data), data)

    def store_meta_batch(self, **data: object) -> None:
        """Set fields of the open episodes of `store_batch`, values ``[batch, ...]``."""
        self.stored.check_writable("store_meta_batch")
        check_names("store_meta_batch", data, self.stored.config.meta_fields)
        self._open.set_metas(batch_size_of(data), data)

    def advance_episode(self, batch_size: int = 1) -> None:
        """End the open episodes and store them; does nothing without an open episode.

        Args:
            batch_size: Number of episodes.

        Raises:
            ValueError: Another number of episodes is open.
        """
        self.stored.check_writable("advance_episode")
        self._open.advance(batch_size)

    def discard_episode(self) -> None:
        """Discard the open episode."""
        self._open.discard()

    def store_episode(self, **data: object) -> None:
        """Store a whole episode.

        Args:
            **data: Fields of steps ``[T, ...]``, and of the episode; missing ones get defaults.

        Raises:
            ValueError: A value does not fit; nothing was stored.
        """
        self.store_episodes([data])

    def store_episodes(self, episodes: Iterable[Mapping[str, object]]) -> None:
        """Store whole episodes at once, which is faster than one by one.

        Args:
            episodes: The arguments of `store_episode`, for each episode.

        Raises:
            ValueError: A value does not fit; nothing was stored.
        """
        self.stored.check_writable("store_episode")
        checked = [whole_episode(self.stored.config, data) for data in episodes]
        if checked:
            self.stored.add(checked)

    def clear(self) -> None:
        """Remove all episodes permanently, and the open one."""
        self.stored.check_writable("clear")
        self.stored.clear()
        self._open.discard()

    reset_ = clear

    def flush(self) -> None:
        """Do nothing: episodes are durable when they end."""
        self.stored.check_open()

    def refresh(self) -> bool:
        """Read what another process has stored since; only with ``read_only=True``.

        Returns:
            Whether there was anything new.
        """
        if not self.read_only:
            return False
        return self.stored.refresh()

    def close(self) -> None:
        """Release the files; an open episode is lost.

        If another buffer of this process has the folder open, closing that one releases them.
        """
        self._open.discard()
        self.stored.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, indices: Any = None, **data: object) -> None:
        """Set fields of stored episodes, all or none; they are durable when this returns.

        Args:
            indices: Slots: a number, a list, an array, a slice; None for all.
            **data: Fields of steps, ``[episodes, T, ...]`` from the first step on, and of
                episodes, ``[episodes, ...]``; without the first axis for a single episode. Axes of
                length 1 are broadcast. A scalar sets the first step of a field of steps. Values
                after an episode's end are ignored.

        Raises:
            ValueError: A value does not fit; nothing was changed.
        """
        self.stored.check_writable("update")
        edit = Edit(self.stored, indices)
        edit.set_fields(data)
        edit.commit()

    def store_datapoint(
        self, episode_index: int, timestep_index: int, name: str, datapoint: object
    ) -> None:
        """Change one step of a stored episode, or of the open one."""
        self.stored.check_writable("store_datapoint")
        if self._open.is_at(episode_index):
            self._open.set_step(timestep_index, name, datapoint)
        else:
            edit = Edit(self.stored, [episode_index])
            edit.set_step(timestep_index, name, datapoint, ())
            edit.commit()

    def store_batch_datapoint(
        self, episode_indices: Any, timestep_index: int, name: str, datapoints: object
    ) -> None:
        """Change the same step of several stored episodes, values ``[episodes, ...]``."""
        self.stored.check_writable("store_batch_datapoint")
        lead = np.atleast_1d(episode_indices).shape
        edit = Edit(self.stored, episode_indices)
        edit.set_step(timestep_index, name, datapoints, lead)
        edit.commit()

    def store_meta_datapoint(self, episode_index: int, name: str, datapoint: object) -> None:
        """Change a field of a stored episode, or of the open one."""
        self.stored.check_writable("store_meta_datapoint")
        if self._open.is_at(episode_index):
            self._open.set_metas(None, {name: datapoint})
        else:
            self.store_batch_meta_datapoint([episode_index], name, [datapoint])

    def store_batch_meta_datapoint(
        self, episode_indices: Any, name: str, datapoints: object
    ) -> None:
        """Change a field of several stored episodes, values ``[episodes, ...]``."""
        self.stored.check_writable("store_meta_datapoint")
        edit = Edit(self.stored, episode_indices)
        edit.set_metas(name, datapoints)
        edit.commit()

    def get_all_data(
        self, fields: Names = None, meta_fields: Names = None, device: object = None
    ) -> dict[str, Any]:
        """All episodes as tensors ``[episodes, longest, ...]`` and ``[episodes, ...]`` by name.

        Args:
            fields: Fields of steps; None for all, or for none if ``meta_fields`` is given.
            meta_fields: Fields of episodes, including ``episode_lens``; None for all, or for none
                if ``fields`` is given.
            device: Device of the tensors.

        Returns:
            Tensors in the order of the slots, with a field's default after an episode's end; an
            empty dict if no episode is stored.

        Raises:
            ValueError: A field is unknown.
            ImportError: PyTorch is not installed.
        """
        torch = load_torch("get_all_data")
        config, reader = self.stored.config, SlotReader(self.stored)
        if fields is None and meta_fields is None:
            fields, meta_fields = tuple(config.fields), (*config.meta_fields, "episode_lens")
        names, metas = tuple(fields or ()), tuple(meta_fields or ())
        for chosen, known in (names, config.fields), (metas, self.meta_shapes):
            for name in chosen:
                if name not in known:
                    raise ValueError(
                        f"get_all_data: expected some of {', '.join(known)}, got {name!r}"
                    )
        if not len(reader.numbers):
            return {}
        values = reader.episodes(names, reader.numbers)
        for name in names:
            if config.fields[name].default:
                is_after = np.arange(values[name].shape[1]) >= reader.lengths[:, None]
                values[name][is_after] = config.fields[name].default
        stored_metas = [name for name in metas if name != "episode_lens"]
        values |= reader.metas(stored_metas, reader.numbers)
        if len(stored_metas) < len(metas):
            values["episode_lens"] = reader.lengths.astype(np.int32)
        ordered = {name: torch.from_numpy(values[name]) for name in (*names, *metas)}
        return to_device(ordered, device)  # type: ignore[no-any-return]

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
    ) -> Any:
        """A dataset of the stored episodes, of their steps, or of n-step transitions.

        Args:
            n_steps: Items are transitions of up to ``n_steps`` steps: `ReplayDatasetNStep`.
            fields: Fields of steps; None for all.
            current_fields: With ``n_steps``: fields of the first step.
            next_fields: With ``n_steps``: fields of the later step.
            sequence_fields: With ``n_steps``: fields of all steps in between.
            timestep_level: Items are single steps: `ReplayDatasetTimestep`.
            filter_meta: Only episodes whose fields have these values.
            filter_fields: Only steps whose fields have these values.
            fieldname_map: Output names by field name.
            slice_by_episode_len: Only an episode's own steps.
            return_episode_lens: Add each episode's number of steps, ``_lens``.
            return_indices: Add the slot, and the step, of each item.
            include_metadata: Add the fields of episodes.

        Raises:
            ValueError: The buffer is empty, or arguments contradict each other.
            ImportError: PyTorch is not installed.
        """
        if not len(self):
            raise ValueError(
                f"the replay buffer is empty: expected at least 1 episode in {self.folder}, got 0; "
                f"store one first"
            )
        if n_steps is not None and timestep_level:
            raise ValueError("n_steps and timestep_level: expected one of the two, got both")
        shared: dict[str, Any] = {
            "fieldname_map": fieldname_map,
            "include_metadata": include_metadata,
            "filter_meta": filter_meta,
            "filter_fields": filter_fields,
            "return_indices": return_indices,
        }
        if n_steps is not None:
            wanted = current_fields, next_fields, sequence_fields
            return ReplayDatasetNStep(self, n_steps, *wanted, **shared)
        if timestep_level:
            return ReplayDatasetTimestep(self, fields, **shared)
        return ReplayDatasetTrajectory(
            self,
            fields,
            slice_by_episode_len=slice_by_episode_len,
            return_episode_lens=return_episode_lens,
            **shared,
        )

    def dataloader(
        self,
        batch_size: int,
        n_steps: int | None = None,
        dataset: Any = None,
        fields: Names = None,
        current_fields: Names = None,
        next_fields: Names = None,
        sequence_fields: Names = None,
        filter_meta: Filter = None,
        filter_fields: Filter = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        return_mask: bool = False,
        timestep_level: bool = False,
        to_named_tuple: Names = None,
        shuffle: bool = False,
        device: object = None,
        dataset_kwargs: Mapping[str, Any] | None = None,
        *,
        drop_last: bool = False,
        num_workers: int = 0,
        sampler: Any = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> Any:
        """A `torch.utils.data.DataLoader` of `dataset`.

        Args:
            batch_size: Items per batch.
            n_steps: See `dataset`.
            dataset: Load this one instead, such as a `ReplayDatasetTimeWindow`.
            fields: See `dataset`.
            current_fields: See `dataset`.
            next_fields: See `dataset`.
            sequence_fields: See `dataset`.
            filter_meta: See `dataset`.
            filter_fields: See `dataset`.
            fieldname_map: See `dataset`.
            return_indices: See `dataset`.
            return_mask: Add ``_mask`` [B, T] bool to batches of episodes: False after their ends.
            timestep_level: See `dataset`.
            to_named_tuple: Names of the fields of a named tuple, which drops their leading ``_``;
                None for dicts.
            shuffle: Draw a new order for every pass.
            device: Device of the tensors, also of those from workers.
            dataset_kwargs: Further arguments of `dataset`.
            drop_last: Skip a smaller last batch.
            num_workers: Number of reading processes; each opens the folder for itself.
            sampler: An argument of DataLoader, like all below.
            pin_memory: Put batches in pinned memory.
            timeout: Seconds to wait for a worker.
            worker_init_fn: Called in each worker.
            multiprocessing_context: Start method of the workers.
            generator: Random generator of ``shuffle``.
            prefetch_factor: Batches that a worker prepares in advance.
            persistent_workers: Keep the workers between passes; they do not see steps that
                are stored or changed meanwhile.

        Raises:
            ValueError: The buffer is empty, or arguments contradict each other.
            ImportError: PyTorch is not installed.
        """
        is_padded = n_steps is None and not timestep_level
        if to_named_tuple is not None and fields is not None:
            raise ValueError("fields and to_named_tuple: expected one of the two, got both")
        if return_mask and not is_padded:
            raise ValueError("return_mask is only supported for trajectory-level data")
        if dataset is None:
            dataset = self.dataset(
                n_steps,
                fields,
                current_fields,
                next_fields,
                sequence_fields,
                timestep_level,
                filter_meta,
                filter_fields,
                fieldname_map,
                return_indices=return_indices,
                **(dataset_kwargs or {}),
            )
        names = fieldname_map or {}
        padded = frozenset(names.get(name, name) for name in self.fieldnames)
        finish = BatchFinish(padded if is_padded else None, return_mask, to_named_tuple, device)
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "num_workers": num_workers,
            "sampler": sampler,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        return make_loader(dataset, finish, options)

    def create_collector(
        self,
        num_groups: int,
        fieldnames: Names = None,
        meta_fieldnames: Names = None,
        strict: bool = True,
    ) -> EpisodeCollector:
        """Create a collector, which gathers steps of several envs and stores them as episodes.

        Args:
            num_groups: Number of envs.
            fieldnames: Fields of steps to gather; None for all.
            meta_fieldnames: Fields of episodes; None for all.
            strict: Reject unknown fields; otherwise they are ignored.
        """
        return EpisodeCollector(
            self, num_groups, fieldnames=fieldnames, meta_fieldnames=meta_fieldnames, strict=strict
        )

    create_rollout_collector = create_collector


class _StoredSteps:
    """A field of steps as an array ``[max_episodes, max_timesteps, ...]``, read when indexed.

    Elements without a step have the field's default.

    Args:
        folder: The folder of the episodes.
        field: The field.
    """

    def __init__(self, folder: EpisodeFolder, field: MemmapField) -> None:
        self._folder = folder
        self._field = field
        config = folder.config
        self.shape = (config.max_episodes, config.max_timesteps, *field.shape)
        self.dtype = field.dtype
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Index like a NumPy array, with slots as the first index; the result is a copy."""
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if first is None or first is Ellipsis:
            return np.asarray(self)[key]
        slots = np.arange(self.shape[0])[first]
        if slots.ndim == 0:
            return self._read(slots[None])[0][rest]
        return self._read(slots)[(slice(None), *rest) if rest else ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # it always is one
        whole = self._read(np.arange(self.shape[0]))
        return whole if dtype is None else whole.astype(dtype)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError(
            f"data[{self._field.name!r}]: expected to be read only, got an assignment; change "
            f"stored steps with update()"
        )

    def _read(self, slots: np.ndarray) -> np.ndarray:
        out = self._field.full((len(slots), self.shape[1]))
        reader = SlotReader(self._folder)
        is_stored = slots < len(reader.numbers)
        if is_stored.any():
            numbers, lengths = reader.numbers[slots[is_stored]], reader.lengths[slots[is_stored]]
            found = reader.episodes([self._field.name], numbers)[self._field.name]
            is_step = np.arange(self.shape[1]) < lengths[:, None]
            part = out[is_stored]
            part[is_step] = found[is_step[:, : found.shape[1]]]
            out[is_stored] = part
        return out


def _config(
    folder: Path,
    max_episodes: int,
    max_timesteps: int,
    fields: Any,
    meta_fields: Any,
    circular: bool | None,
) -> Config:
    """Check the arguments of a buffer."""
    episodes = whole_number("max_episodes", max_episodes, 1)
    timesteps = whole_number("max_timesteps", max_timesteps, 1)
    if fields is ...:
        stored = read_marker(folder).config
        return stored._replace(max_episodes=episodes, max_timesteps=timesteps)
    parsed = parse_fields("fields", fields)
    parsed_metas = parse_fields("meta_fields", meta_fields or {})
    if not parsed:
        raise ValueError("fields: expected at least one, got none")
    twice = parsed.keys() & {*parsed_metas, "episode_lens"} | parsed_metas.keys() & {"episode_lens"}
    if twice:
        raise ValueError(
            f"fields and meta_fields must be disjoint, and episode_lens is always present: got "
            f"{min(twice)!r} twice; rename one"
        )
    return Config(episodes, timesteps, parsed, parsed_metas, bool(circular))
