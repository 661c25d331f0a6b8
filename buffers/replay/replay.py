"""The replay buffer: stores episodes, and draws batches from them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self, TypeAlias, cast, overload

import numpy as np

from ..base import forks, number_checks, untrusted_json
from ..base.errors import NotEnoughData, SpecMismatch, StoreCorrupt, StoreLocked, not_copied
from ..base.number_checks import check_whole, count_in, is_whole, number_of_bytes
from ..base.row_guard import RowGuard
from ..rows.digest import Digest
from ..rows.episode import Chunk, Episode, checked_facts
from ..sampling.requests import (
    Align,
    BatchRequest,
    BatchT,
    Borders,
    Draw,
    Episodes,
    Hindsight,
    Sequences,
    Transitions,
    check_new_priority,
    check_priority_alpha,
    let_through,
    refuse_keywords,
    require_request,
)
from ..spec.space_json import space_of
from ..spec.spec import ArrayTree, Codec, Spec, as_written, check_codecs
from ..storage.chunk_index import Counters
from ..storage.disk.files import Files, LateFiles
from ..storage.disk.folder import StoreFolder, folder_path
from ..storage.disk.publish import check_complete, publish
from ..storage.disk.storage import DiskStorage, OnCorrupt
from ..storage.encoded_chunk import EncodedChunk
from ..storage.episode_filter import Where
from ..storage.joined import JoinedStorage, open_many
from ..storage.protocol import MakeStorage, Storage
from ..storage.ram import MemoryStorage, whole_capacities
from .writer import OWN_LOOP, ReplayWriter, RowSource, check_flush_seconds, declared

if TYPE_CHECKING:
    from ..pictures.film_strip import FilmStrip
    from ..sampling.batch import Batch, TransitionBatch
    from ..sampling.epoch import Epoch
    from ..sampling.loader import Loader, To
    from ..sampling.sampler import Sampler

_LOG = logging.getLogger("stepwell.buffers")

_CACHE_BYTES = 256 << 20  # patches of a million frames of Pong

Folder: TypeAlias = "str | os.PathLike[str]"
Rng: TypeAlias = np.random.Generator


class SequenceReplayBuffer:
    """Stores episodes in RAM or in a folder, and draws batches from them.

    The first `Collector` that writes into it, or the store in the folder, determines the fields of
    a row. An existing store is continued, never overwritten.

    Args:
        path: Folder of the store; None keeps everything in RAM.
        capacity: Steps to keep at most, such as 100_000 or ``"100k"``, the oldest are evicted
            first; None keeps everything.
        capacity_bytes: Bytes of RAM or disk to use at most, such as ``"2GB"``.
        codecs: Codecs of fields, by field name, in place of the defaults:
            ``{"observation": "raw"}`` samples at the speed of a memory copy.
        seed: Seed of the replay's own generator; None draws one from the system.
        threads: Threads that copy and decompress a batch of 1 MiB or more, of patches 8 MiB, while
            it is drawn; 1 uses the caller's alone, None at most four.
        priority_alpha: With ``draw="priorities"`` items are drawn in proportion to
            ``priority**priority_alpha``.
        new_priority: Priority of an item until it is updated; None takes the largest that an item
            in the replay has then.
        cache_bytes: Bytes of RAM for decompressed patches of a store on disk, from which its images
            are drawn nearly as fast as from RAM; the oldest are forgotten first.
        storage: Class of the storage where there is no path, or a function that makes it: one of
            your own can take the place of `MemoryStorage`.

    Raises:
        TypeError: The path is no path, or the codecs are no mapping.
        ValueError: The folder is a file, a codec is unknown, a capacity is not positive, or both a
            path and a storage are given.
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
        capacity: int | str | None = None,
        capacity_bytes: int | str | None = None,
        codecs: Mapping[str, Codec] | None = None,
        seed: int | None = None,
        threads: int | None = None,
        priority_alpha: float = 0.6,
        new_priority: float | None = None,
        cache_bytes: int | str = _CACHE_BYTES,
        storage: MakeStorage = MemoryStorage,
        **_wrong: Never,
    ) -> None:
        if _wrong:
            known = ("path", *(SequenceReplayBuffer.__init__.__kwdefaults__ or ()))
            refuse_keywords(type(self).__name__, _wrong, known)
        if isinstance(capacity, str):
            capacity = count_in("capacity", capacity)
        if isinstance(capacity_bytes, str):
            capacity_bytes = number_of_bytes("capacity_bytes", capacity_bytes)
        if isinstance(cache_bytes, str):
            cache_bytes = number_of_bytes("cache_bytes", cache_bytes) or 0
        capacity, capacity_bytes = whole_capacities(capacity, capacity_bytes)
        check_priority_alpha(priority_alpha)
        check_new_priority(new_priority)
        cache_bytes = number_checks.whole_number("cache_bytes", cache_bytes, 0)
        if path is not None and storage is not MemoryStorage:
            raise ValueError(
                f"storage: expected none with a path, got {storage!r} and {path}; leave one out"
            )
        if is_whole(path):
            raise TypeError(
                f"path: expected the path of a folder or None, got {path}; for a capacity: "
                f"capacity={path}"
            )
        self._make_storage = storage
        self._path = None if path is None else folder_path(path)
        # The same, wherever the program goes.
        self._folder = None if self._path is None else self._path.absolute()
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._codecs = {} if codecs is None else codecs
        check_codecs(self._codecs)
        if not (seed is None or isinstance(seed, int | np.integer)) or (seed or 0) < 0:
            raise ValueError(f"seed: expected a whole number >= 0 or None, got {seed!r}")
        self._rng = forks.generator(seed)
        self._process = os.getpid()
        self._is_torn = False
        forks.watch(self)
        if threads is not None:
            check_whole("threads", threads, 1)
        self._threads = threads
        self._alpha, self._new_priority = priority_alpha, new_priority
        self._cache_bytes = cache_bytes
        self._files = Files()
        # While it is written to, a program that is told to end closes it first.
        self._guard = RowGuard()
        self.write_lock = threading.RLock()
        """Held where a session begins or rows are stored: several threads may write."""
        weakref.finalize(self, self._guard.remove)
        self._storage: Storage | None = None
        self._sampler: Sampler | None = None
        self._total_bytes = 0
        self._writers: list[weakref.ref[ReplayWriter]] = []
        self._before_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        if self._folder is None:
            return
        if DiskStorage.exists(self._folder):
            self._use(
                DiskStorage.open(self._folder, capacity=capacity, capacity_bytes=capacity_bytes)
            )
        elif self._folder.is_file():
            StoreFolder(self._folder, Files()).check_unused()

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
        new_priority: float | None = None,
        cache_bytes: int = _CACHE_BYTES,
    ) -> SequenceReplayBuffer:
        """Open the store in an existing folder, or several stores as one.

        Args:
            path: Folder of the store. The stores in a sequence of folders are read as one, without
                copying and without writing.
            weights: With several folders, the share of the sequences that is drawn from each; None
                draws uniformly over the sequences of all.
            read_only: Take no lock and write nothing. Several processes may do so at once, also
                while another one writes: `refresh` reads the rows that it has stored since.
            on_corrupt: Treatment of damaged chunks: ``"raise"``, or, with ``read_only``, ``"skip"``
                them; `lost_chunks` counts them.
            seed: Seed of the replay's own generator.
            threads: Threads that copy and decompress a large batch.
            priority_alpha: Power to which priorities are raised.
            new_priority: Priority of an item until it is updated; None takes the largest.
            cache_bytes: Bytes of RAM for decompressed patches of images.

        Raises:
            StoreNotFound: There is no store in the folder, or a copy or an import has not completed
                it.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
            StoreCorrupt: Something in it is damaged.
            SpecMismatch: The stores hold different fields.
            ValueError: The weights are not one number >= 0 for each folder, a store is named twice,
                or the path is a URL.
        """
        replay = cls(
            seed=seed,
            threads=threads,
            priority_alpha=priority_alpha,
            new_priority=new_priority,
            cache_bytes=cache_bytes,
        )
        several = np.iterable(path) and not isinstance(path, str | os.PathLike)
        folders: Any = path if several else [path]
        for folder in folders:
            check_complete(folder_path(folder))
        if several:
            replay._use(open_many(folders, weights, on_corrupt))
            return replay
        if weights is not None:
            raise ValueError("weights: expected a list of folders with them, got one folder")
        replay._use(DiskStorage.open(folders[0], read_only=read_only, on_corrupt=on_corrupt))
        replay._path = Path(folders[0])
        replay._folder = replay._path.absolute()
        return replay

    @classmethod
    def of(cls, storage: Storage) -> SequenceReplayBuffer:
        """A replay of the rows in a storage of your own."""
        replay = cls()
        replay._use(storage)
        return replay

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM, and for several stores."""
        return self._path

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most; None keeps everything."""
        storage = self._storage
        return storage.capacity if isinstance(storage, DiskStorage) else self._capacity

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs of fields by name, as they were given; `spec` has those of a bound replay."""
        return dict(self._codecs)

    @property
    def is_bound(self) -> bool:
        """True once the fields of a row are known."""
        return self._storage is not None

    @property
    def storage(self) -> Storage:
        """The storage of the chunks.

        Raises:
            NotEnoughData: Nothing was collected yet, so the fields of a row are not known.
        """
        if self._storage is None:
            where = "in RAM" if self._path is None else str(self._path)
            raise NotEnoughData(
                f"the replay {where} is empty: expected at least one collected step, got 0; "
                f"collect first"
            )
        return self._storage

    @property
    def rng(self) -> np.random.Generator:
        """The generator of all draws that are given none; `state_dict` has its state.

        A forked process continues with a stream of its own.
        """
        return self._rng

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        return self.storage.spec

    @property
    def steps(self) -> int:
        """Env steps ever added, including evicted ones."""
        return 0 if self._storage is None else self._storage.index.total_steps

    @property
    def episodes(self) -> int:
        """Stored episodes, including unfinished and cut ones."""
        return 0 if self._storage is None else self._storage.index.episodes

    @property
    def total_bytes(self) -> int:
        """Stored bytes of the chunks that were added through this object."""
        return self._total_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored chunks take."""
        return 0 if self._storage is None else self._storage.nbytes

    @property
    def cached_bytes(self) -> int:
        """Bytes of RAM that small fields and patches take which were decoded for draws."""
        return 0 if self._sampler is None else self._sampler.cached_bytes

    @property
    def batches(self) -> int:
        """Batches drawn through this object, in this process."""
        return 0 if self._sampler is None else self._sampler.batches

    @property
    def priority_summary(self) -> tuple[float, float]:
        """Mean and largest ``p ** priority_alpha`` of the items when priorities were last used.

        Both are 0 where none were used. Curves (``log=`` of `Collector`) have them.
        """
        return (0.0, 0.0) if self._sampler is None else self._sampler.priority_summary()

    @property
    def is_being_written(self) -> bool:
        """True if a running process, perhaps this one, has the store open for writing."""
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

    def _repr_html_(self) -> str | None:
        from ..pictures.summaries import or_none  # only notebooks need it

        return or_none(self._html)

    def _html(self) -> str:
        # only notebooks need these
        from ..base.progress import format_bytes
        from ..pictures.markup import number, section, table
        from ..storage.store_html import store_html

        facts: dict[str, object] = {
            "path": self._path or "in RAM",
            "capacity": "unlimited" if self.capacity is None else f"{self.capacity:,} steps",
            "steps": len(self),
            "episodes": self.episodes,
        }
        if self._storage is None:
            facts["fields"] = "not known yet: nothing was collected"
            return section(type(self).__name__, table(facts.items()))
        if isinstance(self._storage, JoinedStorage):
            facts["path"] = f"{len(self._storage.storages)} stores, read as one"
        if self.steps != len(self):
            facts["steps ever added"] = self.steps
        facts["size"] = format_bytes(self.nbytes)
        facts["in RAM for draws"] = format_bytes(self.cached_bytes)
        if self.lost_chunks:
            facts["damaged chunks left out"] = self.lost_chunks
        sessions = self.sessions
        facts["sessions"] = len(sessions)
        if sessions and "policy" in sessions[-1]:
            facts["newest policy"] = sessions[-1]["policy"]
        writers = len(self._open_writers())
        if writers:
            facts["open writers"] = f"{number(writers)}: their newest rows may not be stored yet"
        return store_html(self._storage, type(self).__name__, facts)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            cure = _OTHER_NAMES.get(name)
            more = f": expected {cure}" if cure else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{more}",
                name=name,
                obj=self,
            )

        def __getitem__(self, place: object) -> NoReturn:
            raise TypeError(
                f"a replay has no [{place!r}]: expected replay.episode(id), replay.iter_episodes() "
                f"or replay.take(request, ids)"
            )

    def __reduce__(self) -> NoReturn:
        where = "RAM: give it a path" if self._path is None else str(self._path)
        not_copied(
            "a replay",
            f"this one is in {where}; use SequenceReplayBuffer.open(path, read_only=True) in each "
            "process, or copy_episodes for a copy",
        )

    def __len__(self) -> int:
        """Env steps stored now."""
        return 0 if self._storage is None else self._storage.index.steps

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here, the oldest first: recipe, seed, versions, ..."""
        return () if self._storage is None else self._storage.sessions

    def decode(self, name: str, arrays: ArrayTree) -> list[Any]:
        """The original values that arrays hold: texts, sequences, graphs and alternatives.

        Args:
            name: ``observation``, ``action``, or of a part of one, as ``observation/mission``.
            arrays: That part of a batch or an episode, ``[N, ...]``, or with more axes.

        Returns:
            N values of the env's own space; lists of lists for more axes.

        Raises:
            ValueError: The store does not record the space, there is no such part, or the arrays
                hold no values of it.

        Example:
            >>> from gymnasium import spaces
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> with replay.writer((spaces.Text(8), spaces.Discrete(2))) as writer:
            ...     writer.add("hello", 1, 0.5, "world", True, False)
            >>> (episode,) = replay.iter_episodes()
            >>> replay.decode("observation", episode.observation)
            ['hello', 'world']
        """
        from ..spec.open_spaces import decode_batch  # few stores have such spaces

        return decode_batch(space_of(self.sessions, name), arrays)

    def bind(self, spec: Spec, session: Mapping[str, object], *, continues: bool = False) -> None:
        """Set the fields of a row, and record that a run begins to write.

        Args:
            spec: The fields of every row. The first call sets them, with this replay's codecs; as
                long as no row was ever stored, another call may change them.
            session: JSON-able facts about the run. Its ``recipe`` describes the envs, and must not
                change either.
            continues: The run that wrote here last goes on: it is not recorded once more, and its
                open episodes are continued.

        Raises:
            SpecMismatch: The replay holds other rows, or rows of other envs.
        """
        with self.write_lock:
            if self._storage is None:
                self._use(self._new_storage(spec.with_codecs(self._codecs)))
            if self._path is not None:
                self._guard.install()
            difference = _difference(self.storage, spec, session)
            if difference and not self._rebind(spec.with_codecs(self._codecs)):
                where = "this replay" if self._path is None else str(self._path)
                raise SpecMismatch(
                    f"{where} holds other data: {difference}; open another folder, or make the "
                    f"envs as they were"
                )
            if continues:
                with self.storage.lock:
                    self.storage.index.continue_episodes()
            else:
                self.storage.append_session(session)
            if _LOG.isEnabledFor(logging.INFO):
                where = "in RAM" if self._path is None else str(self._path)
                what = "goes on" if continues else "begins"
                _LOG.info("%s: session %d %s", where, len(self.sessions) - 1, what)

    def add(self, chunks: Sequence[Chunk], *_more: Never, **_wrong: Never) -> None:
        """Store chunks of episodes; when it returns they are durable.

        Raises:
            NotEnoughData: `bind` was not called yet.
            ValueError: A chunk does not continue its episode; nothing was stored.
        """
        if _more or _wrong or not isinstance(chunks, Sequence):
            raise TypeError(f"add: expected chunks of episodes; for a transition, {_ADD}")
        with self._added_to("add") as storage:
            storage.add(chunks)

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """Store encoded chunks as they are; when it returns they are durable.

        They are checked first, see `EncodedChunk.check`; their codecs must be those of the replay.

        Raises:
            NotEnoughData: `bind` was not called yet.
            StoreCorrupt: The bytes of a chunk are damaged, or it holds other fields; nothing was
                stored.
            SpecMismatch: A field has another codec; nothing was stored.
            ValueError: A chunk does not continue its episode; nothing was stored.
        """
        with self._added_to("add_encoded") as storage:
            storage.add_encoded(chunks)

    def writer(
        self,
        rows: RowSource | None = None,
        num_envs: int | None = None,
        *,
        info: Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
        metadata: Mapping[str, object] | None = None,
        flush_seconds: float = 10.0,
    ) -> ReplayWriter:
        """A writer for a loop of your own, or for recorded episodes; use it in a ``with`` block.

        A new session is noted. `close` stores the rows of an open writer first, and drawing stores
        them where they make up a thousandth of what can be drawn.

        Args:
            rows: The fields of every row: a `Spec`, a gymnasium Env or VectorEnv, or a pair of one
                env's observation space and action space. None takes those that the replay holds.
            num_envs: Number of envs N, or of other streams of rows; None takes that of a vector
                env, or one.
            info: Fields ``info/...`` by name, each with the value that stands where an info has
                none, such as ``{"lives": -1}``; it also determines dtype and shape.
            extras: Fields ``extra/...`` by name, each with a value of its dtype and shape, such as
                ``{"log_prob": np.float32(0)}``. Every row has them.
            metadata: JSON-able facts of all episodes.
            flush_seconds: No row waits longer than this to be stored, as long as others come.

        Raises:
            SpecMismatch: The replay holds other rows.
            ValueError: Another writer is open, or the replay cannot be written to.
            TypeError: An argument has another type.

        Example:
            >>> import gymnasium as gym
            >>> import stepwell as sw
            >>> env = gym.make("CartPole-v1")
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> with replay.writer(env) as writer:
            ...     observation, _ = env.reset(seed=0)
            ...     for _ in range(100):
            ...         action = env.action_space.sample()
            ...         result, reward, terminated, truncated, _ = env.step(action)
            ...         writer.add(observation, action, reward, result, terminated, truncated)
            ...         observation = result
            ...         if terminated or truncated:
            ...             observation, _ = env.reset()
            >>> replay.steps
            100
        """
        check_flush_seconds(flush_seconds)
        facts = checked_facts(metadata or {})
        stored = None if self._storage is None else self.spec
        wanted = declared(rows, num_envs, info, extras, stored)
        with self.write_lock:
            if self._open_writers():
                raise ValueError(
                    "writer: expected no other open writer of this replay, got a second one; close "
                    "the first, or use one with num_envs=2"
                )
            self.bind(wanted.spec, wanted.facts)
            writer = ReplayWriter(
                self,
                wanted.num_envs,
                flush_seconds,
                has_digest=False,
                missing=wanted.missing,
                metadata=facts,
                is_single=wanted.is_single,
                fixed=wanted.fixed,
            )
            self.attach(writer)
        return writer

    def attach(self, writer: ReplayWriter) -> None:
        """Store the waiting rows of a writer before `close`, and before draws where they count.

        `writer` does so. The replay holds no reference that keeps the writer alive.
        """
        writer.begin()
        with self.write_lock:
            self._writers = [*map(weakref.ref, self._open_writers()), weakref.ref(writer)]

    def call_before_close(self, method: Callable[[], None]) -> None:
        """Let `close` call a method that stores waiting rows; its object is not kept alive."""
        self._before_close.append(weakref.WeakMethod(method))

    @contextlib.contextmanager
    def filled_at_once(self, doing: str) -> Generator[SequenceReplayBuffer]:
        """Fill a new replay so that the store in its folder is complete, or does not exist.

        Args:
            doing: A name for the work, as in "a copy".

        Yields:
            The replay to write into. In RAM that is this replay. Otherwise it has the same options,
            and its store gets the folder's name when the block ends; then this replay opens it, to
            be read alone where the disk lets nothing more be written.
            After an error, or a kill, the folder does not exist.

        Raises:
            ValueError: The folder is not empty.
            StoreLocked: Another process fills it.
        """
        if self._path is None or self._folder is None:
            yield self
            return
        with publish(self._path, doing) as part:
            written = SequenceReplayBuffer(
                part,
                capacity=self._capacity,
                capacity_bytes=self._capacity_bytes,
                codecs=self._codecs,
            )
            written._files = LateFiles()
            with written:
                yield written
        try:
            self._use(DiskStorage.open(self._folder))
        except OSError as error:  # the work is done, whole and durable: that is no failure of it
            _LOG.warning("%s: complete, but opened only to be read: %s", self._path, error)
            self._use(DiskStorage.open(self._folder, read_only=True))
        except BaseException as error:
            error.add_note(f"kept: all of it, in {self._path}")
            raise
        self._total_bytes = written.total_bytes

    def drop_before(self, row_id: int) -> None:
        """Free memory, or files, whose rows are all older than the given one.

        A capacity does so by itself. Older rows that share their memory or file with newer ones
        stay.

        Args:
            row_id: Id of the oldest row to keep, as in ``batch.ids``.
        """
        with self.write_lock:
            self.storage.drop_before(row_id)

    def clear(self) -> None:
        """Forget all rows, sessions and priorities of a replay in RAM; ids begin again at 0.

        Raises:
            ValueError: The rows are in a folder, which is never overwritten.
        """
        if self._storage is None:
            return
        if self._path is not None or not isinstance(self._storage, MemoryStorage):
            raise ValueError(
                f"clear: expected a replay in RAM, got the store {self._path or self._storage!r}, "
                f"whose rows are kept; take another folder, or use drop_before for old rows"
            )
        for writer in self._open_writers():
            writer.close()
        self._drop_sampler()
        self._use(self._new_storage(self.spec))

    def sample(
        self,
        request: BatchRequest[BatchT],
        *_more: Never,
        out: BatchT | None = None,
        rng: Rng | None = None,
        **_wrong: Never,
    ) -> BatchT:
        """Draw a batch for a request.

        `sample_sequences`, `sample_transitions` and `sample_episodes` make the request from their
        arguments. Several threads may draw at once, while one other writes. Forked processes draw
        different batches.

        Args:
            request: `Sequences`, `Transitions` or `Episodes`.
            out: A batch of an equal request, whose large arrays are overwritten.
            rng: Source of randomness; the replay's own generator when None.

        Raises:
            NotEnoughData: No stored item fits the request.
            ValueError: The request is invalid, in itself or for this data.
            StoreCorrupt: Stored bytes are damaged.
        """
        if _more or _wrong:
            require_request(request, _wrong)
            others = ", ".join([*map(repr, _more), *_wrong])
            raise TypeError(f"sample: expected a request, out and rng, got {others}; leave it out")
        if self._writers:
            self._catch_up()
        sampler = self._sampler or self._require_sampler()
        if rng is None:
            rng = self._rng
        elif not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"rng: expected a numpy Generator or None, got {rng!r}; "
                f"np.random.default_rng(seed) is one"
            )
        return sampler.sample(request, out, rng)

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
        **_wrong: Never,
    ) -> Batch:
        """Draw sequences of rows, by default uniformly and each in one episode.

        Args:
            batch_size: Number of sequences, B >= 1.
            length: Rows in each sequence, T >= 1.
            borders: Rule at the borders of episodes: a sequence is ``"inside"`` one, or may
                ``"cross"`` into the stream's next one, or is padded by ``"pad_after"`` or
                ``"pad_before"`` with rows that ``mask`` excludes.
            draw: Distribution: uniform over ``"steps"``, the same but ``"distinct"``, uniform over
                ``"episodes"``, at their ``"ends"``, ``"recent"`` ones more often, the ``"newest"``
                once each, or by ``"priorities"``.
            align: Reward and flags in the row of an observation: those returned with it
                (``"arrival"``), or those of the ``"transition"`` that begins with it. T transitions
                need T + 1 rows.
            burn_in: Rows before the first one, to warm up a recurrent state (R2D2, Kapturowski et
                al. 2019); those before the reset are padding. The batch has ``burn_in + T`` rows.
            stack: Return frame-stacked observations as the env does, ``[B, T, k, ...]``; else
                single frames ``[B, T, ...]``. Only for envs that stack frames.
            fields: Names of the fields to return, or prefixes of names, as in ``"extra"``; None for
                all. Flags are always returned.
            state: Names of extras to return only for each sequence's first stored row: the
                recurrent state of the policy there.
            time_major: Return arrays ``[T, B, ...]``, contiguous except for stacks.
            beta: With ``draw="priorities"`` the exponent of the ``weights``, from 0 to 1.
            where: A condition on the episodes' metadata: a mapping of keys to the values that they
                must have, or a function of the metadata. It is evaluated once for each episode, and
                again for a function of other code, or that refers to other values; see the guide.
            out: A batch of an equal request, whose large arrays are overwritten.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, T, ...]`` in memory owned by the caller.

        Raises:
            NotEnoughData: No chosen episode has ``length`` rows.
            ValueError: An argument is invalid, in itself or for this data.
            StoreCorrupt: Stored bytes are damaged.
        """
        if _wrong:
            refuse_keywords("sample_sequences", _wrong, [*Sequences._fields, "out", "rng"])
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
        relabel: Hindsight | None = None,
        out: TransitionBatch | None = None,
        rng: Rng | None = None,
        **_wrong: Never,
    ) -> TransitionBatch:
        """Draw transitions of up to ``n_step`` steps, by default uniformly.

        Near the end of an episode, or of its stored rows, fewer steps are used; only a termination
        ends the value there.

        Args:
            batch_size: Number of transitions, B >= 1.
            n_step: Env steps from an observation to the next one, n >= 1.
            gamma: Discount of a step.
            draw: Distribution; see `sample_sequences`.
            stack: Return frame-stacked observations as the env does, ``[B, k, ...]``; else single
                frames ``[B, ...]``.
            fields: Names of the fields to return, or prefixes of names; None for all.
            beta: With ``draw="priorities"`` the exponent of the ``weights``, from 0 to 1.
            where: A condition on the episodes' metadata; see `sample_sequences`.
            relabel: Give some transitions a goal that was achieved in their episode; see
                `Hindsight`.
            out: A batch of an equal request, whose large arrays are overwritten.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, ...]`` in memory owned by the caller; learn from
            ``reward + discount * value(next_observation)``.

        Raises:
            NotEnoughData: No chosen episode has a step.
            ValueError: An argument is invalid, in itself or for this data.
            StoreCorrupt: Stored bytes are damaged.

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
        if _wrong:
            refuse_keywords("sample_transitions", _wrong, [*Transitions._fields, "out", "rng"])
        request = Transitions(batch_size, n_step, gamma, draw, stack, fields, beta, where, relabel)
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
        **_wrong: Never,
    ) -> Batch:
        """Draw whole episodes, as far as they are stored, uniformly and with replacement.

        Args:
            batch_size: Number of episodes, B >= 1.
            align: See `sample_sequences`.
            stack: See `sample_sequences`.
            fields: Names of the fields to return, or prefixes of names; None for all.
            time_major: Return arrays ``[T, B, ...]``, as views.
            where: A condition on the episodes' metadata; see `sample_sequences`.
            rng: Source of randomness; the replay's own generator when None.

        Returns:
            Arrays ``[B, T, ...]``, where T is the length of the longest one; ``mask`` excludes the
            padding, and ``lengths`` has the lengths. For single episodes see `iter_episodes`.

        Raises:
            NotEnoughData: No episode is chosen.
            ValueError: An argument is invalid, in itself or for this data.
            StoreCorrupt: Stored bytes are damaged.
        """
        if _wrong:
            refuse_keywords("sample_episodes", _wrong, [*Episodes._fields, "rng"])
        return self.sample(Episodes(batch_size, align, stack, fields, time_major, where), rng=rng)

    def take(self, request: BatchRequest[BatchT], ids: np.ndarray) -> BatchT:
        """The items of a request that begin with given rows, in the given order.

        Args:
            request: The request; its ``batch_size``, ``draw`` and ``where`` are ignored.
            ids: [B] int64: ids of the rows that the items begin with, as in ``batch.ids``.

        Raises:
            NotEnoughData: A row is no longer stored, or no such item begins with it.
            ValueError: The ids are not integers [B], or the request is invalid.

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
        return self._require_sampler().at(request, ids, self._rng)

    def field_rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """One field of given rows, in the given order.

        Args:
            name: Name of the field in the Spec; single frames under frame stacking.
            ids: [B] int64: ids of the rows; that of a batch's row t, in a chunk that was stored at
                once, is ``batch.ids + t``.

        Returns:
            Rows ``[B, ...]`` in the field's dtype, owned by the caller.

        Raises:
            NotEnoughData: A row is no longer stored.
            ValueError: There is no such field, or the ids are not integers [B].
            StoreCorrupt: Stored bytes are damaged.

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
        """The number of different items of a request; 0 in an empty replay.

        Args:
            request: The request; its ``batch_size`` and ``draw`` are ignored.

        Raises:
            ValueError: The request is invalid, in itself or for this data.
        """
        return 0 if self._storage is None else self._require_sampler().count(request)

    def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set the priorities of items that were drawn with ``draw="priorities"``.

        Proportional prioritization: Schaul et al., Prioritized Experience Replay (2016). An item of
        priority p is drawn in proportion to ``p**alpha``; a new one has the largest stored p.

        Args:
            ids: [B] int64, as in the batch.
            priorities: [B] float, such as TD errors; ``abs(priorities) + 1e-6`` is used.

        Returns:
            The number of items that were ignored, as their rows were evicted meanwhile.

        Raises:
            ValueError: The arrays have another form, or nothing was drawn by priorities yet.
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
        """All stored items once, in batches, without replacement; see `Epoch`.

        Args:
            request: The request; its ``draw`` is ignored.
            stride: Sequences begin at every ``stride``-th row of their episode.
            shuffle: In random order; else the oldest first.
            seed: Seed of the orders.
            shard: Number of this share, from 0 on, and number of shares.
            drop_last: Leave out the last batch if it is smaller.
        """
        from ..sampling.epoch import Epoch  # few programs need it

        for writer in self._open_writers():
            writer.flush()
        return Epoch(
            self._require_sampler(),
            request,
            stride=stride,
            shuffle=shuffle,
            seed=seed,
            shard=shard,
            drop_last=drop_last,
        )

    @overload
    def loader(
        self,
        source: BatchRequest[BatchT] | Epoch[BatchT],
        *,
        prefetch: int = 2,
        threads: int = 1,
        to: Literal["numpy"] = "numpy",
        device: object = None,
        pin_memory: bool = False,
        reuse: bool = False,
    ) -> Loader[BatchT]: ...

    @overload
    def loader(
        self,
        source: BatchRequest[BatchT] | Epoch[BatchT],
        *,
        prefetch: int = 2,
        threads: int = 1,
        to: Literal["torch"],
        device: object = None,
        pin_memory: bool = False,
        reuse: bool = False,
    ) -> Loader[Any]: ...

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
            source: A request, of which batches are drawn without end, or an `epoch`.
            prefetch: Batches that are ready, or being drawn, while the caller has one, >= 1.
            threads: Threads that draw, >= 1; with one the batches are those of `sample`.
            to: ``"torch"`` returns tensors in place of arrays.
            device: Device of the tensors, such as ``"cuda"``.
            pin_memory: Copy them to pinned memory first.
            reuse: Overwrite a batch when the next one is taken.

        Raises:
            ValueError: Options contradict one another, or the request is invalid.
            ImportError: ``to="torch"``, and PyTorch is not installed.

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
        from ..sampling.epoch import Epoch
        from ..sampling.loader import Loader  # few programs need it

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
        """A `torch.utils.data.IterableDataset` for any number of workers.

        Pass it to a ``DataLoader`` with ``batch_size=None``. Each worker opens the replay's folder
        itself.

        Args:
            request: The request.
            seed: Seed of all draws and orders, >= 0.
            epoch: Return all stored items once, over all workers and shards together, and end. By
                default draws never end.
            shard: Number of this share, from 0 on, and number of shares.
            stride: With ``epoch``, sequences that begin at every ``stride``-th row.

        Raises:
            ImportError: PyTorch is not installed.
            NotEnoughData: The replay is empty.
            ValueError: An argument is out of range, or not possible in workers.
        """
        from ..sampling.torch_dataset import torch_dataset  # few programs need it

        return torch_dataset(
            self,
            request,
            reopen=self._reopening(),
            seed=seed,
            epoch=epoch,
            shard=shard,
            stride=stride,
        )

    def iter_episodes(self, *, where: Where | None = None) -> Iterator[Episode]:
        """Stored episodes, the oldest first, decoded one at a time.

        Episodes that are added meanwhile are left out.

        Args:
            where: A condition on the episodes' metadata; see `sample_sequences`.
        """
        if self._storage is None:
            return iter(())
        return self._require_sampler().episodes(where)

    def episode(self, episode: int, *, first_row: int | None = None) -> Episode:
        """One stored episode by its id; no other one is decoded.

        Args:
            episode: Id of the episode.
            first_row: Row with which its stored rows begin. It is needed only where chunks in the
                middle of the episode are lost, which leaves several parts with the same id.

        Raises:
            ValueError: No such episode is stored, or several parts of it are and none is named.
            NotEnoughData: The replay is empty.
            StoreCorrupt: Stored bytes are damaged.

        Example:
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=100)
            >>> replay.episode(1).id
            1
        """
        check_whole("episode", episode, 0)
        if first_row is not None:
            check_whole("first_row", first_row, 0)
        return self._require_sampler().episode(int(episode), first_row)

    def filmstrip(
        self,
        episode: int,
        field: str | None = None,
        *,
        frames: int = 8,
        scale: int = 1,
        first_row: int | None = None,
    ) -> FilmStrip:
        """A picture of evenly spaced frames of an episode, with its first and its final one.

        In a notebook it is shown as it is; ``save`` writes a PNG or WebP file. Only the rows that
        are shown are decoded.

        Args:
            episode: Id of the episode.
            field: Name of a field of images; None takes the first one.
            frames: Frames to show, from 1 to 256; all of a shorter episode. At most
                eight are in a line.
            scale: Pixels on each side of a stored pixel.
            first_row: See `episode`.

        Raises:
            ValueError: An argument is out of range, no such episode is stored, or the field, or
                every field, is no image.
            NotEnoughData: The replay is empty.
            StoreCorrupt: Stored bytes are damaged.

        Example:
            >>> import gymnasium as gym
            >>> import stepwell as sw
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> envs = sw.make_atari("Pong", num_envs=1, backend="python")
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(steps=40)
            >>> strip = replay.filmstrip(0, frames=4)
            >>> strip.pixels.shape, strip.rows
            ((84, 342), (0, 13, 27, 40))
        """
        from ..pictures.film_strip import FilmStrip, check_frames
        from ..pictures.image_fields import image_field  # few programs need them

        check_whole("episode", episode, 0)
        if first_row is not None:
            check_whole("first_row", first_row, 0)
        image = image_field(self.spec, field)
        check_frames(image, frames, scale)
        sampler = self._require_sampler()
        rows, values = sampler.spread_rows(image.name, int(episode), first_row, int(frames))
        return FilmStrip.of(image.pixels(values), rows.tolist(), int(scale))

    def refresh(self) -> bool:
        """Read the rows that another process has stored since; they only appear in this call.

        Returns:
            True if there were new rows.

        Raises:
            ValueError: The replay was not opened with ``read_only=True``.
            StoreCorrupt: New bytes are damaged.
            SpecMismatch: The store was empty, and has other fields now.
        """
        return self.storage.refresh()

    def state_dict(self) -> dict[str, Any]:
        """The state, in addition to the stored rows, for drawing the same batches again."""
        return {
            "store": _name_of(self._storage),
            "pieces": _count_of(self._storage),
            "generator": self._rng.bit_generator.state,
            "sampler": None if self._sampler is None else self._sampler.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the replay of `state_dict` would have.

        Rows that were stored since stay; without such rows the same batches follow.

        Raises:
            ValueError: It is the state of another store, a later state of this one, or no state;
                nothing has changed.
        """
        checked = _checked_state(state, self._storage, self._rng)
        if checked.get("sampler") is not None:
            self._require_sampler().restore(checked["sampler"])
        elif self._sampler is not None:  # nothing had been drawn
            self._sampler.restore({"newest": [], "priorities": None})
        self._rng.bit_generator.state = checked["generator"]

    def save_checkpoint(
        self, learner: Mapping[str, object] | None = None, *, name: str = "latest"
    ) -> None:
        """Store the replay's state, and the learner's, with the data; durable when it returns.

        The rows are not written again.

        Args:
            learner: JSON-able values and numpy arrays, nested in mappings and lists.
            name: Letters, digits, - and _; a checkpoint of that name is replaced.

        Raises:
            ValueError: The replay is in RAM, or was opened with ``read_only=True``.
            TypeError: The learner's state contains another type.

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
        with self.write_lock:
            disk, state = self._disk(), {"replay": self.state_dict()}
            state |= {"border": disk.border(), "learner": dict(learner or {})}
            disk.save_checkpoint(name, state)

    def load_checkpoint(self, name: str = "latest", *, exact: bool = False) -> dict[str, Any]:
        """Continue as the replay of `save_checkpoint` would have; returns the learner's state.

        Args:
            name: Name of the checkpoint.
            exact: Also remove the rows and sessions that were stored since, and bring back those
                that were evicted since: the replay is as it was, so that a training that was killed
                continues as one that was never stopped. Without it all stored rows stay. Where
                there is a capacity, only the checkpoint that was saved last can be loaded so.

        Raises:
            StoreNotFound: There is no checkpoint of that name.
            StoreCorrupt: Its bytes are damaged, or do not fit the stored rows.
            ValueError: It is that of another store, or of a later state of this one. With
                ``exact``: evicted rows are gone, an earlier version saved it, a `writer` is open,
                or the replay was opened with ``read_only=True``; nothing has changed.

        Example:
            >>> import tempfile
            >>> import stepwell as sw
            >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            >>> with sw.SequenceReplayBuffer(tempfile.mkdtemp(), seed=0) as replay:
            ...     with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...         report = collector.collect(steps=100)
            ...         replay.save_checkpoint({"updates": 3})
            ...         report = collector.collect(steps=50)
            ...     learner = replay.load_checkpoint(exact=True)
            ...     replay.steps, learner
            (101, {'updates': 3})
        """
        disk, where = self._disk(), f"checkpoint {name!r} of {self.path}"
        state = disk.load_checkpoint(name)
        try:
            replay = _checked_form(untrusted_json.member(state, "replay"), self._rng)
            learner = untrusted_json.mapping(untrusted_json.member(state, "learner"), "learner")
        except ValueError as error:
            raise StoreCorrupt(
                f"{where} holds no state of a replay: {error}; remove it, or restore it from a copy"
            ) from error
        if exact:
            with self.write_lock:
                self._go_back(disk, replay, state.get("border"), where)
        self.load_state_dict(replay)
        return learner

    def _go_back(
        self, disk: DiskStorage, state: Mapping[str, Any], border: object, where: str
    ) -> None:
        """Make the store what it was when a state was saved, which is checked first."""
        if border is None:
            raise ValueError(
                f"{where} was saved by an earlier version: expected one that says where the store "
                f"ended, for exact=True; load it without"
            )
        if self._open_writers():
            raise ValueError(
                f"{where}: expected no open writer of this replay with exact=True, got one; close "
                f"it first"
            )
        checked = _checked_state(state, disk, self._rng)
        if checked.get("sampler") is not None:
            trial = self._new_sampler()
            try:
                trial.restore(checked["sampler"])
            finally:
                trial.close()
        disk.go_back(border, checked["pieces"])
        self._drop_sampler()

    def _drop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def digest(self) -> str:
        """Fingerprint of all rows stored now, 16 hexadecimal digits: equal data, equal digest.

        Equal to the digest of the `CollectReport` if a single Collector has written here and
        nothing was evicted. Decodes all rows.
        """
        digest = Digest()
        for episode in self.iter_episodes():
            place = episode.id, episode.stream, episode.first_row, episode.end
            digest.update(Chunk(*place, episode.fields))
        return digest.hexdigest()

    def close(self) -> None:
        """Store the rows of an open `writer`, release files and locks; twice is harmless."""
        try:
            for writer in self._open_writers():
                writer.close()
            methods, self._before_close = self._before_close, []
            for method in filter(None, [reference() for reference in methods]):
                method()
        finally:
            if self._sampler is not None:
                self._sampler.close()
            if self._storage is not None:
                with self.write_lock:
                    self._storage.close()
            self._guard.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _endless(self, request: BatchRequest[BatchT]) -> Callable[[BatchT | None], BatchT]:
        """A function that draws a batch."""
        sampler = self._require_sampler()
        sampler.check(request)  # before any thread starts
        return lambda out: self.sample(request, out=out)

    def _reopening(self) -> Callable[[], SequenceReplayBuffer] | None:
        """A function that opens the folders read-only, with one thread; None for data in RAM."""
        storage = self.storage
        parts = storage.storages if isinstance(storage, JoinedStorage) else (storage,)
        folders = [os.path.abspath(part.path) for part in parts if isinstance(part, DiskStorage)]
        if len(folders) < len(parts):
            return None
        on_corrupt: OnCorrupt = "skip" if storage.skips_corrupt else "raise"
        shares = storage.index.shares
        return partial(
            SequenceReplayBuffer.open,
            folders[0] if len(folders) == 1 and shares is None else folders,
            weights=None if shares is None else shares.weights.tolist(),
            read_only=True,
            on_corrupt=on_corrupt,
            threads=1,
        )

    def _disk(self) -> DiskStorage:
        if not isinstance(self.storage, DiskStorage):
            raise ValueError(
                "a checkpoint is stored in the replay's folder, expected a replay with a path: "
                "pass SequenceReplayBuffer one, or store state_dict() yourself"
            )
        return self.storage

    def _new_storage(self, spec: Spec) -> Storage:
        spec = as_written(spec)
        if self._folder is None or self._path is None:
            return self._make_storage(
                spec, capacity=self._capacity, capacity_bytes=self._capacity_bytes
            )
        try:
            return DiskStorage.create(
                *(self._folder, spec),
                capacity=self._capacity,
                capacity_bytes=self._capacity_bytes,
                files=self._files,
            )
        except (ValueError, StoreLocked) as error:
            # There was no store when this replay was created.
            if isinstance(error, StoreLocked) or DiskStorage.exists(self._folder):
                _refuse_new_store(self._path)
            raise

    def _rebind(self, spec: Spec) -> bool:
        """Give another Spec to a storage that never held a row; False where it did, or will."""
        storage = self._storage
        if self._open_writers():
            return False  # their rows may wait, and have the Spec that was there
        if isinstance(storage, DiskStorage):
            if storage.is_read_only or not storage.replace_spec(spec):
                return False
        elif isinstance(storage, MemoryStorage) and storage.index.counters == Counters():
            self._use(self._new_storage(spec))
        else:
            return False
        self._drop_sampler()
        return True

    @contextlib.contextmanager
    def _added_to(self, method: str) -> Generator[Storage]:
        """The storage, for a method that adds to it; counts the bytes of what is added."""
        storage = self._storage
        if storage is None:
            raise NotEnoughData(
                f"the replay has no fields yet: expected a call of bind(spec, session) before "
                f"{method}, got none; call it first"
            )
        with self.write_lock:
            before = storage.index.base + len(storage.index)
            yield storage
            index = storage.index
            self._total_bytes += int(index.records["nbytes"][max(0, before - index.base) :].sum())

    def _open_writers(self) -> list[ReplayWriter]:
        writers = [reference() for reference in self._writers]
        return [writer for writer in writers if writer is not None and not writer.is_closed]

    def _catch_up(self) -> None:
        """Store rows of open writers before a draw; forget closed ones."""
        writers = self._open_writers()
        for writer in writers:
            writer.catch_up()
        if len(writers) < len(self._writers):
            with self.write_lock:
                self._writers = list(map(weakref.ref, self._open_writers()))

    def _use(self, storage: Storage) -> None:
        self._storage = storage

    def _require_sampler(self) -> Sampler:
        if self._sampler is None:
            if self._is_torn:
                raise RuntimeError(
                    "the replay was being used by another thread when this process was forked: "
                    "expected it to be unused; fork while no thread writes or draws, or open the "
                    "replay's folder in this process"
                )
            with self.storage.lock:
                self._sampler = self._sampler or self._new_sampler()
        return self._sampler

    def _new_sampler(self) -> Sampler:
        # Imported here, as a program that only collects does not need it.
        from ..sampling.sampler import Sampler

        return Sampler(
            self.storage,
            *(self._threads, self._alpha, self._process, self._new_priority),
            self._cache_bytes,
        )

    def lock_for_fork(self) -> Any:
        """The lock of the storage; for `forks`."""
        return None if self._storage is None else self._storage.lock

    def forked(self, *, is_torn: bool) -> None:
        """Called in a fork: what another thread was changing is not used there; for `forks`."""
        if is_torn:
            self._is_torn, self._sampler = True, None


_ADD = (
    "replay.writer(env).add(observation, action, reward, next_observation, terminated, truncated)"
)
_MEANT = {
    _ADD: "add_batch add_transition append extend insert push put remember store store_transition",
    "replay.sample_transitions(32)": "get get_batch sample_batch sample_transition",
    "replay.sample_sequences(16, 8)": "sample_sequence sample_trajectories sample_trajectory",
    "replay.sample_episodes(8)": "sample_episode",
    "replay.iter_episodes()": "iterate_episodes trajectories",
    "replay.episode(id)": "get_episode get_trajectory",
    "replay.field_rows(name, ids)": "actions dones observations rewards",
    "len(replay)": "n_steps n_transitions num_steps num_transitions size transition_count",
    "replay.steps": "total_steps",
    "replay.episodes": "n_episodes num_episodes total_episodes",
    "replay.capacity": "buffer_size max_size maxlen",
    "len(replay) == replay.capacity": "full is_full",
    "a writer's flush()": "flush",
    "a replay with a path, whose rows are stored as they come": "dump dumps save",
    "SequenceReplayBuffer.open(path)": "load loads restore",
    "stepwell export STORE --to parquet --out OUT": "df to_df to_pandas",
    "stepwell.bridges.to_torch(batch, device)": "device to to_torch",
    "replay.update_priorities(ids, values)": "update_priority update_weight update_weights",
}
_OTHER_NAMES = {name: right for right, names in _MEANT.items() for name in names.split()}
_DRAWS = ("sample", "sample_sequences", "sample_transitions", "sample_episodes")
let_through(SequenceReplayBuffer, *_DRAWS)


def _refuse_new_store(path: Path) -> None:
    """Refuse a folder in which another process has made a store since this replay began."""
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
            f"it again to continue it (--resume), or choose another folder"
        ) from None


def _checked_state(
    state: Mapping[str, object], storage: Storage | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Check a state of a replay from an untrusted source; the sampler checks its own part."""
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
    checked = untrusted_json.mapping(state, "state of a replay")
    untrusted_json.member(checked, "store")
    untrusted_json.whole(untrusted_json.member(checked, "pieces"), "pieces")
    generator: Any = untrusted_json.member(checked, "generator")
    forks.load_generator(np.random.Generator(type(rng.bit_generator)(0)), generator)
    if checked.get("sampler") is not None:  # a state of version 0.1 has none
        untrusted_json.mapping(checked["sampler"], "sampler")
    return checked


def _name_of(storage: Storage | None) -> object:
    """The name of a store, or a list of names for joined stores; one in RAM has none."""
    if isinstance(storage, JoinedStorage):
        return [_name_of(each) for each in storage.storages]
    return storage.store if isinstance(storage, DiskStorage) else None


def _count_of(storage: Storage | None) -> int:
    """Number of chunks ever stored."""
    if isinstance(storage, JoinedStorage):
        return sum(map(_count_of, storage.storages))
    return 0 if storage is None else storage.index.base + len(storage.index)


def _difference(storage: Storage, spec: Spec, session: Mapping[str, object]) -> str | None:
    """The first difference between the stored rows, or their envs, and those of a new run."""
    # The codecs of `storage` do not matter.
    codecs: dict[str, Codec] = {field.name: field.codec for field in storage.spec.fields}
    shared: dict[str, Codec] = {name: codecs[name] for name in spec.names if name in codecs}
    difference = storage.spec.difference(spec.with_codecs(shared))
    # A writer of a loop of one's own knows no recipe: its rows may be those of any envs.
    sessions = [one for one in storage.sessions if one.get("source") != OWN_LOOP]
    if difference or not sessions or session.get("source") == OWN_LOOP:
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
