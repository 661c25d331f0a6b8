"""Serves requests from a storage: chooses items, gathers their rows, and makes batches of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.random import Generator

from ..base import untrusted_json
from ..base.errors import NotEnoughData
from ..base.memory_limit import check_free_memory
from ..base.optional_libraries import tell_jax
from ..rows.episode import End, Episode
from ..rows.row_memory import SpareMemory
from ..storage.chunk_index import ChunkIndex
from ..storage.episode_filter import EpisodeFilter, Where, check_where, identity_of
from ..storage.field_locator import DamagedChunk, RowCopier
from ..storage.item_counts import ItemCounts, Windows, first_start
from ..storage.joined import JoinedStorage
from ..storage.protocol import Storage
from .batch import Batch, Memory, Seed, Shapes, TransitionBatch
from .draws import Drawn, ItemKinds, NewestQueue, draw_items
from .priorities import PriorityIndex
from .requests import (
    BatchRequest,
    BatchT,
    Episodes,
    Request,
    Sequences,
    Transitions,
    check_request,
    require_request,
)
from .row_reader import RowReader
from .sequences import EpisodeSampler, SequenceSampler
from .transitions import TransitionSampler

AnyBatch: TypeAlias = Batch | TransitionBatch
_Maker: TypeAlias = SequenceSampler | TransitionSampler | EpisodeSampler
ResultT = TypeVar("ResultT")
_Choice: TypeAlias = tuple[Drawn, np.ndarray, Drawn | None]
"""Items for a batch, their weights [B] float32, and those that `NewestQueue.next` returned."""
_MAX_MAKERS = 16  # requests that are remembered
_MAX_FILTERS = 8  # conditions whose results are remembered
_REQUESTS = (Sequences, Transitions, Episodes)
_LARGE_BYTES = 1 << 20  # smaller arrays get used memory from the system
_ITEM_BYTES = 24  # of the numbers that are drawn for an item
_MAX_SPARE_SIZES = 4
_BEHIND_ALL = 1 << 60  # a row after the last one of any episode


class EpochSnapshot(NamedTuple):
    """The index of the storage when an epoch began."""

    records: np.ndarray  # of all chunks
    base: int  # position of the first one
    items: ItemCounts
    generation: int  # of the storage, and so of the positions
    losses: int  # counted by the index


class Sampler:
    """Draws from a storage, from several threads at once, also while one thread writes."""

    def __init__(
        self,
        storage: Storage,
        threads: int | None,  # that copy and decompress; see `ThreadShare`
        alpha: float,  # power to which priorities are raised
        process: int | None = None,  # that made the replay; None for this one
        new_priority: float | None = None,  # None for the largest
        cache_bytes: int = 0,  # of patches of stores on disk, to keep decompressed
    ) -> None:
        self._storage = storage
        self._process = os.getpid() if process is None else process
        self._rows = RowReader(storage, threads, cache_bytes)
        self._episode_reader = _EpisodeReader(storage)
        self._filters = _Filters(storage, self._episode_reader.copier.metadata)
        self._makers: dict[Request, _Maker] = {}
        self._newest = NewestQueue()
        self._priorities = PriorityIndex(alpha, new_priority)
        self._spare: dict[int, SpareMemory] = {}
        self.batches = 0
        """Batches that were drawn."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of RAM that rows and patches take which were decoded for draws."""
        return self._rows.nbytes

    def sample(
        self, batch_request: BatchRequest[BatchT], out: BatchT | None, rng: Generator
    ) -> BatchT:
        """Draw a batch; see `SequenceReplayBuffer.sample`."""
        request = cast("Request", batch_request)
        maker = self._maker(request)
        shapes = maker.shapes(request.batch_size)
        memory = (
            self._memory(shapes, request.batch_size)
            if out is None
            else _memory_of(request, shapes, out)
        )

        def choose(index: ChunkIndex) -> _Choice:
            return self._choose(request, maker.kinds(), index, rng)

        return cast("BatchT", self._made(maker, memory, choose, rng))

    def count(self, batch_request: BatchRequest[BatchT]) -> int:
        """See `SequenceReplayBuffer.count`."""
        request = cast("Request", batch_request)
        kinds = self._maker(request).kinds()
        kind = kinds.wholes if isinstance(request, Episodes) else kinds.every
        assert kind is not None

        def find() -> int:
            return self._storage.index.items(kind, self._filters.chosen(request.where)).total

        return self._locked(find)

    def check(self, request: BatchRequest[BatchT]) -> None:
        """Refuse an invalid request."""
        self._maker(cast("Request", request))

    def snapshot(self, batch_request: BatchRequest[BatchT], stride: int) -> EpochSnapshot:
        """A snapshot of the items for an epoch."""
        request = cast("Request", batch_request)
        kinds = self._maker(request).kinds(stride)
        kind = kinds.wholes if isinstance(request, Episodes) else kinds.every
        assert kind is not None

        def look() -> EpochSnapshot:
            storage, index = self._storage, self._storage.index
            items = ItemCounts(kind, self._filters.chosen(request.where))
            records = index.records.copy()
            items.update(records, index.base)
            return EpochSnapshot(records, index.base, items, storage.generation, index.losses)

        return self._locked(look)

    def take(
        self,
        batch_request: BatchRequest[BatchT],
        snapshot: EpochSnapshot,
        numbers: np.ndarray,
        seed: Seed,
    ) -> BatchT:
        """A batch of the items of an epoch with the given numbers; the seed is that of goals."""
        request = cast("Request", batch_request)
        maker = self._maker(request)

        def choose(index: ChunkIndex) -> _Choice:
            drawn = self._still_there(request, snapshot, index, numbers)
            return drawn, np.ones(len(numbers), np.float32), None

        memory = self._memory(maker.shapes(len(numbers)), len(numbers))
        return cast("BatchT", self._made(maker, memory, choose, seed))

    def at(self, batch_request: BatchRequest[BatchT], ids: np.ndarray, rng: Generator) -> BatchT:
        """See `SequenceReplayBuffer.take`."""
        request = cast("Request", batch_request)
        maker, rows = self._maker(request), _checked_ids(ids)
        kind, are_whole = maker.kinds().every, isinstance(request, Episodes)

        def choose(index: ChunkIndex) -> _Choice:
            drawn = _items_at(index, self._rows, kind, rows, are_whole=are_whole)
            return drawn, np.ones(len(rows), np.float32), None

        memory = self._memory(maker.shapes(len(rows)), len(rows))
        return cast("BatchT", self._made(maker, memory, choose, rng))

    def field_rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """See `SequenceReplayBuffer.field_rows`."""
        rows, names = _checked_ids(ids), [field.name for field in self._storage.spec.fields]
        if name not in names:
            raise ValueError(f"name: expected one of {', '.join(names)}, got {name!r}")

        def find() -> np.ndarray:
            return self._rows.field_rows(name, *_rows_at(self._storage.index, rows))

        return self._locked(find)

    def episodes(self, where: Where | None) -> Iterator[Episode]:
        """The episodes stored now, in the order in which they began."""
        return self._locked(lambda: self._episode_reader.episodes(self._filters.chosen(where)))

    def episode(self, number: int, first_row: int | None) -> Episode:
        """See `SequenceReplayBuffer.episode`."""
        return self._locked(lambda: self._episode_reader.episode(number, first_row))

    def spread_rows(
        self,
        name: str,
        number: int,
        first_row: int | None,  # see `SequenceReplayBuffer.episode`
        count: int,  # all rows if there are fewer
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of one field of an episode, evenly spaced, with its first and its last one."""
        # Returns the numbers of the rows in the episode [n] int64, and the rows [n, ...].

        def find() -> tuple[np.ndarray, np.ndarray]:
            index = self._storage.index
            tail = index.record(index.tail_of(number, first_row))
            stored = tail.first_row + tail.rows - tail.head
            spaced = np.linspace(0, stored - 1, min(count, stored))
            wanted = tail.head + np.rint(spaced).astype(np.int64)
            records = index.records
            chunks = np.flatnonzero((records["episode"] == number) & (records["rows"] > 0))
            chunks = chunks[np.argsort(records["first_row"][chunks], kind="stable")]
            place = np.searchsorted(records["first_row"][chunks], wanted, side="right") - 1
            found = index.at(chunks[place])
            ids = found["row_id"] + wanted - found["first_row"]
            return wanted, self._rows.field_rows(name, *_rows_at(index, ids))

        return self._locked(find)

    def update_priorities(self, ids: np.ndarray, values: np.ndarray) -> int:
        """See `SequenceReplayBuffer.update_priorities`."""
        storage = self._storage
        with storage.lock:
            return self._priorities.update(storage.index, storage.generation, ids, values)

    def priority_summary(self) -> tuple[float, float]:
        """See `SequenceReplayBuffer.priority_summary`."""
        with self._storage.lock:
            return self._priorities.summary()

    def state(self) -> dict[str, Any]:
        """The state for `restore`: JSON-able values and arrays."""
        storage = self._storage
        with storage.lock:
            priorities = self._priorities.state(storage.index, storage.generation)
            return {"newest": self._newest.state(), "priorities": priorities}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue as the sampler of `state` would have; an invalid state changes nothing."""
        storage, newest = self._storage, NewestQueue()
        newest.restore(untrusted_json.member(state, "newest"))
        priorities = untrusted_json.member(state, "priorities")
        if priorities is not None:
            priorities = untrusted_json.mapping(priorities, "priorities")
        with storage.lock:
            self._priorities.restore(storage.index, storage.generation, priorities)
            self._newest = newest

    def close(self) -> None:
        """End the threads, and forget all that refers to the store's memory."""
        with self._storage.lock:
            self._rows.close()
            self._episode_reader.copier.close()

    def _made(
        self,
        maker: _Maker,
        memory: Memory,
        choose: Callable[[ChunkIndex], _Choice],
        seed: Seed,
    ) -> AnyBatch:
        """Make a batch of chosen items; choose again if a chunk turns out to be damaged."""
        rows = self._rows
        while True:
            try:
                with self._storage.lock:
                    index = rows.follow()
                    drawn, weights, newest = choose(index)
                    batch, (planned, then) = maker.make(rows, index, drawn, weights, memory, seed)
                    if newest is not None:
                        self._newest.advance(index, maker.kinds(), newest)
                    self.batches += 1
                # Without the lock: evicted chunks stay in memory until they are copied.
                for copies, out in planned:
                    if out.size:  # empty rows need no copying
                        copies.make(out, rows.share)
            except DamagedChunk as damaged:
                self._episode_reader.leave_out(damaged)
            else:
                for work in then:
                    work()
                tell_jax()
                return batch

    def _locked(self, find: Callable[[], ResultT]) -> ResultT:
        """Call a function with the lock held, again without chunks that turn out to be damaged."""
        while True:
            try:
                with self._storage.lock:
                    self._rows.follow()
                    return find()
            except DamagedChunk as damaged:
                self._episode_reader.leave_out(damaged)

    def _memory(self, shapes: Shapes, count: int) -> Memory:
        """Memory for a batch; that of large arrays is used again when nothing refers to it."""
        memory: Memory = {}
        fresh: set[int] = set()
        total = count * _ITEM_BYTES  # and new arrays: what is used again is not free

        def check() -> None:
            check_free_memory(total, f"a batch of {count} items", "draw fewer, or shorter ones")

        if total > _LARGE_BYTES:
            check()
        for name, (shape, dtype) in shapes.items():
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes < _LARGE_BYTES:
                memory[name] = np.empty(shape, dtype)
                continue
            spare = self._spare.get(nbytes)
            if spare is None or nbytes in fresh:
                fresh.add(nbytes)
                total += nbytes
                check()
            if spare is None:
                if len(self._spare) >= _MAX_SPARE_SIZES:
                    self._spare.clear()
                spare = self._spare[nbytes] = SpareMemory(nbytes)
            memory[name] = np.ndarray(shape, dtype, spare.lend())
        return memory

    def _maker(self, request: Request) -> _Maker:
        """The maker for a request, which is checked the first time."""
        if type(request) not in _REQUESTS:
            require_request(request)
        if request.where is not None:
            check_where(request.where)
            request = request._replace(where=_any_episode)  # which makes no difference here
        try:
            found = self._makers.get(request)
        except TypeError:  # a list or a mapping in it
            hashable = _with_tuples(request)
            if hashable is request:
                return _new_maker(request, self._storage)
            return self._maker(hashable)
        if found is None:
            if len(self._makers) >= _MAX_MAKERS:
                self._makers.clear()
            found = self._makers[request] = _new_maker(request, self._storage)
        return found

    def _choose(
        self, request: Request, kinds: ItemKinds, index: ChunkIndex, rng: Generator
    ) -> _Choice:
        """Draw the items of a request, and compute their weights."""
        count = request.batch_size
        draw = "wholes" if isinstance(request, Episodes) else request.draw
        if draw == "priorities":
            assert not isinstance(request, Episodes)
            drawn, probabilities = self._priorities.draw(
                index, self._storage.generation, kinds, count, rng
            )
            return drawn, self._priorities.weights(probabilities, request.beta), None
        weights = np.empty(count, np.float32)
        weights.fill(1)
        if draw != "newest":
            verdicts = self._filters.chosen(request.where) if request.where is not None else None
            return draw_items(index, kinds, draw, count, verdicts, rng), weights, None
        if self._process != os.getpid():
            raise RuntimeError(
                f'draw="newest": expected the process {self._process} that made the replay, got '
                f"its fork {os.getpid()}: each fork would get the same rows; draw in another mode, "
                f"or open the replay's folder in this process"
            )
        drawn = newest = self._newest.next(index, kinds, count)
        rest = count - len(newest.start)
        # Fewer rows are new than the batch has: older ones fill it up.
        if rest:
            others = draw_items(index, kinds, "steps", rest, None, rng)
            chunk, start = map(np.concatenate, zip(newest[:2], others[:2], strict=True))
            drawn = Drawn(chunk, start, is_exact=True)
        return drawn, weights, newest

    def _still_there(
        self, request: Request, snapshot: EpochSnapshot, index: ChunkIndex, numbers: np.ndarray
    ) -> Drawn:
        """Items of an epoch at their current positions."""
        storage = self._storage
        chunk, start = snapshot.items.locate(numbers)
        chunk = chunk + (snapshot.base - index.base)
        is_same = (storage.generation, index.losses) == (snapshot.generation, snapshot.losses)
        if is_same and isinstance(request, Episodes):
            is_same = bool((index.records["is_tail"][chunk[chunk >= 0]] == 1).all())
        if not is_same or (chunk < 0).any():
            raise NotEnoughData(
                "the epoch's episodes have changed while it was read: expected unchanged episodes, "
                "got some that were evicted, lost or continued; begin a new epoch"
            )
        return Drawn(chunk, start)


def _memory_of(request: Request, shapes: Shapes, out: object) -> Memory:
    """The memory of an earlier batch of the same request, not one for whole episodes."""
    if not isinstance(out, Batch | TransitionBatch):
        raise TypeError(f"out: expected a batch of an equal request, got {type(out).__name__}")
    if isinstance(request, Episodes):
        raise ValueError(
            "out: expected None for whole episodes, whose lengths differ, got a batch; leave it out"
        )
    found = {name: (array.shape, array.dtype) for name, array in out.memory.items()}
    if found != shapes:
        expected, got = (
            ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in each.items())
            for each in (shapes, found)
        )
        raise ValueError(
            f"out: expected a batch of {expected}, got one of {got}; pass a batch of the same "
            f"request"
        )
    return dict(out.memory)


def _any_episode(metadata: Mapping[str, object]) -> bool:
    return True


def _with_tuples(request: Request) -> Request:
    """Make a request hashable: tuples in place of lists."""
    if list not in map(type, request):
        return request
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in request]
    return type(request)(*values)


def _new_maker(request: Request, storage: Storage) -> _Maker:
    check_request(request)
    if isinstance(request, Episodes):
        return EpisodeSampler(request, storage.spec)
    if isinstance(storage, JoinedStorage) and request.draw in ("newest", "priorities"):
        raise ValueError(
            f"draw={request.draw!r}: expected one store, got several that are read as one; merge "
            f"them into one, or draw in another mode"
        )
    if isinstance(request, Sequences):
        return SequenceSampler(request, storage.spec)
    return TransitionSampler(request, storage.spec)


class _Filters:
    """Evaluates conditions once per episode, for each of the last few conditions."""

    def __init__(
        self,
        storage: Storage,
        metadata: Callable[[int], Mapping[str, object]],  # of the chunk at a position
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._filters: dict[object, EpisodeFilter] = {}
        self._generation = storage.generation

    def chosen(self, where: Where | None) -> EpisodeFilter | None:
        """The results of a condition for all episodes stored now."""
        if where is None:
            return None
        if self._generation != self._storage.generation:
            self._filters, self._generation = {}, self._storage.generation
        check_where(where)
        is_mapping, index = isinstance(where, Mapping), self._storage.index
        key: Any = repr(sorted(where.items())) if isinstance(where, Mapping) else where
        try:
            found = self._filters.get(key)
        except TypeError:  # an object that is called, and cannot be hashed
            return EpisodeFilter(where).update(index.records, index.base, self._metadata)
        if found is None and not is_mapping:
            key = identity_of(where)
            found = self._filters.get(key)
        if found is not None:
            found.where = where
            return found.update(index.records, index.base, self._metadata)
        found = EpisodeFilter(where).update(index.records, index.base, self._metadata)
        if len(self._filters) >= _MAX_FILTERS:
            self._filters.pop(next(iter(self._filters)))
        if not is_mapping and identity_of(where) != key:  # it changes what it refers to
            key = where
        self._filters[key] = found
        return found


def _checked_ids(ids: np.ndarray) -> np.ndarray:
    """Ids of rows, if they are integers ``[B]``, B >= 1."""
    rows = np.asarray(ids)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows):
        raise ValueError(
            f"ids: expected the ids of rows, integers [B] with B >= 1, got {rows.dtype} "
            f"{rows.shape}; pass batch.ids"
        )
    return rows.astype(np.int64)


def _rows_at(chunk_index: ChunkIndex, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the chunks [B] of rows with ids [B], and the index [B] of each row in its chunk."""
    records = chunk_index.records
    first = records["row_id"]
    index = np.searchsorted(first, ids, side="right") - 1
    is_there = np.zeros(len(ids), np.bool_)
    place = index
    if len(records):
        place = ids - first[index]  # where the index is -1, that of the last chunk: far below 0
        is_there = (place >= 0) & (place < records["rows"][index])
    _check(is_there, ids, "is not stored: it was evicted, or there never was one")
    return index, place


def _items_at(
    chunk_index: ChunkIndex,
    reader: RowReader,
    kind: Windows,
    ids: np.ndarray,  # [B] of their first rows
    *,
    are_whole: bool,  # items extend to the end of their episode
) -> Drawn:
    index, place = _rows_at(chunk_index, ids)
    name = "stream_row" if kind.is_across else "first_row"
    start = chunk_index.at(index)[name] + place
    last = start + (_BEHIND_ALL if are_whole else kind.length - 1)
    chunk, place, _ = reader.locate(index, last, is_across=kind.is_across)
    at = chunk_index.at(chunk)
    is_item = at[name] + place >= start + kind.length - 1
    is_item &= start >= first_start(at, kind)
    _check(is_item, ids, f"begins no item of {kind.length} rows: too few are stored around it")
    return Drawn(chunk, start)


def _check(is_right: np.ndarray, ids: np.ndarray, wrong: str) -> None:
    if not is_right.all():
        first = int(ids[~is_right][0])
        raise NotEnoughData(
            f"the row with the id {first} {wrong}; expected ids of rows that are, got "
            f"{int((~is_right).sum())} of {len(ids)} that are not"
        )


class _EpisodeReader:
    """Reads whole episodes out of a storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._spec = storage.spec
        self.copier = RowCopier(storage)

    def episodes(self, chosen: EpisodeFilter | None) -> Iterator[Episode]:
        """The episodes stored now, in the order in which they began."""
        index = self._storage.index
        records = index.records
        is_wanted = records["is_tail"] == 1
        if chosen is not None:
            is_wanted &= chosen.verdicts(index.base, len(records))
        tails = np.flatnonzero(is_wanted)
        in_order = tails[np.argsort(records["episode"][tails], kind="stable")]
        positions = (in_order + index.base).tolist()
        generation = self._storage.generation
        return (episode for position in positions for episode in self._whole(position, generation))

    def episode(self, number: int, first_row: int | None) -> Episode:
        """One episode; call it with the storage's lock."""
        position = self._storage.index.tail_of(number, first_row)
        return self._episode(position, self._storage.generation)

    def leave_out(self, damaged: DamagedChunk) -> None:
        """Leave out a damaged chunk if the storage skips such chunks; else raise."""
        if not self._storage.skips_corrupt:
            raise damaged
        with self._storage.lock:
            if damaged.position >= self._storage.index.base:  # else it is evicted by now
                self._storage.lose(damaged.position)

    def _whole(self, position: int, generation: int) -> Iterator[Episode]:
        """The episode whose last chunk is at a position; its parts if a chunk is damaged."""
        try:
            with self._storage.lock:
                found = self._episode(position, generation)
            yield found
        except DamagedChunk as damaged:
            before = self._storage.index.record(damaged.position).previous
            self.leave_out(damaged)
            if before >= 0:
                yield from self._whole(before, generation)
            if damaged.position != position:
                yield from self._whole(position, generation)

    def _episode(self, position: int, generation: int) -> Episode:
        """The episode whose last chunk is at a position."""
        self.copier.follow()
        index = self._storage.index
        if position < index.base or self._storage.generation != generation:
            raise NotEnoughData(
                f"chunk {position} was evicted or moved while the episodes were read: expected no "
                f"writes and refreshes meanwhile, got {index.base} as the oldest chunk; iterate "
                f"again"
            )
        record = index.record(position)
        begin, stop = record.head, record.first_row + record.rows
        spec = self._spec
        check_free_memory((stop - begin) * spec.row_bytes, f"episode {record.episode}")
        fields = {f.name: np.empty((stop - begin, *f.shape), f.numpy_dtype) for f in spec.fields}
        targets = list(enumerate(fields.values()))
        first, _ = self.copier.copy(position, record, begin, stop, targets)
        metadata = self.copier.metadata(first)
        end = End(record.end) & ~End.PENDING
        return Episode(spec, record.episode, record.stream, begin, end, fields, metadata)
