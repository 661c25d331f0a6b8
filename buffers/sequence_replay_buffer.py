"""The object that a learner holds: sequences drawn from stored episodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np

from stepwell.buffers.batch import Batch
from stepwell.buffers.digest import Digest
from stepwell.buffers.disk.storage import DiskStorage, OnCorrupt
from stepwell.buffers.episode import Episode, Piece
from stepwell.buffers.episode_filter import Where
from stepwell.buffers.errors import NotEnoughData, SpecMismatch
from stepwell.buffers.memory_storage import MemoryStorage, check_capacity
from stepwell.buffers.sequence_reader import SequenceReader
from stepwell.buffers.spec import Codec, Spec
from stepwell.buffers.storage import Storage

__all__ = ["SequenceReplayBuffer"]


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
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        on_corrupt: OnCorrupt = "raise",
        seed: int | None = None,
        threads: int | None = None,
    ) -> SequenceReplayBuffer:
        """Open the store in a folder that must exist.

        Args:
            path: Folder of the store.
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
        """
        replay = cls(seed=seed, threads=threads)
        replay._path = Path(path)
        replay._use(DiskStorage.open(replay._path, read_only=read_only, on_corrupt=on_corrupt))
        return replay

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM."""
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
        difference = self._difference(spec, session)
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
            where: Only episodes whose metadata is so; see `sample_sequences`.
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

    def _new_storage(self, spec: Spec) -> Storage:
        if self._path is None:
            return MemoryStorage(spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes)
        return DiskStorage.create(
            self._path, spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes
        )

    def _difference(self, spec: Spec, session: Mapping[str, object]) -> str | None:
        """In what the rows, or the envs behind them, are not those that are stored."""
        stored: dict[str, Codec] = {field.name: field.codec for field in self.spec.fields}
        shared: dict[str, Codec] = {name: stored[name] for name in spec.names if name in stored}
        difference = self.spec.difference(spec.with_codecs(shared))
        if difference or not self.sessions:
            return difference
        before = cast("dict[str, object]", self.sessions[0].get("recipe", {}))
        now = cast("dict[str, object]", session.get("recipe", {}))
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                return f"{key} of the envs was {before.get(key)!r}, is {now.get(key)!r}"
        return None

    def _use(self, storage: Storage) -> None:
        self._storage = storage
        self._reader = SequenceReader(storage, self._threads)

    def _reader_in_force(self) -> SequenceReader:
        if self._reader is None:
            self._reader = SequenceReader(self.storage, self._threads)
        return self._reader
