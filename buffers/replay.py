"""The object that a learner holds: sequences drawn from stored episodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np

from stepwell.buffers import json_values
from stepwell.buffers.digest import Digest
from stepwell.buffers.episode import Chunk, Episode
from stepwell.buffers.errors import NotEnoughData, SpecMismatch, StoreCorrupt, StoreLocked
from stepwell.buffers.sampling.requests import (
    Align,
    BatchRequest,
    BatchT,
    Borders,
    Draw,
    Episodes,
    Sequences,
    Transitions,
    check_priority_alpha,
)
from stepwell.buffers.spec import Codec, Spec
from stepwell.buffers.storage.chunk_index import Counters
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.publish import check_complete, publish
from stepwell.buffers.storage.disk.storage import DiskStorage, OnCorrupt
from stepwell.buffers.storage.episode_filter import Where
from stepwell.buffers.storage.joined import JoinedStorage, open_many
from stepwell.buffers.storage.memory import MemoryStorage, check_capacity
from stepwell.buffers.storage.protocol import Storage

if TYPE_CHECKING:
    from stepwell.buffers.sampling.batch import Batch, TransitionBatch
    from stepwell.buffers.sampling.epoch import Epoch
    from stepwell.buffers.sampling.loader import Loader, To
    from stepwell.buffers.sampling.sampler import Sampler

__all__ = ["SequenceReplayBuffer"]

Folder: TypeAlias = "str | os.PathLike[str]"
Rng: TypeAlias = np.random.Generator


class SequenceReplayBuffer:
    """Keeps episodes, in RAM or in a folder, and draws sequences of rows from them.

    What the rows are is settled by the first `Collector` that writes into it, or by what the folder
    already holds: an existing store is continued, never overwritten.

    Args:
        path: Folder of the store; None keeps everything in RAM.
        capacity: Steps to keep at most, the oldest go first; None keeps everything.
        capacity_bytes: Bytes of RAM or disk to take at most.
        codecs: How fields are kept, by field name, where the Spec's choice is not wanted:
            ``{"observation": "raw"}`` samples at the speed of a memory copy.
        seed: Seed of the replay's own generator; None draws one from the system.
        threads: Threads that copy and decompress a batch of 1 MiB or more, while it is drawn and
            only then; 1 uses none but the caller's, None at most four.
        priority_alpha: With ``draw="priorities"`` items are drawn in proportion to
            ``priority**priority_alpha``.

    Raises:
        ValueError: The folder holds something else than a store, or a capacity is not positive.
        StoreLocked: Another process writes into the store.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(capacity=10_000, seed=0)
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=200)
        >>> batch = replay.sample_sequences(4, length=8)
        >>> batch.observation.shape, batch.reward.shape
        ((4, 8, 4), (4, 8))
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        codecs: Mapping[str, Codec] | None = None,
        seed: int | None = None,
        threads: int | None = None,
        priority_alpha: float = 0.6,
    ) -> None:
        check_capacity(capacity, capacity_bytes)
        check_priority_alpha(priority_alpha)
        self._path = None if path is None else Path(path)
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._codecs = codecs or {}
        self._rng = np.random.default_rng(seed)
        self._threads = threads
        self._alpha = priority_alpha
        self._storage: Storage | None = None
        self._sampler: Sampler | None = None
        self._total_bytes = 0
        if self._path is not None and DiskStorage.exists(self._path):
            self._use(
                DiskStorage.open(self._path, capacity=capacity, capacity_bytes=capacity_bytes)
            )

    @classmethod
    def open(
        cls,
        path: Folder | Sequence[Folder],
        *,
        weights: Sequence[float] | None = None,
        read_only: bool = False,
        on_corrupt: OnCorrupt = "raise",
        seed: int | None = None,
        threads: int | None = None,
        priority_alpha: float = 0.6,
    ) -> SequenceReplayBuffer:
        """Open the store in a folder that must exist, or several stores as one.

        Args:
            path: Folder of the store. Of several folders one after the other the stores are read as
                one, without copying, and none is written into.
            weights: With several folders: for each the share of the sequences that are drawn from
                it; None draws uniformly over the sequences of all.
            read_only: Take no lock and write nothing; several processes may do so at once, also
                while another one writes: `refresh` takes up what it has stored.
            on_corrupt: What to do about damaged chunks: ``"raise"``, or, with ``read_only``,
                ``"skip"`` them; `lost_chunks` counts them.
            seed: Seed of the replay's own generator.
            threads: Threads that copy and decompress a large batch.
            priority_alpha: Power to which priorities are raised.

        Raises:
            StoreNotFound: There is no store in the folder, or it is one that a copy or an import
                has not completed.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
            StoreCorrupt: Something in it is not what was written.
            SpecMismatch: The stores hold different fields.
            ValueError: The weights are not one number >= 0 for each folder.
        """
        replay = cls(seed=seed, threads=threads, priority_alpha=priority_alpha)
        for folder in [path] if isinstance(path, str | os.PathLike) else path:
            check_complete(Path(folder))
        if not isinstance(path, str | os.PathLike):
            replay._use(open_many(path, weights, on_corrupt))
            return replay
        if weights is not None:
            raise ValueError("weights: expected a list of folders with them, got one folder")
        replay._path = Path(path)
        replay._use(DiskStorage.open(path, read_only=read_only, on_corrupt=on_corrupt))
        return replay

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM, and where several are read as one."""
        return self._path

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most; None keeps everything."""
        storage = self._storage
        return storage.capacity if isinstance(storage, DiskStorage) else self._capacity

    @property
    def is_bound(self) -> bool:
        """It is settled what the rows are."""
        return self._storage is not None

    @property
    def storage(self) -> Storage:
        """Where the chunks are kept.

        Raises:
            NotEnoughData: Nothing was collected yet, so it is not known what the rows are.
        """
        if self._storage is None:
            raise NotEnoughData(
                "the replay is empty: expected at least one collected step, got none; collect first"
            )
        return self._storage

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        return self.storage.spec

    @property
    def steps(self) -> int:
        """Env steps ever added; what was evicted counts too."""
        return 0 if self._storage is None else self._storage.table.total_steps

    @property
    def episodes(self) -> int:
        """Episodes of which rows are stored, unfinished and cut ones included."""
        return 0 if self._storage is None else self._storage.table.episodes

    @property
    def total_bytes(self) -> int:
        """Bytes of the chunks added through this object, as they were stored."""
        return self._total_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored chunks take."""
        return 0 if self._storage is None else self._storage.nbytes

    @property
    def is_being_written(self) -> bool:
        """A living process, perhaps this one, has the store in the folder open for writing."""
        return isinstance(self._storage, DiskStorage) and self._storage.is_being_written

    @property
    def lost_chunks(self) -> int:
        """Chunks that are left out as damaged."""
        return 0 if self._storage is None else self._storage.lost_chunks

    def __repr__(self) -> str:
        path = "" if self._path is None else f"{str(self._path)!r}, "
        fields = "" if self._storage is None else f", fields=({self.spec.summary})"
        return (
            f"SequenceReplayBuffer({path}capacity={self.capacity}, steps={len(self)}, "
            f"episodes={self.episodes}{fields})"
        )

    def __len__(self) -> int:
        """Env steps stored now."""
        return 0 if self._storage is None else self._storage.table.steps

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here, the oldest first: recipe, seed, versions, ..."""
        return () if self._storage is None else self._storage.sessions

    def bind(self, spec: Spec, session: Mapping[str, object]) -> None:
        """Settle what the rows are, and note that a run begins to write them.

        Args:
            spec: The fields of every row. The first call settles them, with this replay's codecs;
                as long as no row was ever stored, another call may change them.
            session: JSON-able facts about the run. Under ``recipe`` stands what the envs are: it
                must not change either.

        Raises:
            SpecMismatch: The replay holds other rows, or rows of other envs.
        """
        if self._storage is None:
            self._use(self._new_storage(spec.with_codecs(self._codecs)))
        difference = _difference(self.storage, spec, session)
        if difference and not self._rebind(spec.with_codecs(self._codecs)):
            where = "this replay" if self._path is None else str(self._path)
            raise SpecMismatch(
                f"{where} holds other data: {difference}; open another folder, or make the envs as "
                f"they were"
            )
        self.storage.append_session(session)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks of episodes; when it returns they are kept for good.

        Raises:
            NotEnoughData: `bind` was not called yet.
            ValueError: A chunk does not continue its episode; nothing was stored.
        """
        table = self.storage.table
        before = table.base + len(table)
        self.storage.add(chunks)
        self._total_bytes += int(table.records["nbytes"][max(0, before - table.base) :].sum())

    @contextlib.contextmanager
    def filled_at_once(self, doing: str) -> Generator[SequenceReplayBuffer]:
        """Fill a new replay that has a folder so that its store is complete, or not there at all.

        Args:
            doing: What is going on, as in "a copy".

        Yields:
            Where to write. In RAM that is this replay. Else it is one with the same options, whose
            store gets the folder's name when the block ends; then this replay holds it. After an
            error, or when the process is killed, the folder is not there.

        Raises:
            ValueError: Something is in the folder.
            StoreLocked: Another process fills it.
        """
        if self._path is None:
            yield self
            return
        with publish(self._path, doing) as part:
            written = SequenceReplayBuffer(
                part,
                capacity=self._capacity,
                capacity_bytes=self._capacity_bytes,
                codecs=self._codecs,
            )
            with written:
                yield written
        try:
            self._use(DiskStorage.open(self._path))
        except BaseException as error:
            error.add_note(f"kept: all of it, in {self._path}")
            raise
        self._total_bytes = written.total_bytes

    def drop_before(self, row_id: int) -> None:
        """Give back the memory, or files, that hold nothing but rows older than one.

        A capacity does so by itself. Rows that share their memory or file with newer ones stay.

        Args:
            row_id: Id of the oldest row that is still wanted, as in ``batch.ids``.
        """
        self.storage.drop_before(row_id)

    def sample(
        self, request: BatchRequest[BatchT], *, out: BatchT | None = None, rng: Rng | None = None
    ) -> BatchT:
        """Draw what a request asks for.

        `sample_sequences`, `sample_transitions` and `sample_episodes` are the same, spelled out.
        Several threads may draw at once, while one other writes.

        Args:
            request: `Sequences`, `Transitions` or `Episodes`.
            out: A batch of an equal request, whose large arrays are used again: it means nothing
                from then on.
            rng: Source of randomness; the replay's own generator when None.

        Raises:
            NotEnoughData: Nothing stored is what is asked for.
            ValueError: The request makes no sense, in itself or for this data.
            StoreCorrupt: Stored bytes are not what was written.
        """
        return self._require_sampler().sample(request, out, self._rng if rng is None else rng)

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        borders: Borders = "inside",
        draw: Draw = "steps",
        align: Align = "arrival",
        burn_in: int = 0,
        stack: bool = False,
        fields: Sequence[str] | None = None,
        state: Sequence[str] = (),
        time_major: bool = False,
        beta: float = 0.4,
        where: Where | None = None,
        out: Batch | None = None,
        rng: Rng | None = None,
    ) -> Batch:
        """Draw sequences of rows, by default uniformly and each in one episode.

        Args:
            batch_size: Number of sequences, B >= 1.
            length: Rows in each sequence, T >= 1.
            borders: What a sequence does at the borders of episodes: ``"inside"`` one,
                ``"cross"`` into the stream's next one, ``"pad_after"`` or ``"pad_before"`` with
                rows that ``mask`` leaves out.
            draw: How they are chosen: uniformly over ``"steps"``, or so and ``"distinct"``, or over
                ``"episodes"``, at their ``"ends"``, ``"recent"`` ones rather, the ``"newest"`` once
                each, or by ``"priorities"``.
            align: Which reward and flags stand beside an observation: those of its ``"arrival"``,
                or those of the ``"transition"`` that begins with it. T transitions need T + 1 rows.
            burn_in: Rows before the first one, for bringing a recurrent state up to date (R2D2,
                Kapturowski et al. 2019); those before the reset are padding. The batch has
                ``burn_in + T`` rows.
            stack: Give frame-stacked observations as the env gave them, ``[B, T, k, ...]``; else
                single frames ``[B, T, ...]``. Only for envs that stack frames.
            fields: Names of the fields to hand out, or first parts of them, as in ``"extra"``; None
                for all. Flags are always there.
            state: Names of extras that are wanted of each sequence's first stored row alone: the
                recurrent state that the policy had there.
            time_major: Give arrays ``[T, B, ...]``, contiguous but for stacks.
            beta: With ``draw="priorities"`` how far ``weights`` make up for them, from 0 to 1.
            where: Only from episodes whose metadata is so: a mapping of keys to the values that
                they must have, or a function of the metadata. Each episode is asked about once; of
                a function that is made anew for every call, all are asked about each time.
            out: A batch of an equal request, whose large arrays are used again.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, T, ...]`` in memory owned by the caller.

        Raises:
            NotEnoughData: No stored episode that is wanted has ``length`` rows.
            ValueError: An argument makes no sense, in itself or for this data.
            StoreCorrupt: Stored bytes are not what was written.
        """
        request = Sequences(
            batch_size,
            length,
            borders,
            draw,
            align,
            burn_in,
            stack,
            fields,
            state,
            time_major,
            beta,
            where,
        )
        return self.sample(request, out=out, rng=rng)

    def sample_transitions(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        draw: Draw = "steps",
        stack: bool = True,
        fields: Sequence[str] | None = None,
        beta: float = 0.4,
        where: Where | None = None,
        out: TransitionBatch | None = None,
        rng: Rng | None = None,
    ) -> TransitionBatch:
        """Draw transitions of up to ``n_step`` steps, by default uniformly.

        Near the end of an episode, or of what is stored of it, fewer steps are used; only a
        termination ends the value there.

        Args:
            batch_size: Number of transitions, B >= 1.
            n_step: Env steps from an observation to the next one, n >= 1.
            gamma: Discount of a step.
            draw: How they are chosen; see `sample_sequences`.
            stack: Give frame-stacked observations as the env gave them, ``[B, k, ...]``; else
                single frames ``[B, ...]``.
            fields: Names of the fields to hand out, or first parts of them; None for all.
            beta: With ``draw="priorities"`` how far ``weights`` make up for them, from 0 to 1.
            where: Only from episodes whose metadata is so; see `sample_sequences`.
            out: A batch of an equal request, whose large arrays are used again.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, ...]`` in memory owned by the caller; learn from
            ``reward + discount * value(next_observation)``.

        Raises:
            NotEnoughData: No stored episode that is wanted has a step.
            ValueError: An argument makes no sense, in itself or for this data.
            StoreCorrupt: Stored bytes are not what was written.

        Example:
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=100)
            >>> batch = replay.sample_transitions(32, n_step=3, draw="priorities")
            >>> batch.observation.shape, batch.next_observation.shape, batch.reward.shape
            ((32, 4), (32, 4), (32,))
            >>> td_error = batch.reward - 1.0
            >>> replay.update_priorities(batch.ids, td_error)
            0
        """
        request = Transitions(batch_size, n_step, gamma, draw, stack, fields, beta, where)
        return self.sample(request, out=out, rng=rng)

    def sample_episodes(
        self,
        batch_size: int,
        *,
        align: Align = "arrival",
        stack: bool = False,
        fields: Sequence[str] | None = None,
        time_major: bool = False,
        where: Where | None = None,
        rng: Rng | None = None,
    ) -> Batch:
        """Draw whole episodes uniformly, with replacement, as far as they are stored.

        Args:
            batch_size: Number of episodes, B >= 1.
            align: See `sample_sequences`.
            stack: See `sample_sequences`.
            fields: Names of the fields to hand out, or first parts of them; None for all.
            time_major: Give arrays ``[T, B, ...]``, as views.
            where: Only those whose metadata is so; see `sample_sequences`.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, T, ...]``, where T is the length of the longest one; ``mask`` leaves out
            what comes after the others, and ``lengths`` tells where that begins. One by one, in a
            list: `iter_episodes`.

        Raises:
            NotEnoughData: No episode that is wanted is stored.
            ValueError: An argument makes no sense, in itself or for this data.
            StoreCorrupt: Stored bytes are not what was written.
        """
        return self.sample(Episodes(batch_size, align, stack, fields, time_major, where), rng=rng)

    def take(self, request: BatchRequest[BatchT], ids: np.ndarray) -> BatchT:
        """What a request asks for, of rows that the caller chooses, in the order given.

        Args:
            request: Its ``batch_size``, ``draw`` and ``where`` mean nothing here.
            ids: [B] int64: ids of the rows that the items begin with, as in ``batch.ids``.

        Raises:
            NotEnoughData: A row is not stored any more, or no such item begins with it.
            ValueError: The ids are not integers [B], or the request makes no sense.

        Example:
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=100)
            >>> batch = replay.sample_sequences(4, length=8)
            >>> again = replay.take(sw.Sequences(4, length=8), batch.ids)
            >>> (again.observation == batch.observation).all()
            np.True_
        """
        return self._require_sampler().at(request, ids)

    def field_rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """One field of rows that the caller chooses, in the order given, and nothing else.

        Args:
            name: The field, as the spec has it; single frames under frame stacking.
            ids: [B] int64: ids of the rows; that of a batch's row t, in a chunk that was stored at
                once, is ``batch.ids + t``.

        Returns:
            Rows ``[B, ...]`` in the field's dtype, the caller's own.

        Raises:
            NotEnoughData: A row is not stored any more.
            ValueError: There is no such field, or the ids are not integers [B].
            StoreCorrupt: Stored bytes are not what was written.

        Example:
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=100)
            >>> batch = replay.sample_sequences(4, length=8)
            >>> first = replay.field_rows("observation", batch.ids)
            >>> (first == batch.observation[:, 0]).all()
            np.True_
        """
        return self._require_sampler().field_rows(name, ids)

    def count(self, request: BatchRequest[BatchT]) -> int:
        """How many different items a request can draw from: 0 in an empty replay.

        Args:
            request: Its ``batch_size`` and ``draw`` mean nothing here.

        Raises:
            ValueError: The request makes no sense, in itself or for this data.
        """
        return 0 if self._storage is None else self._require_sampler().count(request)

    def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set how often what was drawn with ``draw="priorities"`` is drawn from now on.

        Proportional prioritization: Schaul et al., Prioritized Experience Replay (2016). An item of
        priority p is drawn in proportion to ``p**alpha``; a new one has the largest p ever given.

        Args:
            ids: [B] int64, as in the batch.
            priorities: [B] float: TD errors, say; ``abs(priorities) + 1e-6`` counts.

        Returns:
            How many were ignored, because their rows were evicted meanwhile.

        Raises:
            ValueError: The arrays are not of this form, or nothing was drawn by priorities yet.
        """
        return self._require_sampler().update_priorities(ids, priorities)

    def epoch(
        self,
        request: BatchRequest[BatchT],
        *,
        stride: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ) -> Epoch[BatchT]:
        """Everything that is stored once, in batches, without replacement; see `Epoch`.

        Args:
            request: What to give out; its ``draw`` means nothing here.
            stride: Of sequences only those that begin at every ``stride``-th row of their episode.
            shuffle: In a random order; else the oldest first.
            seed: Seed of the orders.
            shard: Number of this share, from 0 on, and number of shares.
            drop_last: Leave out the last batch where it is smaller.
        """
        from stepwell.buffers.sampling.epoch import Epoch  # few programs need it

        return Epoch(
            self._require_sampler(),
            request,
            stride=stride,
            shuffle=shuffle,
            seed=seed,
            shard=shard,
            drop_last=drop_last,
        )

    def loader(
        self,
        source: BatchRequest[BatchT] | Epoch[BatchT],
        *,
        prefetch: int = 2,
        threads: int = 1,
        to: To = "numpy",
        device: object = None,
        pin_memory: bool = False,
        reuse: bool = False,
    ) -> Loader[BatchT]:
        """An iterator over batches that are drawn ahead in threads; see `Loader`.

        Args:
            source: A request, of which batches are drawn without end, or what `epoch` gave.
            prefetch: Batches that are ready, or in the making, while the caller has one, >= 1.
            threads: Threads that draw, >= 1; with one the batches are those that `sample` gives.
            to: ``"torch"`` puts tensors in place of the arrays.
            device: Where torch puts the tensors, such as ``"cuda"``.
            pin_memory: Put them in pinned memory first.
            reuse: A batch is valid only until the next one is taken: its memory is used again.

        Raises:
            ValueError: Options do not go together, or the request makes no sense.
            ImportError: Tensors are asked for, and PyTorch is not installed.

        Example:
            >>> import itertools
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=100)
            >>> with replay.loader(sw.Sequences(16, length=8)) as batches:
            ...     [batch.reward.shape for batch in itertools.islice(batches, 2)]
            [(16, 8), (16, 8)]
        """
        from stepwell.buffers.sampling.epoch import Epoch
        from stepwell.buffers.sampling.loader import Loader  # few programs need it

        draw = source if isinstance(source, Epoch) else self._endless(source)
        return Loader(
            draw,
            prefetch=prefetch,
            threads=threads,
            to=to,
            device=device,
            pin_memory=pin_memory,
            reuse=reuse,
        )

    def torch_dataset(
        self,
        request: Sequences | Transitions | Episodes,
        *,
        seed: int = 0,
        epoch: bool = False,
        shard: tuple[int, int] = (0, 1),
        stride: int = 1,
    ) -> Any:
        """A `torch.utils.data.IterableDataset`, right with any number of workers.

        Give it to a ``DataLoader`` with ``batch_size=None``. Each worker opens the replay's folder
        itself.

        Args:
            request: What to draw.
            seed: Seed of all draws and orders, >= 0.
            epoch: Give everything that is stored once, over all workers and shards together, and
                then end. By default draws never end.
            shard: Number of this share, from 0 on, and number of shares.
            stride: With ``epoch``, sequences that begin at every ``stride``-th row.

        Raises:
            ImportError: PyTorch is not installed.
            NotEnoughData: The replay is empty.
            ValueError: An argument is out of range, or workers cannot draw so.
        """
        from stepwell.buffers.sampling.torch_dataset import torch_dataset  # few programs need it

        return torch_dataset(self, request, seed=seed, epoch=epoch, shard=shard, stride=stride)

    def iter_episodes(self, *, where: Where | None = None) -> Iterator[Episode]:
        """Stored episodes, the oldest first, decoded one at a time.

        What is added meanwhile is not seen.

        Args:
            where: Only those whose metadata is so; see `sample_sequences`.
        """
        if self._storage is None:
            return iter(())
        return self._require_sampler().episodes(where)

    def refresh(self) -> bool:
        """Take up what another process has stored since; between two calls nothing changes.

        Returns:
            Whether there was anything new.

        Raises:
            ValueError: The replay writes itself: it was not opened with ``read_only=True``.
            StoreCorrupt: Something new is not what was written.
        """
        return self.storage.refresh()

    def state_dict(self) -> dict[str, Any]:
        """What a restored replay needs, beside the stored rows, to draw the very same batches."""
        sampler = None if self._sampler is None else self._sampler.state()
        return _state_of(self._storage, self._rng) | {"sampler": sampler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the replay of `state_dict` would have.

        What was stored since stays, so the same batches follow if nothing was.

        Raises:
            ValueError: The state is that of another store, or of a later state of this one, or none
                at all; nothing has changed.
        """
        known = _checked_state(state, self._storage, self._rng)
        if known.get("sampler") is not None:
            self._require_sampler().restore(known["sampler"])
        self._rng.bit_generator.state = known["generator"]

    def save_checkpoint(
        self, learner: Mapping[str, object] | None = None, *, name: str = "latest"
    ) -> None:
        """Keep the replay's state, and the learner's, beside the data; when it returns for good.

        Costs what the state costs: the rows are there already.

        Args:
            learner: JSON-able values and numpy arrays, nested in mappings and lists.
            name: Letters, digits, - and _; a checkpoint of that name is replaced.

        Raises:
            ValueError: The replay is in RAM, or was opened with ``read_only=True``.
            TypeError: Something else is in the learner's state.

        Example:
            >>> import tempfile
            >>> import stepwell as sw
            >>> with sw.SequenceReplayBuffer(tempfile.mkdtemp(), seed=0) as replay:
            ...     envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            ...     with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...         report = collector.collect(steps=100)
            ...     replay.save_checkpoint({"updates": 3})
            ...     replay.load_checkpoint()
            {'updates': 3}
        """
        state = {"replay": self.state_dict(), "learner": dict(learner or {})}
        self._disk().save_checkpoint(name, state)

    def load_checkpoint(self, name: str = "latest") -> dict[str, Any]:
        """Go on as the replay of `save_checkpoint` would have, and return the learner's state.

        Raises:
            StoreNotFound: There is no checkpoint of that name.
            StoreCorrupt: Its bytes are not what was written.
            ValueError: It is that of another store, or of a later state of this one.
        """
        state = self._disk().load_checkpoint(name)
        where = f"checkpoint {name!r} of {self.path}"
        replay, learner = _parts_of_checkpoint(state, self._rng, where)
        self.load_state_dict(replay)
        return learner

    def digest(self) -> str:
        """Fingerprint of all rows stored now, 16 hexadecimal digits: equal data, equal digest.

        It is that of the `CollectReport` as long as one Collector alone has written here and
        nothing was evicted. All rows are decoded for it.
        """
        digest = Digest()
        for episode in self.iter_episodes():
            place = episode.id, episode.stream, episode.first_row, episode.end
            digest.update(Chunk(*place, episode.fields))
        return digest.hexdigest()

    def close(self) -> None:
        """Release files and locks; closing twice is harmless."""
        if self._sampler is not None:
            self._sampler.close()
        if self._storage is not None:
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _endless(self, request: BatchRequest[BatchT]) -> Callable[[BatchT | None], BatchT]:
        """Draws, again and again."""
        sampler = self._require_sampler()
        sampler.check(request)  # now, not in a thread
        return lambda out: sampler.sample(request, out, self._rng)

    def _disk(self) -> DiskStorage:
        if not isinstance(self.storage, DiskStorage):
            raise ValueError(
                "a checkpoint is kept in the replay's folder, expected a replay with a path: give "
                "SequenceReplayBuffer one, or keep state_dict() yourself"
            )
        return self.storage

    def _new_storage(self, spec: Spec) -> Storage:
        if self._path is None:
            return MemoryStorage(spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes)
        try:
            return DiskStorage.create(
                self._path, spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes
            )
        except (ValueError, StoreLocked) as error:
            # There was no store when this replay was made.
            if isinstance(error, StoreLocked) or DiskStorage.exists(self._path):
                _refuse_new_store(self._path)
            raise

    def _rebind(self, spec: Spec) -> bool:
        """Give another Spec to a storage that never held a row; False where it did."""
        storage = self._storage
        if isinstance(storage, DiskStorage):
            if storage.is_read_only or not storage.replace_spec(spec):
                return False
        elif isinstance(storage, MemoryStorage) and storage.table.counters == Counters():
            self._use(self._new_storage(spec))
        else:
            return False
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        return True

    def _use(self, storage: Storage) -> None:
        self._storage = storage

    def _require_sampler(self) -> Sampler:
        if self._sampler is None:
            # Not before: a program that only collects need not load it.
            from stepwell.buffers.sampling.sampler import Sampler

            with self.storage.lock:
                self._sampler = self._sampler or Sampler(self.storage, self._threads, self._alpha)
        return self._sampler


def _refuse_new_store(path: Path) -> None:
    """Refuse a folder in which another process has made a store since this replay began.

    Raises:
        StoreLocked: A living process writes into the store.
        ValueError: No process does.
    """
    try:
        StoreFolder(path, Files()).lock().close()
    except StoreLocked as error:
        raise StoreLocked(
            f"{path} is being written by {error.holder}: expected a new folder; wait for its end, "
            f"or choose another folder",
            holder=error.holder,
        ) from None
    if DiskStorage.exists(path):
        raise ValueError(
            f"{path} holds a store by now: expected a new folder, as it was when this began; open "
            f"it again to go on in it (--resume), or choose another folder"
        ) from None


def _state_of(storage: Storage | None, rng: np.random.Generator) -> dict[str, Any]:
    """The state that a restored replay needs in addition to the stored rows."""
    return {
        "store": _name_of(storage),
        "pieces": _count_of(storage),
        "generator": rng.bit_generator.state,
    }


def _checked_state(
    state: Mapping[str, object], storage: Storage | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Check a state of `_state_of`; the sampler checks its own part.

    Args:
        state: The state, from an untrusted source.
        storage: The replay's storage.
        rng: The replay's generator.

    Raises:
        ValueError: It is the state of another store, a later state of this one, or no state.
    """
    checked = _checked_form(dict(state), rng)
    if checked["store"] != _name_of(storage):
        raise ValueError(
            f"the state is that of store {str(checked['store'])[:100]}, expected "
            f"{_name_of(storage)}: load it into the replay that it was taken from"
        )
    if checked["pieces"] > _count_of(storage):
        raise ValueError(
            f"the state was taken when {checked['pieces']} chunks had been stored, this store has "
            f"had {_count_of(storage)}: restore both from one copy"
        )
    return checked


def _checked_form(state: object, rng: np.random.Generator) -> dict[str, Any]:
    checked = json_values.mapping(state, "state of a replay")
    json_values.member(checked, "store")
    json_values.whole(json_values.member(checked, "pieces"), "pieces")
    generator: Any = json_values.member(checked, "generator")
    kind = type(rng.bit_generator)
    try:
        kind(0).state = generator
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"generator: expected the state of a {kind.__name__}, got another: {error}"
        ) from None
    if checked.get("sampler") is not None:  # a state of version 0.1 has none
        json_values.mapping(checked["sampler"], "sampler")
    return checked


def _parts_of_checkpoint(
    state: Mapping[str, object], rng: np.random.Generator, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The replay's state and the learner's state in a checkpoint.

    Raises:
        StoreCorrupt: It holds something else.
    """
    try:
        replay = _checked_form(json_values.member(state, "replay"), rng)
        return replay, json_values.mapping(json_values.member(state, "learner"), "learner")
    except ValueError as error:
        raise StoreCorrupt(
            f"{name} holds no state of a replay: {error}; remove it, or restore it from a copy"
        ) from error


def _name_of(storage: Storage | None) -> object:
    """The name of a store, or a list of names for joined stores; one in RAM has none."""
    if isinstance(storage, JoinedStorage):
        return [_name_of(each) for each in storage.storages]
    return storage.store if isinstance(storage, DiskStorage) else None


def _count_of(storage: Storage | None) -> int:
    """Number of chunks ever stored."""
    if isinstance(storage, JoinedStorage):
        return sum(map(_count_of, storage.storages))
    return 0 if storage is None else storage.table.base + len(storage.table)


def _difference(
    storage: Storage, spec: Spec, session: Mapping[str, object], *, spec_only: bool = False
) -> str | None:
    """The first difference between the stored rows, or their envs, and those of a new run.

    Args:
        storage: Holds the rows; its codecs do not matter.
        spec: The Spec of the new rows.
        session: Facts about the new run.
        spec_only: Compare the fields alone.
    """
    codecs: dict[str, Codec] = {field.name: field.codec for field in storage.spec.fields}
    shared: dict[str, Codec] = {name: codecs[name] for name in spec.names if name in codecs}
    difference = storage.spec.difference(spec.with_codecs(shared))
    sessions = storage.sessions
    if difference or spec_only or not sessions:
        return difference
    return _difference_within("", sessions[0].get("recipe", {}), session.get("recipe", {}))


def _difference_within(path: str, before: object, now: object) -> str | None:
    """The first difference between two recipes, by the path of keys that leads to it."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return None if before == now else f"{path} of the envs was {before!r}, is {now!r}"
    old, new = cast("Mapping[str, object]", before), cast("Mapping[str, object]", now)
    # A file is identified by its bytes, whatever its name.
    keys = ["sha256"] if "sha256" in old and "sha256" in new else sorted({*old, *new})
    found = (
        _difference_within(f"{path}.{key}" if path else key, old.get(key), new.get(key))
        for key in keys
    )
    return next(filter(None, found), None)
