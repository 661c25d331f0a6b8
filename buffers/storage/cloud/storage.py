"""Reads a store that was uploaded to an object store: by ranges, into a local cache."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from threading import Lock, RLock
from typing import NamedTuple, NoReturn, Self, cast

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import SpecMismatch, StoreCorrupt, StoreNotFound
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import Buffer
from stepwell.buffers.storage.chunk_index import ChunkIndex, ChunkInfo
from stepwell.buffers.storage.cloud.chunk_cache import CachePlace, ChunkCache, default_cache
from stepwell.buffers.storage.cloud.manifest import (
    GROUP_RECORD,
    GROUP_RECORDS,
    CloudManifest,
    UploadedLedger,
    UploadedSegment,
)
from stepwell.buffers.storage.cloud.objects import Objects
from stepwell.buffers.storage.cloud.uploader import newest_manifest
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import SealedSegment, StoreFacts
from stepwell.buffers.storage.disk.ledger_file import KeptChunks, LedgerFile
from stepwell.buffers.storage.disk.segment import LoadedSegment, Segment
from stepwell.buffers.storage.disk.storage import OnCorrupt, check_on_corrupt
from stepwell.buffers.storage.disk.view import StoreView, load_all
from stepwell.buffers.storage.encoded_chunk import EncodedChunk, check_position

__all__ = ["CloudStorage"]

_LOG = logging.getLogger("stepwell.buffers.storage")
_CACHE_BYTES = 10 << 30
_MOST_IN_USE = 512  # mapped files, each of which may hold a descriptor
_HEADS_IN_USE = 64  # segments
_REQUESTS_AT_ONCE = 16
# Whoever goes forward in small steps for a while, as random draws do not, gets more chunks at once.
_STEPS, _STEP_CHUNKS, _LATER_STEP_CHUNKS, _MOST_RUN_BYTES = 8, 16, 64, 8 << 20


class CloudStorage:
    """Reads the chunks of a store that `stepwell upload`, or `Folders`, uploads; made by `open`.

    It shows the rows that were uploaded when it was opened, or at the last `refresh`. At first only
    headers and slot tables are fetched, later each chunk when it is first used. Fetched chunks are
    kept in a folder, which several processes may share. Every byte is covered by a checksum, also
    in that folder.

    Example:
        >>> import tempfile
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> from stepwell.buffers.storage.cloud.objects import Objects
        >>> from stepwell.buffers.storage.cloud.uploader import Uploader
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with sw.SequenceReplayBuffer(f"{folder}/a") as replay:
        ...         envs = gym.make_vec("CartPole-v1", num_envs=2)
        ...         with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...             report = collector.collect(steps=100)
        ...     objects = Objects(f"file://{folder}/uploaded", is_writer=True)
        ...     Uploader(f"{folder}/a", objects).upload()
        ...     with CloudStorage.open(objects.url, cache=f"{folder}/cache") as storage:
        ...         storage.index.steps == report.steps
        True
    """

    def __init__(self, objects: Objects, cache: ChunkCache, *, skip: bool = False) -> None:
        self._objects = objects
        self._cache = cache
        self._skip = skip
        self._is_closed = False
        self._lock = RLock()
        self._known: dict[int, LoadedSegment] = {}
        self._lost: set[int] = set()
        self._generation = 0
        self._in_use_lock = Lock()
        self._in_use: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._heads: OrderedDict[str, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._last_fetched, self._steps, self._run = -1, 0, 1
        self._state = self._look(None)

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        on_corrupt: OnCorrupt = "raise",
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = _CACHE_BYTES,
    ) -> CloudStorage:
        """Open what is uploaded below a URL, for reading.

        Args:
            url: The URL: ``"s3://bucket/run"``, ``"gs://..."``, ``"az://..."``, ``"file:///..."``.
            on_corrupt: Treatment of damaged chunks: ``"raise"``, or ``"skip"`` them; `lost_chunks`
                counts those found so far.
            cache: Folder for chunks that were fetched; None is ``$XDG_CACHE_HOME/stepwell``, or
                ``~/.cache/stepwell``.
            cache_bytes: Bytes to keep in it at most, of all stores together.

        Raises:
            StoreNotFound: There is no store.
            StoreCorrupt: Something in it is damaged.
            StoreTooNew: A later version wrote it.
            ImportError: obstore is not installed.
            ConnectionError: The object store failed.
            PermissionError: It refused access.
            ValueError: The URL is invalid, or ``cache_bytes`` is negative.
        """
        skip = check_on_corrupt(on_corrupt, read_only=True)
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes: expected 0 or more, got {cache_bytes}")
        try:
            objects = Objects(str(url))
        except FileNotFoundError as error:
            raise _nothing_at(str(url)) from error
        folder = default_cache() if cache is None else Path(cache)
        storage = cls(objects, ChunkCache(folder, cache_bytes), skip=skip)
        counts = storage.index.steps, storage.index.episodes
        _LOG.info("%s: opened for reading, %d steps in %d episodes", objects.url, *counts)
        return storage

    def __repr__(self) -> str:
        return (
            f"CloudStorage({self.url!r}, steps={self.index.steps}, "
            f"episodes={self.index.episodes}, fields=({self.spec.summary}))"
        )

    @property
    def url(self) -> str:
        """The URL."""
        return self._objects.url

    @property
    def path(self) -> str:
        """The URL, as the place of the store in messages."""
        return self.url

    @property
    def lock(self) -> RLock:
        """Held while the index changes."""
        return self._lock

    @property
    def facts(self) -> StoreFacts:
        """Facts about the store as a whole."""
        return self._state.view.manifest.facts

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        return self.facts.spec

    @property
    def index(self) -> ChunkIndex:
        """The index of the uploaded chunks; `refresh` makes a new one if there are others."""
        return self._state.view.index

    @property
    def nbytes(self) -> int:
        """Bytes of the uploaded segments."""
        return self._state.view.nbytes

    @property
    def ledger_bytes(self) -> int:
        """Bytes of the uploaded ledger; `nbytes` does not include them."""
        ledger = self._state.manifest.ledger
        return 0 if ledger is None else ledger.nbytes

    @property
    def capacity(self) -> int | None:
        """Steps that the store's folder keeps at most."""
        return self.facts.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes of disk that the store's folder takes at most."""
        return self.facts.capacity_bytes

    @property
    def provenance(self) -> Mapping[str, object]:
        """JSON-able facts about the data."""
        return self.facts.provenance

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """JSON-able facts about the runs that wrote the store, the oldest first."""
        return self.facts.sessions

    @property
    def store(self) -> str:
        """The store's name, 32 hexadecimal digits: that of its folder."""
        return self._state.manifest.store.store.hex()

    @property
    def lost_chunks(self) -> int:
        """Chunks that are left out: removed by a repair, or skipped as damaged."""
        return self._state.view.lost_chunks

    @property
    def skips_corrupt(self) -> bool:
        """Damaged chunks are left out."""
        return self._skip

    @property
    def generation(self) -> int:
        """Grows when positions were assigned again."""
        return self._generation

    @property
    def is_finished(self) -> bool:
        """All of the folder was uploaded, and it was not being written then."""
        return self._state.manifest.is_finished

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Refused: nothing can be written here.

        Raises:
            ValueError: Always.
        """
        self._refuse("a run")

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Refused: nothing can be written here.

        Raises:
            ValueError: Always.
        """
        self._refuse("chunks")

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """Refused: nothing can be written here.

        Raises:
            ValueError: Always.
        """
        self._refuse("chunks")

    def keep_actions(self, chunks: Sequence[Chunk]) -> None:
        """Refused: nothing can be written here.

        Raises:
            ValueError: Always.
        """
        self._refuse("actions")

    def drop_before(self, row_id: int) -> None:
        """Refused: nothing can be written here.

        Raises:
            ValueError: Always.
        """
        self._refuse("an eviction")

    @property
    def ledger(self) -> Sequence[Chunk]:
        """Actions of rows that are gone, which stored episodes need to be played again.

        Raises:
            StoreCorrupt: The object is missing or damaged; with ``on_corrupt="skip"`` the damaged
                parts are left out.
        """
        self._check_open()
        ledger = self._state.manifest.ledger
        if ledger is None:
            return KeptChunks(None, ())
        try:
            file = self._ledger_file(ledger)
            scan = file.scan()
        except StoreCorrupt:
            if not self._skip:
                raise
            return KeptChunks(None, ())
        if scan.damages and not self._skip:
            raise StoreCorrupt(scan.damages[0])
        return KeptChunks(file, [place for place, _ in scan.places])

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The memory that holds the chunk at a position, and the chunk's offset in it.

        Raises:
            StoreCorrupt: The bytes are damaged or missing.
            ConnectionError: The object store failed.
        """
        self._check_open()
        state = self._state
        segment, uploaded = state.segment_of(position)
        key = uploaded.digest, position
        with self._in_use_lock:
            memory = self._in_use.get(key)
            if memory is not None:
                self._in_use.move_to_end(key)
                return memory, 0
        record = state.view.index.record(position)
        place = self._place(state, uploaded, record)
        memory = self._cache.get(place, record.nbytes)
        if memory is not None:
            try:
                segment.check(memory, position, record, 0)
            except StoreCorrupt:
                self._cache.remove(place)
                memory = None
        if memory is None:
            memory = self._fetch(state, position, segment, uploaded)
        with self._in_use_lock:
            self._in_use[key] = memory
            while len(self._in_use) > _MOST_IN_USE:
                self._in_use.popitem(last=False)
        return memory, 0

    def encoded(self, position: int) -> EncodedChunk:
        """The chunk at a position in the bytes in which it is stored, which are not copied.

        Raises:
            ValueError: No chunk has this position, or it was evicted.
            StoreCorrupt: The bytes are damaged or missing, or the chunk is left out.
            ConnectionError: The object store failed.
        """
        check_position(self.index, position)
        memory, offset = self.payload(position)
        segment, _ = self._state.segment_of(position)
        record = self.index.record(position)
        return segment.encoded(np.asarray(memory), position, record, offset)

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position; its rows are not read.

        Raises:
            StoreCorrupt: The bytes are damaged or missing.
            ConnectionError: The object store failed.
        """
        self._check_open()
        state = self._state
        segment, uploaded = state.segment_of(position)
        data, begins = self._heads_of(segment, uploaded)
        record = state.view.index.record(position)
        begin = int(begins[position - segment.header.position])
        try:
            return segment.metadata(data, position, record, begin)
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{self._objects.place(uploaded.heads_name)}: {error}") from error

    def lose(self, position: int) -> None:
        """Leave out a chunk whose bytes are damaged, in this object only."""
        self._lost.add(position)
        record = self.index.record(position)
        _LOG.warning(
            "%s: left out a damaged chunk, %d rows of episode %d",
            *(self.url, record.rows, record.episode),
        )
        self.index.lose([position])

    def refresh(self) -> bool:
        """Read what was uploaded since.

        Returns:
            True if the index changed. The earlier index object is not modified.

        Raises:
            StoreCorrupt: New bytes are damaged.
            SpecMismatch: The store was empty, and has other fields now.
            ConnectionError: The object store failed.
        """
        self._check_open()
        with self._lock:
            before = self._state
            now = self._look(before)
            if now.view.manifest.facts.spec != self.spec:
                raise SpecMismatch(
                    f"{self.url} has other fields than when it was opened: "
                    f"{self.spec.difference(now.view.manifest.facts.spec)}; open it again"
                )
            if now.manifest.store.store != before.manifest.store.store:
                raise StoreCorrupt(
                    f"{self.url} holds another store than when it was opened; open it again"
                )
            self._state = now
            self._generation += now.changes_positions_of(before)
            return before.view.extent != now.view.extent

    def close(self) -> None:
        """Release memory and files; closing twice is harmless."""
        self._is_closed = True
        with self._in_use_lock:
            self._in_use.clear()
            self._heads.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _look(self, before: _State | None) -> _State:
        """Read the newest manifest, and the segments that are new in it."""
        manifest = None if before is None else before.manifest
        seen = ""
        while True:
            newest = newest_manifest(self._objects, manifest)
            if newest is None:
                raise _nothing_at(self.url, self._objects)
            if before is not None and newest == before.manifest:
                return before
            try:
                view = self._view(newest, before, skip=False)
                break
            except StoreCorrupt as error:
                # Segments of an old manifest are deleted: then there is a newer one.
                if str(error) != seen:
                    seen = str(error)
                    continue
                if not self._skip:
                    raise
                view = self._view(newest, None, skip=True)
                break
        if self._lost:
            view.index.lose(lost for lost in self._lost if lost >= view.index.base)
        return _State.of(newest, view)

    def _view(self, newest: CloudManifest, before: _State | None, *, skip: bool) -> StoreView:
        """The view of a manifest."""
        places = {each.number: each for each in newest.segments}
        entries = {entry.number: entry for entry in newest.store.sealed}
        old = {} if before is None else before.uploaded
        known = {
            number: each
            for number, each in self._known.items()
            if number in places and old.get(number) == places[number]
        }
        missing = [places[number] for number in entries if number not in known]
        tops = self._tops(missing)
        folder = _Folder(_Tops(tops, entries), _Url(self.url, places))
        faults: list[str] | None = [] if skip else None
        found = load_all(cast("StoreFolder", folder), newest.store, known, faults)
        found = [each if each.entry.number in known else _own_memory(each) for each in found]
        view = StoreView(newest.store, found, None if before is None else before.view)
        self._known = {each.entry.number: each.kept(view.index) for each in found}
        return view

    def _tops(self, missing: Sequence[UploadedSegment]) -> dict[int, bytes]:
        """Fetch headers and slot tables; those of missing objects are left out."""
        from concurrent.futures import ThreadPoolExecutor  # not needed in folders

        check_free_memory(sum(each.top_bytes for each in missing), self.url)

        def fetch(uploaded: UploadedSegment) -> tuple[int, bytes] | None:
            try:
                data = self._objects.get_range(uploaded.name, 0, uploaded.top_bytes)
            except FileNotFoundError:
                return None
            return uploaded.number, data

        if len(missing) < 2:
            return dict(filter(None, map(fetch, missing)))
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "stepwell-fetch") as pool:
            return dict(filter(None, pool.map(fetch, missing)))

    def _fetch(
        self, state: _State, position: int, segment: Segment, uploaded: UploadedSegment
    ) -> np.ndarray:
        """Fetch a chunk, with those after it if chunks are read one after the other."""
        most_chunks = _STEP_CHUNKS if self._run == 1 else _LATER_STEP_CHUNKS
        is_step = 0 < position - self._last_fetched <= most_chunks
        self._steps = self._steps + 1 if is_step else 0
        self._run = min(2 * self._run, 1 << 20) if self._steps >= _STEPS else 1
        index = state.view.index
        stop = min(segment.header.position + segment.chunks, index.base + len(index))
        records: list[ChunkInfo] = []
        end = 0
        for place in range(position, min(stop, position + self._run)):
            record = index.record(place)
            is_next = not records or (
                record.offset == end and end - records[0].offset < _MOST_RUN_BYTES
            )
            if not is_next or record.end & End.LOST:
                break
            records.append(record)
            end = record.offset + record.nbytes
        first = records[0].offset
        try:
            data = self._objects.get_range(uploaded.name, first, end - first)
        except FileNotFoundError as error:
            raise self._missing(uploaded.name) from error
        wanted: np.ndarray | None = None
        for number, record in enumerate(records):
            begin = record.offset - first
            memory = np.frombuffer(data[begin : begin + record.nbytes], np.uint8)
            try:
                segment.check(memory, position + number, record, 0)
            except StoreCorrupt:
                if number == 0:
                    raise
                break  # it is an error when it is asked for
            kept = self._cache.put(self._place(state, uploaded, record), memory.tobytes())
            wanted = kept if number == 0 else wanted
        self._last_fetched = position + len(records) - 1
        assert wanted is not None
        # Another process may have replaced the file meanwhile.
        segment.check(wanted, position, records[0], 0)
        return wanted

    def _heads_of(
        self, segment: Segment, uploaded: UploadedSegment
    ) -> tuple[np.ndarray, np.ndarray]:
        """The heads of a segment's chunks, and where each begins [chunks]."""
        with self._in_use_lock:
            found = self._heads.get(uploaded.digest)
        if found is None:
            lengths = segment.head_lengths
            try:
                data = self._objects.get(uploaded.heads_name, int(lengths.sum()))
            except FileNotFoundError as error:
                raise self._missing(uploaded.heads_name) from error
            found = np.frombuffer(data, np.uint8), np.cumsum(lengths) - lengths
            with self._in_use_lock:
                self._heads[uploaded.digest] = found
                while len(self._heads) > _HEADS_IN_USE:
                    self._heads.popitem(last=False)
        return found

    def _ledger_file(self, ledger: UploadedLedger) -> LedgerFile:
        """The ledger as a file in the cache, or in memory."""
        place = CachePlace(self.store, "ledgers", f"{ledger.digest}.ledger")
        memory = self._cache.get(place, ledger.nbytes)
        if memory is None or _digest(memory) != ledger.digest:
            try:
                data = self._objects.get(ledger.name, ledger.nbytes)
            except FileNotFoundError as error:
                raise self._missing(ledger.name) from error
            if _digest(data) != ledger.digest:
                raise StoreCorrupt(
                    f"{self._objects.place(ledger.name)} is damaged: wrong checksum; upload its "
                    f"store again"
                )
            memory = self._cache.put(place, data)
        files = _Memory(memory)
        path = cast("Path", self._objects.place(ledger.name))
        manifest = self._state.manifest.store
        return LedgerFile.open(files, path, manifest.store, manifest.facts.spec)

    def _place(self, state: _State, uploaded: UploadedSegment, record: ChunkInfo) -> CachePlace:
        """The place of a chunk in the cache."""
        part = f"{uploaded.number:08}-{uploaded.digest}"
        return CachePlace(state.manifest.store.store.hex(), part, f"{record.offset:x}.chunk")

    def _missing(self, name: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self._objects.place(name)} is missing: it was removed, or its rows were evicted "
            f"since the store was opened; refresh or open it again, or upload its store again"
        )

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"{self.url} can only be read, expected a store to write {what} into: write into a "
            f"folder, and upload that"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.url} is closed, expected an open store: open it again")


class _State(NamedTuple):
    """The state that one manifest shows."""

    manifest: CloudManifest
    view: StoreView
    uploaded: Mapping[int, UploadedSegment]
    begins: np.ndarray
    numbers: Sequence[int]

    @classmethod
    def of(cls, manifest: CloudManifest, view: StoreView) -> _State:
        uploaded = {each.number: each for each in manifest.segments}
        begins = [segment.header.position for segment in view.segments.values()]
        return cls(manifest, view, uploaded, np.array(begins, np.int64), [*view.segments])

    def segment_of(self, position: int) -> tuple[Segment, UploadedSegment]:
        """The segment that holds the chunk at a position."""
        number = self.numbers[int(np.searchsorted(self.begins, position, side="right")) - 1]
        return self.view.segments[number], self.uploaded[number]

    def changes_positions_of(self, before: _State) -> bool:
        """True if a position of the state before may belong to another chunk now."""
        oldest = min(self.view.segments, default=-1)
        return any(
            number >= oldest
            and (number not in self.view.segments or self.uploaded[number] != uploaded)
            for number, uploaded in before.uploaded.items()
            if number in before.view.segments
        )


class _Url:
    """Takes the place of a folder's path: a segment's path is the URL of its object."""

    def __init__(self, url: str, places: Mapping[int, UploadedSegment]) -> None:
        self._url = url
        self._names = {f"segment-{number:08}.bin": each.name for number, each in places.items()}

    def __truediv__(self, name: str) -> Path:
        return cast("Path", f"{self._url}/{self._names[name]}")


class _Folder(NamedTuple):
    """Takes the place of a `StoreFolder`, whose sealed segments are read."""

    files: Files
    path: _Url


class _Bytes(NamedTuple):
    """Takes the place of an open file."""

    data: bytes | np.ndarray
    nbytes: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing."""


class _Memory(Files):
    """System calls on a single file that is in memory."""

    def __init__(self, data: np.ndarray) -> None:
        self._file = _Bytes(data, len(data))

    def open(self, path: Path) -> FileIO:
        return cast("FileIO", self._file)

    def size(self, file: FileIO) -> int:
        return cast("_Bytes", file).nbytes

    def pread(self, file: FileIO, nbytes: int, offset: int) -> bytes:
        return bytes(cast("_Bytes", file).data[offset : offset + nbytes])


class _Tops(_Memory):
    """System calls on segments of which only headers and slot tables are in memory."""

    def __init__(self, tops: Mapping[int, bytes], entries: Mapping[int, SealedSegment]) -> None:
        self._tops = {number: _Bytes(top, entries[number].nbytes) for number, top in tops.items()}

    def open(self, path: Path) -> FileIO:
        number = int(str(path).rpartition("/segment-")[2][:8])
        if number not in self._tops:
            raise FileNotFoundError(path)
        return cast("FileIO", self._tops[number])


def _own_memory(loaded: LoadedSegment) -> LoadedSegment:
    """The same with a number of its own for each chunk, as each is in memory of its own."""
    records = loaded.records.copy()
    records["segment"] = loaded.segment.header.position + np.arange(len(records))
    return loaded._replace(records=records)


def _digest(data: bytes | np.ndarray) -> str:
    return hashlib.blake2b(cast("bytes", data), digest_size=16).hexdigest()


def _nothing_at(url: str, objects: Objects | None = None) -> StoreNotFound:
    names = [] if objects is None else [each.name for each in objects.listing(GROUP_RECORDS)]
    record = next(filter(None, map(GROUP_RECORD.fullmatch, names)), None)
    if record is not None:
        return StoreNotFound(
            f"{url} holds the stores of a collector's groups, expected one store: give one, such "
            f"as {url}/group-{record[1]}/attempt-{record[2]}; Folders({url!r}).stores() lists them"
        )
    return StoreNotFound(
        f"{url} holds no store, expected what `stepwell upload` or Folders has uploaded: check the "
        f"URL, or upload a store there"
    )
