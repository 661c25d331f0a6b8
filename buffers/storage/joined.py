"""Several storages read as one, without copying a row."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import NamedTuple, NoReturn

import numpy as np

from ..base.errors import SpecMismatch, not_copied
from ..rows.episode import Chunk
from ..spec.spec import Codec, Spec
from .chunk_codec import Buffer
from .chunk_index import CHUNK, ChunkIndex, Counters
from .disk.storage import DiskStorage, OnCorrupt
from .encoded_chunk import EncodedChunk
from .item_counts import Shares
from .protocol import Storage

ID_BITS = 48
"""Ids of the k-th storage begin at ``k << ID_BITS``: they do not change when a storage grows."""
_NUMBER_BITS = 32
_SHIFTS = {
    "episode": ID_BITS,
    "row_id": ID_BITS,
    "stream": _NUMBER_BITS,
    "segment": _NUMBER_BITS,
}


class JoinedStorage:
    """Shows the chunks of several storages as one storage that can only be read.

    Episode ``e`` of the k-th storage has the id ``(k << 48) + e``, its stream ``s`` is
    ``(k << 32) + s``: both stay what they are when a storage grows. The same storage may be in
    several places; each then counts.

    Args:
        storages: The storages, in order. `close` closes them.
        weights: Share of the drawn windows for each storage, of any sum; None draws uniformly over
            the windows of all.

    Raises:
        ValueError: There is no storage, or the weights are not one number >= 0 for each.
        SpecMismatch: Two storages hold other fields; codecs may differ.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import End, Field, MemoryStorage, Chunk, Spec
        >>> spec = Spec((Field("reward", "float64", (), "raw"),), {}, {})
        >>> rows = {"reward": np.zeros(3)}
        >>> storages = [MemoryStorage(spec), MemoryStorage(spec)]
        >>> for storage in storages:
        ...     storage.add([Chunk(0, 0, 0, End.TERMINATED, rows)])
        >>> both = JoinedStorage(storages)
        >>> both.index.episodes, both.index.steps, both.index.records["episode"].tolist()
        (2, 4, [0, 281474976710656])
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a JoinedStorage", "open the folders again, and join them there")

    def __init__(self, storages: Sequence[Storage], weights: Sequence[float] | None = None) -> None:
        self._storages = tuple(storages)
        if not self._storages:
            raise ValueError(
                "storages: expected at least one, got none: pass the stores that are to be read as "
                "one"
            )
        if any(isinstance(storage, JoinedStorage) for storage in self._storages):
            raise ValueError(
                "storages: expected single stores, got a JoinedStorage, whose ids would collide: "
                "pass each of its stores"
            )
        check_same_rows(self._storages)
        self._weights = None if weights is None else _checked_weights(weights, len(self._storages))
        self._lock = RLock()
        self._snapshots: list[_Snapshot] = []
        self._generation = -1
        self._rebuild()

    def __repr__(self) -> str:
        return (
            f"JoinedStorage(storages={len(self._storages)}, steps={self.index.steps}, "
            f"episodes={self.index.episodes}, fields=({self.spec.summary}))"
        )

    @property
    def lock(self) -> RLock:
        """Held while the index changes: by `refresh` and `lose`."""
        return self._lock

    @property
    def storages(self) -> tuple[Storage, ...]:
        """The storages, in order."""
        return self._storages

    def part_of(self, episode: int, stream: int) -> tuple[int, int]:
        """The number of the storage that holds an episode, and the stream there of its stream."""
        number = episode >> ID_BITS
        return number, stream - (number << _NUMBER_BITS)

    @property
    def spec(self) -> Spec:
        """The fields of every row, with the codecs of the first storage."""
        return self._storages[0].spec

    @property
    def index(self) -> ChunkIndex:
        """The index of all chunks, those of the first storage first; `refresh` makes a new one."""
        return self._index

    @property
    def generation(self) -> int:
        """Grows whenever a position is assigned to another chunk."""
        return self._generation

    @property
    def skips_corrupt(self) -> bool:
        """Damaged chunks are left out instead of ending a read, in all storages."""
        return all(storage.skips_corrupt for storage in self._storages)

    @property
    def lost_chunks(self) -> int:
        """Chunks that are left out as damaged."""
        return sum(storage.lost_chunks for storage in self._storages)

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored chunks take."""
        return sum(storage.nbytes for storage in self._storages)

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """JSON-able facts about the runs that wrote the storages, one storage after the other."""
        return [session for storage in self._storages for session in storage.sessions]

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Raise ValueError: nothing can be written here."""
        raise ValueError(self._refusal("a run"))

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Raise ValueError: nothing can be written here."""
        raise ValueError(self._refusal("chunks"))

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """Raise ValueError: nothing can be written here."""
        raise ValueError(self._refusal("chunks"))

    def payload(self, position: int) -> tuple[Buffer, int]:
        """See `Storage.payload`; ValueError if it was evicted since the last `refresh`."""
        storage, place = self._find(position)
        return storage.payload(place)

    def encoded(self, position: int) -> EncodedChunk:
        """See `Storage.encoded`; episode and stream are those here, codecs its own."""
        record = self._index.record(position)
        storage, place = self._find(position)
        return storage.encoded(place).placed(episode=record.episode, stream=record.stream)

    def metadata(self, position: int) -> Mapping[str, object]:
        """See `Storage.metadata`; ValueError if it was evicted since the last `refresh`."""
        storage, place = self._find(position)
        return storage.metadata(place)

    def drop_before(self, row_id: int) -> None:
        """Raise ValueError: nothing can be evicted here."""
        raise ValueError(self._refusal("an eviction"))

    def lose(self, position: int) -> None:
        """Leave out a chunk whose bytes are damaged."""
        storage, place = self._find(position)
        storage.lose(place)
        self._index.lose([position])

    def refresh(self) -> bool:
        """Read chunks that this process or others have stored since.

        Returns:
            True if the index changed. The earlier index object is not modified.

        Raises:
            StoreCorrupt: New bytes are damaged; chunks that could be read are added.
        """
        try:
            for storage in self._storages:
                # A store that is written by this process is up to date.
                if not isinstance(storage, DiskStorage) or storage.is_read_only:
                    storage.refresh()
        finally:
            with self._lock:
                changed = self._rebuild()
        return changed

    def close(self) -> None:
        """Close all storages; closing twice is harmless."""
        for storage in self._storages:
            storage.close()

    def _rebuild(self) -> bool:
        """Rebuild the index if a storage changed; returns True if one did."""
        indexes = [storage.index for storage in self._storages]
        if self._snapshots and all(map(_Snapshot.is_current, self._snapshots, indexes)):
            return False
        before = self._origins()
        self._snapshots = [_Snapshot(index, index.base, len(index)) for index in indexes]
        self._borders = np.cumsum([0, *(each.length for each in self._snapshots)]).tolist()
        # Appending to the last storage alone changes no position.
        self._generation += self._origins() != before
        counters = Counters(
            len(indexes) << ID_BITS,
            len(indexes) << ID_BITS,
            sum(index.total_steps for index in indexes),
        )
        records = [_shifted(index.records, number) for number, index in enumerate(indexes)]
        self._index = ChunkIndex.restore(records, counters, 0)
        if self._weights is not None:
            self._index.shares = Shares(np.array(self._borders), self._weights)
        return True

    def _origins(self) -> list[tuple[int, int]]:
        """The positions of each storage's first chunk, in this index and in the storage's."""
        return [(self._borders[k], each.base) for k, each in enumerate(self._snapshots)]

    def _find(self, position: int) -> tuple[Storage, int]:
        """The storage that holds the chunk at a position, and the chunk's position there."""
        number = bisect_right(self._borders, position) - 1
        storage = self._storages[number]
        place = position - self._borders[number] + self._snapshots[number].base
        if place < storage.index.base:
            raise ValueError(
                f"a chunk of {name_of(storage, number)} was evicted since the last refresh, "
                f"expected it to be there: call refresh()"
            )
        return storage, place

    def _refusal(self, what: str) -> str:
        return (
            f"{what} cannot be added to {len(self._storages)} stores that are read as one, "
            f"expected one store that is open for writing: open that one alone"
        )


class _Snapshot(NamedTuple):
    """A storage's index at the last `refresh`."""

    chunks: ChunkIndex
    base: int
    length: int

    def is_current(self, index: ChunkIndex) -> bool:
        """The storage holds the same chunks."""
        if (index.base, len(index)) != (self.base, self.length):
            return False
        # A refresh makes a new index also where nothing is new, or a chunk is lost since.
        return index is self.chunks or bool(np.array_equal(index.records, self.chunks.records))


def open_many(
    paths: Sequence[str | os.PathLike[str]], weights: Sequence[float] | None, on_corrupt: OnCorrupt
) -> JoinedStorage:
    """Open the stores in several folders, to read them as one; see `JoinedStorage`."""
    check_different("path", paths)
    with contextlib.ExitStack() as stack:
        storages: list[Storage] = []
        for path in paths:
            storages.append(DiskStorage.open(path, read_only=True, on_corrupt=on_corrupt))
            stack.callback(storages[-1].close)
        many = JoinedStorage(storages, weights)
        stack.pop_all()
        return many


def check_different(name: str, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse paths of which two name the same folder; the name is that of their argument."""
    seen: dict[str, str] = {}
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            first = seen[place]
            also = "twice" if first == str(path) else f"and {path}, which is the same one"
            raise ValueError(
                f"{name}: expected different stores, got {first} {also}; name each once"
            )
        seen[place] = str(path)


def parts_of(storage: Storage) -> Sequence[Storage]:
    """The storages that a storage is joined of, or that one alone."""
    return storage.storages if isinstance(storage, JoinedStorage) else (storage,)


def check_same_rows(storages: Sequence[Storage]) -> None:
    """Refuse storages whose rows differ in more than their codecs."""
    first = storages[0].spec
    for number, storage in enumerate(storages[1:], 1):
        difference = _with_codecs_of(storage.spec, first).difference(storage.spec)
        if difference:
            raise SpecMismatch(
                f"{name_of(storage, number)} holds other rows than {name_of(storages[0], 0)}: "
                f"{difference}; take stores of the same fields together"
            )


def name_of(storage: Storage, number: int) -> str:
    """The name of a storage in messages: its folder, if it has one."""
    return str(storage.path) if isinstance(storage, DiskStorage) else f"store {number} (in RAM)"


def _with_codecs_of(other: Spec, spec: Spec) -> Spec:
    """The Spec with the other's codecs, except for fields that differ in more than that."""
    theirs = {field.name: field for field in other.fields}
    codecs: dict[str, Codec] = {
        field.name: theirs[field.name].codec
        for field in spec.fields
        if field.name in theirs
        and replace(field, codec="raw") == replace(theirs[field.name], codec="raw")
    }
    return spec.with_codecs(codecs)


def _shifted(records: np.ndarray, number: int) -> np.ndarray:
    """The records of one storage, with ids that no other one has."""
    shifted = np.empty(len(records), CHUNK)
    shifted[...] = records
    for name, bits in _SHIFTS.items():
        shifted[name] += number << bits
    return shifted


def _checked_weights(weights: Sequence[float], count: int) -> np.ndarray:
    """The weights as an array, if they are one finite number >= 0 for each storage."""
    found = np.array([np.nan if isinstance(w, str | bytes) else w for w in weights], np.float64)
    is_right = found.shape == (count,) and (np.isfinite(found) & (found >= 0)).all()
    if not is_right or not found.any():
        raise ValueError(
            f"weights: expected a finite number >= 0 for each of {count} stores, at least one of "
            f"them above 0, got {weights}: change them"
        )
    return found
