"""The object that a learner holds: sequences drawn from stored episodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from stepwell.buffers.batch import Batch
from stepwell.buffers.digest import Digest
from stepwell.buffers.disk.options import OnCorrupt
from stepwell.buffers.disk.storage import DiskStorage
from stepwell.buffers.episode import Episode, Piece
from stepwell.buffers.episode_filter import Where
from stepwell.buffers.errors import NotEnoughData, SpecMismatch
from stepwell.buffers.many_storages import open_many
from stepwell.buffers.memory_storage import MemoryStorage, check_capacity
from stepwell.buffers.replay_state import difference_of, restore, state_of
from stepwell.buffers.sequence_reader import SequenceReader
from stepwell.buffers.spec import Codec, Spec
from stepwell.buffers.storage import Storage

__all__ = ["SequenceReplayBuffer"]

Folder: TypeAlias = "str | os.PathLike[str]"


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
        threads: Threads that copy and decompress a batch of 1 MiB or more, while `sample_sequences`
            runs and only then; 1 uses none but the caller's, None at most four.

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
    ) -> None:
        check_capacity(capacity, capacity_bytes)
        self._path = None if path is None else Path(path)
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._codecs = codecs or {}
        self._rng = np.random.default_rng(seed)
        self._threads = threads
        self._storage: Storage | None = None
        self._reader: SequenceReader | None = None
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
    ) -> SequenceReplayBuffer:
        """Open the store in a folder that must exist, or several stores as one.

        Args:
            path: Folder of the store. Of several folders one after the other the stores are read as
                one, without copying, and none is written into.
            weights: With several folders: for each the share of the sequences that are drawn from
                it; None draws uniformly over the sequences of all.
            read_only: Take no lock and write nothing; several processes may do so at once, also
                while another one writes: `refresh` takes up what it has stored.
            on_corrupt: What to do about damaged pieces: ``"raise"``, or, with ``read_only``,
                ``"skip"`` them; `lost_pieces` counts them.
            seed: Seed of the replay's own generator.
            threads: Threads that copy and decompress a large batch.

        Raises:
            StoreNotFound: There is no store in the folder.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
            StoreCorrupt: Something in it is not what was written.
            SpecMismatch: The stores hold different fields.
            ValueError: The weights are not one number >= 0 for each folder.
        """
        replay = cls(seed=seed, threads=threads)
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
    def is_bound(self) -> bool:
        """It is settled what the rows are."""
        return self._storage is not None

    @property
    def storage(self) -> Storage:
        """Where the pieces are kept.

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
        """Bytes of the pieces added through this object, as they were stored."""
        return self._total_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored pieces take."""
        return 0 if self._storage is None else self._storage.nbytes

    @property
    def is_being_written(self) -> bool:
        """A living process, perhaps this one, has the store in the folder open for writing."""
        return isinstance(self._storage, DiskStorage) and self._storage.is_being_written

    @property
    def lost_pieces(self) -> int:
        """Pieces that are left out as damaged."""
        return 0 if self._storage is None else self._storage.lost_pieces

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
            spec: The fields of every row. The first call settles them, with this replay's codecs.
            session: JSON-able facts about the run. Under ``recipe`` stands what the envs are: it
                must not change either.

        Raises:
            SpecMismatch: The replay holds other rows, or rows of other envs.
        """
        if self._storage is None:
            self._use(self._new_storage(spec.with_codecs(self._codecs)))
        difference = difference_of(self.spec, self.sessions, spec, session)
        if difference:
            where = "this replay" if self._path is None else str(self._path)
            raise SpecMismatch(
                f"{where} holds other data: {difference}; open another folder, or make the envs as "
                f"they were"
            )
        self.storage.append_session(session)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Store pieces of episodes; when it returns they are kept for good.

        Raises:
            NotEnoughData: `bind` was not called yet.
            ValueError: A piece does not continue its episode; nothing was stored.
        """
        table = self.storage.table
        before = table.base + len(table)
        self.storage.add(pieces)
        self._total_bytes += int(table.records["nbytes"][max(0, before - table.base) :].sum())

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        stack: bool = False,
        where: Where | None = None,
        rng: np.random.Generator | None = None,
    ) -> Batch:
        """Draw sequences uniformly over all start rows, with replacement, each in one episode.

        Args:
            batch_size: Number of sequences, B >= 1.
            length: Rows in each sequence, T >= 1.
            stack: Give frame-stacked observations as the env gave them, ``[B, T, k, ...]``; else
                single frames ``[B, T, ...]``. Only for envs that stack frames.
            where: Only from episodes whose metadata is so: a mapping of keys to the values that
                they must have, or a function of the metadata. Each episode is asked about once; of
                a function that is made anew for every call, all are asked about each time.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, T, ...]`` in memory owned by the caller.

        Raises:
            NotEnoughData: No stored episode that is wanted has ``length`` rows.
            ValueError: A number is not positive, or ``stack`` is asked of unstacked data.
            StoreCorrupt: Stored bytes are not what was written.
        """
        for name, value in (("batch_size", batch_size), ("length", length)):
            if int(value) != value or value < 1:
                raise ValueError(f"{name}: expected a whole number >= 1, got {value}")
        reader = self._reader_in_force()
        return reader.draw(batch_size, length, stack, where, self._rng if rng is None else rng)

    def iter_episodes(self, *, where: Where | None = None) -> Iterator[Episode]:
        """Stored episodes, the oldest first, decoded one at a time.

        What is added meanwhile is not seen.

        Args:
            where: Only those whose metadata is so; see `sample_sequences`.
        """
        if self._storage is None:
            return iter(())
        return self._reader_in_force().episodes(where)

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
        return state_of(self._storage, self._rng)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the replay of `state_dict` would have.

        What was stored since stays, so the same batches follow if nothing was.

        Raises:
            ValueError: The state is that of another store, or of a later state of this one.
        """
        restore(state, self._storage, self._rng)

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
        """
        state = self._disk().load_checkpoint(name)
        self.load_state_dict(state["replay"])
        learner: dict[str, Any] = state["learner"]
        return learner

    def digest(self) -> str:
        """Fingerprint of all rows stored now, 16 hexadecimal digits: equal data, equal digest.

        It is that of the `CollectReport` as long as one Collector alone has written here and
        nothing was evicted. All rows are decoded for it.
        """
        digest = Digest()
        for episode in self.iter_episodes():
            place = episode.id, episode.stream, episode.first_row, episode.end
            digest.update(Piece(*place, episode.fields))
        return digest.hexdigest()

    def close(self) -> None:
        """Release files and locks; closing twice is harmless."""
        if self._reader is not None:
            self._reader.close()
        if self._storage is not None:
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

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
        return DiskStorage.create(
            self._path, spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes
        )

    def _use(self, storage: Storage) -> None:
        self._storage = storage
        self._reader = SequenceReader(storage, self._threads)

    def _reader_in_force(self) -> SequenceReader:
        if self._reader is None:
            self._reader = SequenceReader(self.storage, self._threads)
        return self._reader
