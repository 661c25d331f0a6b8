"""Episodes in a folder, durable when `add` returns; one process writes, many read."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Generator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NoReturn, Self, cast, get_args

import numpy as np

from ...base.errors import SpecMismatch, StoreCorrupt, not_copied
from ...base.number_checks import check_choice, whole_number
from ...base.untrusted_json import json_text
from ...rows.episode import Chunk
from ...spec.spec import Spec
from ..checkpoint import pack, unpack
from ..chunk_codec import Buffer
from ..chunk_index import ChunkIndex, ChunkInfo
from ..encoded_chunk import EncodedChunk
from ..ram import whole_capacities
from .appender import SEGMENTS, Appender
from .files import Files
from .folder import StoreFolder
from .format import Manifest, StoreOptions
from .segment import LoadedSegment, Segment, SegmentMaps
from .snapshot import Border, Recovery, StoreSnapshot, read_view

__all__ = ["DiskStorage", "OnCorrupt", "Recovery", "closing_on_error"]

OnCorrupt = Literal["raise", "skip"]
"""Treatment of damaged chunks in a store that is opened for reading."""

_LOG = logging.getLogger("stepwell.buffers.storage")
_SEGMENT_BYTES = 64 << 20
_MIN_CAPACITY_BYTES = 1 << 20
_MOST_DEPTH = 90  # less than that of a manifest, which will contain it


class DiskStorage:
    """Keeps chunks in a folder of a local filesystem; made by `create` or `open`.

    One process at a time may write. Any number may read with ``read_only=True``, also meanwhile:
    they see the chunks that were stored when they opened the store, or last called `refresh`. After
    any crash the store opens with every chunk for which `add` returned. Every byte is covered by a
    checksum.

    Example:
        >>> import tempfile
        >>> import gymnasium as gym
        >>> from stepwell.buffers import Spec
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with DiskStorage.create(f"{folder}/a", spec, provenance={"source": "doc"}):
        ...         pass
        ...     with DiskStorage.open(f"{folder}/a", read_only=True) as storage:
        ...         storage.spec == spec, storage.provenance, len(storage.index)
        (True, {'source': 'doc'}, 0)
    """

    def __reduce__(self) -> NoReturn:
        not_copied("an open store", "open its folder again, DiskStorage.open(path, read_only=True)")

    def __init__(self, folder: StoreFolder, lock: FileIO | None, *, skip: bool = False) -> None:
        self._folder = folder
        self._skip = skip
        self._is_closed = False
        self._maps = SegmentMaps(folder.files)
        self._known: dict[int, LoadedSegment] = {}
        self._lost: set[int] = set()
        self._generation = 0
        self._lock = RLock()
        self._appender = None if lock is None else Appender(folder, lock, self._maps, self._lock)
        self._view = self._look(None) if self._appender is None else self._appender.view

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        spec: Spec,
        *,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
        provenance: Mapping[str, object] | None = None,
        files: Files | None = None,
    ) -> DiskStorage:
        """Make a store in a new or empty folder and open it for writing.

        Args:
            path: The folder, on a local filesystem.
            spec: The fields of every row.
            capacity: Steps to keep at most; the oldest files are evicted first, about a sixteenth
                of the steps at a time. None keeps everything.
            capacity_bytes: Bytes of disk to use at most, 1 MiB or more.
            segment_bytes: Size of the largest file, unless a single chunk, or a 128th of the store,
                is larger.
            provenance: JSON-able facts about the data.
            files: The system calls; tests inject faults here.

        Raises:
            ValueError: The folder is not empty, or a number is out of range.
            TypeError: The provenance is not JSON-able.
            StoreLocked: Another process creates a store in this folder.
        """
        capacity, capacity_bytes = _whole_limits(capacity, capacity_bytes)
        segment_bytes = whole_number("segment_bytes", segment_bytes, 0)
        if capacity_bytes is not None:
            segment_bytes = min(segment_bytes, capacity_bytes // SEGMENTS)
        facts = StoreOptions(
            *(spec, capacity, capacity_bytes, segment_bytes),
            _plain_json("provenance", provenance or {}),
        )
        folder = StoreFolder(path, files or Files())
        folder.make()
        lock = folder.lock()
        with closing_on_error(lock):
            folder.check_unused()  # again, as no other process can create one from here on
            folder.write_manifest(Manifest(os.urandom(16), facts))
            storage = cls(folder, lock)
        _LOG.info("%s: made a store", folder.path)
        return storage

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        on_corrupt: OnCorrupt = "raise",
        files: Files | None = None,
    ) -> DiskStorage:
        """Open the store in a folder, for writing unless ``read_only``.

        Args:
            path: The folder.
            read_only: Take no lock and write nothing.
            capacity: Steps to keep at most from now on; None keeps the present capacity.
            capacity_bytes: Bytes of disk to use at most from now on; None keeps the present one.
            on_corrupt: Treatment of damaged chunks: ``"raise"``, or, with ``read_only``, ``"skip"``
                them; `lost_chunks` counts those found so far.
            files: The system calls; tests inject faults here.

        Raises:
            StoreNotFound: There is no store in the folder.
            StoreLocked: Another process writes into it.
            StoreCorrupt: Something in it is damaged.
            StoreTooNew: A later version wrote it.
            ValueError: ``on_corrupt="skip"`` in a store that is opened for writing, or a capacity
                is out of range.
        """
        capacity, capacity_bytes = _whole_limits(capacity, capacity_bytes)
        check_choice("on_corrupt", on_corrupt, get_args(OnCorrupt))
        if on_corrupt == "skip" and not read_only:
            raise ValueError(
                "on_corrupt='skip': expected read_only=True, got a store to write into; run "
                "`stepwell repair` on it first"
            )
        folder = StoreFolder(path, files or Files())
        folder.check()
        if read_only:
            storage = cls(folder, None, skip=on_corrupt == "skip")
            storage._tell_opened("reading")
            return storage
        lock = folder.lock()
        with closing_on_error(lock):
            storage = cls(folder, lock)
            if storage._appender is not None:
                storage._appender.set_capacity(capacity, capacity_bytes)
        storage._tell_opened("writing")
        return storage

    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """True if there is a store in the folder."""
        return StoreFolder(path, Files()).is_store

    def __repr__(self) -> str:
        return (
            f"DiskStorage({str(self.path)!r}, capacity={self.capacity}, steps={self.index.steps}, "
            f"episodes={self.index.episodes}, fields=({self.spec.summary}))"
        )

    @property
    def lock(self) -> RLock:
        """Held while the index changes."""
        return self._lock

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        return self._view.manifest.facts.spec

    @property
    def index(self) -> ChunkIndex:
        """The index of the stored chunks; `refresh` makes a new one if there are others."""
        return self._view.index

    @property
    def nbytes(self) -> int:
        """Bytes of disk that the segments take, including space that is reserved for new chunks."""
        return self._view.nbytes

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most."""
        return self._view.manifest.facts.capacity

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes of disk to use at most."""
        return self._view.manifest.facts.capacity_bytes

    @property
    def provenance(self) -> Mapping[str, object]:
        """JSON-able facts about the data, as given to `create`."""
        return self._view.manifest.facts.provenance

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """JSON-able facts about the runs that wrote here, the oldest first."""
        return self._view.manifest.facts.sessions

    @property
    def facts(self) -> StoreOptions:
        """Facts about the store as a whole."""
        return self._view.manifest.facts

    @property
    def recovery(self) -> Recovery:
        """The traces of a crash that were found when the store was opened."""
        return self._view.recovery

    @property
    def lost_chunks(self) -> int:
        """Chunks that are left out: removed by `repair`, or skipped as damaged."""
        return self._view.lost_chunks

    @property
    def skips_corrupt(self) -> bool:
        """Damaged chunks are left out."""
        return self._skip

    @property
    def generation(self) -> int:
        """Grows when positions are assigned again: after a repair, and after `go_back`."""
        return self._generation

    @property
    def is_read_only(self) -> bool:
        """True if the store was opened with ``read_only=True``."""
        return self._appender is None

    @property
    def is_being_written(self) -> bool:
        """True if a running process, perhaps this one, has the store open for writing."""
        return self._folder.is_being_written

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Record, durably, that a new run writes here.

        Raises:
            TypeError: The facts are not JSON-able.
        """
        self._require_appender().append_session(_plain_json("facts", facts))

    def replace_spec(self, spec: Spec) -> bool:
        """Give another Spec to a store that never held a chunk, and remove its sessions.

        Returns:
            Whether it did: False where a chunk was stored, or a file for chunks was made.

        Raises:
            ValueError: The store was opened with ``read_only=True``.
            StoreFailed: A system call failed, now or earlier.
        """
        return self._require_appender().replace_spec(spec)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks; when it returns they are durable.

        After a crash all chunks of a call are stored or none, unless they did not fit in one file.

        Raises:
            ValueError: A chunk does not continue its episode, is larger than the capacity, or has a
                stream below -2^32 or above 2^32; nothing was stored.
            SpecMismatch: A field is missing or has another dtype or shape; nothing was stored.
            StoreFailed: The disk is full or failed, now or before; open the store again.
        """
        self._require_appender().add(chunks)

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """See `Storage.add_encoded`; the errors of `add` are those of this, too."""
        self._require_appender().add_encoded(chunks)

    def continue_episodes(self) -> None:
        """Let the next chunks continue episodes that an earlier process has left open.

        Without it reopening a store cuts them. For a writer that knows that its rows follow those.
        """
        index = self._require_appender().index
        with self._lock:
            index.continue_episodes()

    def payload(self, position: int) -> tuple[Buffer, int]:
        """See `Storage.payload`."""
        memory, segment, record = self._find(position)
        segment.prove(memory, position, record)
        return memory, record.offset

    def encoded(self, position: int) -> EncodedChunk:
        """See `Storage.encoded`."""
        with self._lock:
            memory, segment, record = self._find(position)
            return segment.encoded(memory, position, record)

    def metadata(self, position: int) -> Mapping[str, object]:
        """See `Storage.metadata`; the rows of the chunk are not read."""
        memory, segment, record = self._find(position)
        return segment.metadata(memory, position, record)

    def drop_before(self, row_id: int) -> None:
        """Evict sealed segments all of whose rows are older than the one with this id.

        Raises:
            ValueError: The store was opened with ``read_only=True``.
            StoreFailed: A system call failed, now or earlier.
        """
        self._require_appender().drop_before(row_id)

    def seal(self) -> None:
        """Complete the newest segment now; later chunks begin another.

        A complete segment is never written again. Without this, a segment is completed when it is
        full, and by `close`.

        Raises:
            ValueError: The store was opened with ``read_only=True``.
            StoreFailed: A system call failed, now or earlier.
        """
        self._require_appender().seal()

    def lose(self, position: int) -> None:
        """Leave out a chunk whose bytes are damaged, in this object only."""
        self._lost.add(position)
        record = self.index.record(position)
        _LOG.warning(
            "%s: left out a damaged chunk, %d rows of episode %d",
            *(self.path, record.rows, record.episode),
        )
        self.index.lose([position])

    @property
    def store(self) -> str:
        """The store's name, 32 hexadecimal digits drawn when it was made."""
        return self._view.manifest.store.hex()

    def save_checkpoint(self, name: str, state: Mapping[str, object]) -> None:
        """Store state with the data, durably, and replace the state of that name.

        Args:
            name: Letters, digits, - and _.
            state: Nested mappings and lists of JSON values and numpy arrays.

        Raises:
            TypeError: The state contains another type.
            ValueError: The name has other characters; nothing has changed.
        """
        appender = self._require_appender()
        self._folder.checkpoint_path(name)  # refuses a name before the writer, which it would end
        appender.save_checkpoint(name, pack(state))

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """The state of that name.

        Raises:
            StoreNotFound: There is no checkpoint of that name.
            StoreCorrupt: Its bytes are damaged.
        """
        self._check_open()
        data = self._folder.read_checkpoint(name)
        return unpack(data, f"checkpoint {name!r} of {self.path}")

    def border(self) -> dict[str, object]:
        """The end of the store now, as JSON-able values for `go_back`."""
        return self._require_appender().border.to_json()

    def go_back(self, border: object, position: int) -> None:
        """Remove all that was stored since a checkpoint, and bring back what was evicted since.

        After a crash the store is as before, or as at the checkpoint.

        Args:
            border: What `border` returned then.
            position: Number of chunks that had been stored.

        Raises:
            ValueError: The border is none, or a file with rows of it is gone; nothing has changed.
            StoreCorrupt: It does not fit the files; nothing has changed.
            StoreFailed: A system call failed, now or earlier; open the store again.
        """
        appender = self._require_appender()
        with self._lock:
            appender.go_back(Border.from_json(border), position)
            self._view = appender.view
            self._generation += 1

    def refresh(self) -> bool:
        """Read the chunks that the writer has stored since; only for a read-only store.

        Returns:
            True if the index changed. The earlier index object is not modified.

        Raises:
            StoreCorrupt: New bytes are damaged.
            SpecMismatch: The store was empty, and has other fields now.
        """
        self._check_open()
        if not self.is_read_only:
            raise ValueError(f"{self.path} is open for writing, expected read_only=True: leave it")
        with self._lock:
            before = self._view
            now = self._look(before)
            if now.manifest.facts.spec != self.spec:
                raise SpecMismatch(
                    f"{self.path} has other fields than when it was opened: "
                    f"{self.spec.difference(now.manifest.facts.spec)}; open it again"
                )
            self._view = now
            # A segment that vanished from the middle was removed by `repair` or `go_back`, and one
            # that came in the middle is from `go_back`: numbers of chunks are assigned again.
            old, new, end = before.segments, now.segments, sum(before.extent)
            is_other = any(number >= min(new, default=-1) for number in old.keys() - new.keys())
            is_other |= any(new[number].header.position < end for number in new.keys() - old.keys())
            self._generation += is_other
            return is_other or before.extent != now.extent

    def close(self) -> None:
        """Seal the newest segment and release files and lock; closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self._maps.clear()
        if self._appender is not None:
            self._appender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _find(self, position: int) -> tuple[np.ndarray, Segment, ChunkInfo]:
        """The memory, the segment and the record of a chunk."""
        self._check_open()
        return self._view.find(self._maps, position)

    def _look(self, before: StoreSnapshot | None) -> StoreSnapshot:
        """Read the current state of the store; the view before is returned if nothing changed."""
        seen = ""
        while True:
            view = read_view(self._folder, self._known, before, skip=self._skip)
            try:
                self._hold(view)
            except StoreCorrupt as error:
                # A segment may be evicted after this read: then the next read shows it.
                if str(error) == seen:
                    raise
                seen = str(error)
            else:
                break
        if self._lost and view is not before:
            view.index.lose(lost for lost in self._lost if lost >= view.index.base)
        return view

    def _hold(self, view: StoreSnapshot) -> None:
        """Map segments that may be evicted, so that they stay readable."""
        for number in self._maps.numbers - set(view.segments):
            self._maps.forget(number)
        if view.manifest.facts.is_ring:
            for segment in view.segments.values():
                self._maps.of(segment)

    def _tell_opened(self, purpose: str) -> None:
        """Log that the store is open, and the traces of a crash that a writer has removed."""
        counts = self.index.steps, self.index.episodes
        _LOG.info("%s: opened for %s, %d steps in %d episodes", self.path, purpose, *counts)
        if self._skip and self.lost_chunks:
            _LOG.warning("%s: %d damaged chunks are left out", self.path, self.lost_chunks)
        if self._appender is not None and any(self.recovery):
            _LOG.warning(
                "%s: recovered from a crash: %d copies of slots made again, %d chunks of an "
                "unfinished flush left out",
                *(self.path, self.recovery.healed, self.recovery.torn),
            )

    def _require_appender(self) -> Appender:
        self._check_open()
        if self._appender is None:
            raise ValueError(
                f"{self.path} was opened with read_only=True, expected a store to write into: "
                f"open it without"
            )
        return self._appender

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.path} is closed, expected an open store: open it again")


def _whole_limits(
    capacity: int | None, capacity_bytes: int | None
) -> tuple[int | None, int | None]:
    """The capacities as ints, if a folder may have them."""
    capacity, capacity_bytes = whole_capacities(capacity, capacity_bytes)
    if capacity_bytes is not None and capacity_bytes < _MIN_CAPACITY_BYTES:
        raise ValueError(
            f"capacity_bytes: expected at least {_MIN_CAPACITY_BYTES} for a folder, got "
            f"{capacity_bytes}; raise it, or keep the replay in memory"
        )
    return capacity, capacity_bytes


def _plain_json(name: str, value: Mapping[str, object]) -> dict[str, object]:
    """The value of an argument as it is read back from a file."""
    return cast("dict[str, object]", json.loads(json_text(dict(value), _MOST_DEPTH, name)))


@contextlib.contextmanager
def closing_on_error(file: FileIO) -> Generator[None]:
    """Close a file if the block raises."""
    try:
        yield
    except BaseException:
        file.close()
        raise
