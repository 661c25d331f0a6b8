"""The buffer of memmap-replay-buffer, on a Stepwell store."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from stepwell.buffers.dropin.memmap.columns import (
    StoredColumn,
    columns_of,
    lengths_by_slot,
    metas_by_slot,
)
from stepwell.buffers.dropin.memmap.declared import Codecs
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.opening import asked_for, opened
from stepwell.buffers.dropin.memmap.recorder import EpisodeRecorder, batch_of
from stepwell.buffers.dropin.memmap.revision import revise, revise_metas, revise_step
from stepwell.buffers.dropin.memmap.staging import checked_names, whole_episode
from stepwell.buffers.replay import SequenceReplayBuffer

if TYPE_CHECKING:
    from stepwell.buffers.dropin.memmap.collector import EpisodeCollector

__all__ = ["ReplayBuffer"]

Names = Sequence[str] | None
Filter = Mapping[str, object] | None


class ReplayBuffer:
    """Episodes of declared fields in a folder, read as episodes, steps or n-step transitions.

    An episode is kept in RAM while it is played, and stored whole when it ends: when that returns
    it is durable. What was not ended is not there, for anybody, and leaves nothing behind. Episodes
    stand in slots 0 to ``max_episodes - 1``; that is what episode indices mean here.

    A folder that exists is continued. All buffers of one process that write into one folder are the
    same; another process may read it meanwhile (``read_only=True`` and `refresh`).

    Args:
        folder: Where the episodes are kept.
        max_episodes: How many there can be.
        max_timesteps: Steps of an episode at most.
        fields: What each step has: name to ``"float"``, ``"int"``, ``"bool"`` or ``"uint8"``, or to
            a tuple of that, a shape and, if wanted, a default. ``...`` for what the folder has.
        meta_fields: What each episode has, declared in the same way.
        circular: The oldest episode makes room for a new one. None: no, or as the folder has it
            where ``fields`` is ``...``.
        overwrite: Remove the episodes that are there.
        read_only: Write nothing.
        flush_every_store_step: Without effect: what has ended is durable, what has not is in RAM.
        codec: How new fields are kept, for all or by name, as in
            `SequenceReplayBuffer`; None chooses by their types.

    Raises:
        ValueError: The folder holds something else, was made with other arguments, or arguments do
            not go together.
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
        asked = asked_for(path, max_episodes, max_timesteps, fields, meta_fields, circular)
        self.flush_every_store_step = flush_every_store_step
        self._begin(opened(path, asked, codec, overwrite=overwrite, read_only=read_only))

    @classmethod
    def from_folder(cls, folder: str | Path, read_only: bool = False) -> Self:
        """Open the buffer in a folder, as it was declared.

        Args:
            folder: Where the episodes are.
            read_only: Write nothing, as another process may do meanwhile.

        Raises:
            ValueError: There is none.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
        """
        buffer = cls.__new__(cls)
        buffer.flush_every_store_step = 1
        buffer._begin(opened(Path(folder), None, None, overwrite=False, read_only=read_only))
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
        self._recorder = EpisodeRecorder(stored)

    def __reduce__(self) -> tuple[Callable[..., ReplayBuffer], tuple[object, ...]]:
        return type(self).from_folder, (self.folder, True)

    @cached_property
    def memory_namedtuple(self) -> Any:
        """The class of what `store` returns."""
        names: Any = list(self.stored.config.fields)
        return namedtuple("Memory", names)

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The Stepwell replay beneath: fields are ``observation/NAME``. Changes are not in it."""
        return self.stored.replay

    @property
    def num_episodes(self) -> int:
        """Episodes stored."""
        return min(self.stored.total, self.max_episodes)

    @property
    def episode_index(self) -> int:
        """Slot that the next episode gets."""
        return self.stored.total % self.max_episodes

    @property
    def timestep_index(self) -> int:
        """Steps of the episode that is being played."""
        return self._recorder.steps

    @property
    def is_new_episode(self) -> bool:
        """Nothing was added to the next episode yet."""
        return self.timestep_index == 0

    @property
    def episode_lens(self) -> np.ndarray:
        """Steps of the episode in each slot, [max_episodes] int32; 0 where there is none."""
        return lengths_by_slot(self.stored)

    @property
    def data(self) -> dict[str, StoredColumn]:
        """Steps by field, to be read like arrays ``[max_episodes, max_timesteps, ...]``."""
        return columns_of(self.stored)

    @property
    def meta_data(self) -> dict[str, np.ndarray]:
        """Values of episodes by field, ``[max_episodes, ...]``, in new memory."""
        return metas_by_slot(self.stored)

    def __len__(self) -> int:
        return self.num_episodes

    @contextlib.contextmanager
    def one_episode(self, **meta_data: object) -> Generator[dict[str, object]]:
        """An episode: what is stored inside is kept when it is left, and nothing on an exception.

        Args:
            **meta_data: Fields of the episode.

        Yields:
            A dict for fields of the episode that are known at its end only.

        Raises:
            ValueError: There is no room, or another episode is being played.
        """
        self.stored.check_writable("one_episode")
        with self._recorder.playing(None, meta_data) as later:
            yield later

    @contextlib.contextmanager
    def batched_episode(self, batch_size: int, **meta_batch: object) -> Generator[None]:
        """Episodes of several envs that end together, stored by `store_batch`.

        Args:
            batch_size: How many.
            **meta_batch: Fields of the episodes, ``[batch_size, ...]``.
        """
        self.stored.check_writable("batched_episode")
        with self._recorder.playing(batch_size, meta_batch):
            yield

    def store(self, **data: object) -> Any:
        """Add a step to the episode; fields that are left out, or None, get their defaults.

        Returns:
            The step as a named tuple of arrays.

        Raises:
            ValueError: Something does not fit; nothing was added.
        """
        self.stored.check_writable("store")
        step = self._recorder.stage(None, lambda staged: staged.add(data))
        return self.memory_namedtuple(*step.values())

    def store_batch(self, **data: object) -> None:
        """Add a step to each of several episodes, values ``[batch, ...]``.

        Raises:
            ValueError: Something does not fit; nothing was added.
        """
        self.stored.check_writable("store_batch")
        checked_names("store_batch", data, self.stored.config.fields)
        self._recorder.stage(batch_of(data), lambda staged: staged.add(data))

    def store_meta_batch(self, **data: object) -> None:
        """Set fields of the episodes that `store_batch` adds steps to, values ``[batch, ...]``."""
        self.stored.check_writable("store_meta_batch")
        checked_names("store_meta_batch", data, self.stored.config.meta_fields)
        self._recorder.stage(batch_of(data), lambda staged: staged.put_metas(data))

    def advance_episode(self, batch_size: int = 1) -> None:
        """End the episode, or those of a batch: it is stored. Without any step nothing happens.

        Args:
            batch_size: How many episodes end.

        Raises:
            ValueError: That is not how many were being played.
        """
        self.stored.check_writable("advance_episode")
        self._recorder.advance(batch_size)

    def discard_episode(self) -> None:
        """Forget the steps of the episode that is being played."""
        self._recorder.discard()

    def store_episode(self, **data: object) -> None:
        """Store a whole episode.

        Args:
            **data: Fields of steps ``[T, ...]``, and of the episode; what is left out gets the
                default.

        Raises:
            ValueError: Something does not fit; nothing was stored.
        """
        self.store_episodes([data])

    def store_episodes(self, episodes: Iterable[Mapping[str, object]]) -> None:
        """Store whole episodes, which is faster than one by one.

        Args:
            episodes: Each as `store_episode` takes it.

        Raises:
            ValueError: Something does not fit; nothing was stored.
        """
        self.stored.check_writable("store_episode")
        made = [whole_episode(self.stored.config, data) for data in episodes]
        if made:
            self.stored.add(made)

    def clear(self) -> None:
        """Remove all episodes for good, and the one that is being played."""
        self.stored.check_writable("clear")
        self.stored.clear()
        self._recorder.discard()

    reset_ = clear

    def flush(self) -> None:
        """Nothing: what has ended is durable already."""
        self.stored.check_open()

    def refresh(self) -> bool:
        """Take up what another process has stored since; only with ``read_only=True``.

        Returns:
            Whether there was anything new.
        """
        if not self.read_only:
            return False
        return self.stored.refresh()

    def close(self) -> None:
        """Release the files; an episode that is being played is lost.

        Where another buffer of this process has the folder open, that happens when it is closed.
        """
        self._recorder.discard()
        self.stored.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, indices: Any = None, **data: object) -> None:
        """Set fields of stored episodes, all of it or nothing; when it returns it is durable.

        Args:
            indices: Which episodes: one, a list, an array, a slice; None for all.
            **data: Fields of steps, ``[episodes, T, ...]`` from the first step on, and of
                episodes, ``[episodes, ...]``; of one episode without the first axis. An axis of
                one is broadcast, as a number is: of steps it sets the first one. Values after an
                episode's end are left out.

        Raises:
            ValueError: Something does not fit; nothing was changed.
        """
        self.stored.check_writable("update")
        revise(self.stored, indices, data)

    def store_datapoint(
        self, episode_index: int, timestep_index: int, name: str, datapoint: object
    ) -> None:
        """Change one step of a stored episode, or of the one that is being played."""
        self.stored.check_writable("store_datapoint")
        staged = self._recorder.at(episode_index)
        if staged is not None:
            staged.put(timestep_index, name, datapoint)
        else:
            revise_step(self.stored, [episode_index], timestep_index, name, datapoint, ())

    def store_batch_datapoint(
        self, episode_indices: Any, timestep_index: int, name: str, datapoints: object
    ) -> None:
        """Change the same step of several stored episodes, values ``[episodes, ...]``."""
        self.stored.check_writable("store_batch_datapoint")
        lead = np.atleast_1d(episode_indices).shape
        revise_step(self.stored, episode_indices, timestep_index, name, datapoints, lead)

    def store_meta_datapoint(self, episode_index: int, name: str, datapoint: object) -> None:
        """Change a field of a stored episode, or of the one that is being played."""
        self.stored.check_writable("store_meta_datapoint")
        staged = self._recorder.at(episode_index)
        if staged is not None:
            staged.put_metas({name: datapoint})
        else:
            self.store_batch_meta_datapoint([episode_index], name, [datapoint])

    def store_batch_meta_datapoint(
        self, episode_indices: Any, name: str, datapoints: object
    ) -> None:
        """Change a field of several stored episodes, values ``[episodes, ...]``."""
        self.stored.check_writable("store_meta_datapoint")
        revise_metas(self.stored, episode_indices, name, datapoints)

    def get_all_data(
        self, fields: Names = None, meta_fields: Names = None, device: object = None
    ) -> dict[str, Any]:
        """All episodes as tensors ``[episodes, longest, ...]`` and ``[episodes, ...]`` by name.

        Args:
            fields: Names of the fields of steps; with ``meta_fields`` given too None means none.
            meta_fields: Names of the fields of episodes, ``episode_lens`` among them.
            device: Where the tensors go.
        """
        from stepwell.buffers.dropin.memmap.whole_buffer import all_data

        return all_data(self.stored, fields, meta_fields, device)

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
        """What is stored now as a dataset: of episodes, or of steps, or of n-step transitions.

        Args:
            n_steps: Transitions of up to so many steps: `ReplayDatasetNStep`.
            fields: Names of what is given out of each step; None for all.
            current_fields: With ``n_steps``: of the first step.
            next_fields: With ``n_steps``: of the later step.
            sequence_fields: With ``n_steps``: of all steps in between.
            timestep_level: Single steps: `ReplayDatasetTimestep`.
            filter_meta: Only episodes of which these fields have these values.
            filter_fields: Only steps of which these fields have these values.
            fieldname_map: Other names for what is given out.
            slice_by_episode_len: Episodes without what would come after their ends.
            return_episode_lens: Give each episode's number of steps, ``_lens``.
            return_indices: Give where each item comes from.
            include_metadata: Give the fields of episodes too.

        Raises:
            ValueError: Nothing is stored, or arguments do not go together.
            ImportError: PyTorch is not installed.
        """
        from stepwell.buffers.dropin.memmap import datasets

        if not len(self):
            raise ValueError("the replay buffer is empty, expected an episode: store one first")
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
            return datasets.ReplayDatasetNStep(self, n_steps, *wanted, **shared)
        if timestep_level:
            return datasets.ReplayDatasetTimestep(self, fields, **shared)
        return datasets.ReplayDatasetTrajectory(
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
            batch_size: Items of a batch.
            n_steps: See `dataset`.
            dataset: Another dataset than that, such as a `ReplayDatasetTimeWindow`.
            fields: See `dataset`.
            current_fields: See `dataset`.
            next_fields: See `dataset`.
            sequence_fields: See `dataset`.
            filter_meta: See `dataset`.
            filter_fields: See `dataset`.
            fieldname_map: See `dataset`.
            return_indices: See `dataset`.
            return_mask: Give ``_mask`` [B, T] bool with episodes: False after their ends.
            timestep_level: See `dataset`.
            to_named_tuple: Names that make up a named tuple, without leading ``_``; None gives
                dicts.
            shuffle: In another order each time.
            device: Where the tensors go, also from workers.
            dataset_kwargs: Further arguments of `dataset`.
            drop_last: Leave out the last batch where it is smaller.
            num_workers: Processes that read; each opens the folder itself.
            sampler: As DataLoader has it, like all that follow.
            pin_memory: Put batches in pinned memory.
            timeout: Seconds to wait for a worker.
            worker_init_fn: Called in each worker.
            multiprocessing_context: How workers are started.
            generator: Of the order, for ``shuffle``.
            prefetch_factor: Batches that a worker prepares.
            persistent_workers: Keep them from pass to pass; what is stored or changed meanwhile
                they do not see.

        Raises:
            ValueError: Nothing is stored, or arguments do not go together.
            ImportError: PyTorch is not installed.
        """
        from stepwell.buffers.dropin.memmap.loading import Finish, make_loader

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
        finish = Finish(padded if is_padded else None, return_mask, to_named_tuple, device)
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
        """What gathers the steps of several envs and stores them as episodes.

        Args:
            num_groups: How many envs.
            fieldnames: Fields of steps that it gathers; None for all.
            meta_fieldnames: Fields of episodes; None for all.
            strict: Refuse other fields; else they are left out.
        """
        from stepwell.buffers.dropin.memmap.collector import EpisodeCollector

        return EpisodeCollector(
            self, num_groups, fieldnames=fieldnames, meta_fieldnames=meta_fieldnames, strict=strict
        )

    create_rollout_collector = create_collector
