"""The only writer of a store: recovers it, appends chunks, seals and evicts segments."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import FileIO
from threading import RLock
from typing import NamedTuple

from ...base.errors import StoreCorrupt, StoreFailed, StoreLocked
from ...base.untrusted_json import MOST
from ...rows.episode import Chunk
from ...spec.spec import Spec
from ..chunk_codec import Buffer, ChunkDecoder, ChunkEncoder
from ..chunk_index import ChunkIndex, Counters
from ..encoded_chunk import EncodedChunk, fitting_chunks
from ..ram import check_chunk_bytes, max_chunk_rows
from .files import path_kind
from .folder import StoreFolder
from .format import (
    MOST_SEGMENTS,
    MOST_STREAM,
    Header,
    Manifest,
    NextNumbers,
    SealedSegment,
    StoreOptions,
    align,
)
from .segment import LoadedSegment, SegmentMaps, load, segment_path
from .snapshot import Border, StoreSnapshot, load_all
from .writer import SegmentSizes, SegmentWriter, truncate, write_missing_copies

_LOG = logging.getLogger("stepwell.buffers.storage")
SEGMENTS = 16
# A large store has larger files rather than more: each map may hold a descriptor.
_MOST_SEGMENTS, _MOST_BYTES = 128, 1 << 30
"""Files that a budget in bytes is divided into: a whole one is evicted at a time."""

_SPARE_SEGMENTS = 1 << 20  # that a writer can still begin, at least


class Appender:
    """Changes a store, as its only writer."""

    def __init__(
        self,
        folder: StoreFolder,
        lock: FileIO,  # held
        maps: SegmentMaps,  # of which those of evicted segments are dropped
        index_lock: RLock,  # held while the index changes
    ) -> None:
        self._folder = folder
        self._lock = lock
        self._maps = maps
        self._index_lock = index_lock
        self._pid = os.getpid()
        self._failure: str | None = None
        self._writer: SegmentWriter | None = None
        manifest = folder.read_newest_manifest()
        loaded = load_all(folder, manifest)
        self.view = StoreSnapshot(manifest, loaded)
        self._check_room()
        self._recover(loaded)
        self._encoder = ChunkEncoder(manifest.facts.spec)
        self._decoder = ChunkDecoder(manifest.facts.spec)
        self._sizes = SegmentSizes.first(manifest.facts.segment_bytes)
        self._needed = set[int]()  # segments that were live at the newest checkpoint

    @property
    def _manifest(self) -> Manifest:
        return self.view.manifest

    @property
    def _facts(self) -> StoreOptions:
        return self.view.manifest.facts

    @property
    def index(self) -> ChunkIndex:
        """The index of the stored chunks."""
        return self.view.index

    def payload(self, position: int) -> tuple[Buffer, int]:
        """See `DiskStorage.payload`."""
        memory, segment, record = self.view.find(self._maps, position)
        segment.prove(memory, position, record)
        return memory, record.offset

    def metadata(self, position: int) -> Mapping[str, object]:
        """See `DiskStorage.metadata`."""
        memory, segment, record = self.view.find(self._maps, position)
        return segment.metadata(memory, position, record)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """See `DiskStorage.add`."""
        self._check()
        _check_streams(chunks)
        max_rows = max_chunk_rows(self._facts.capacity)
        parts = [part for chunk in chunks for part in chunk.split(max_rows)]
        self.view.index.check(parts)
        encoded = [EncodedChunk.of(self._encoder, part) for part in parts]
        self._check_sizes(encoded)
        self._store(encoded)

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """See `DiskStorage.add_encoded`."""
        self._check()
        _check_streams(chunks)
        max_rows = max_chunk_rows(self._facts.capacity)
        encoded = fitting_chunks(chunks, max_rows, self._decoder, self._encoder)
        self.view.index.check(encoded)
        self._check_sizes(encoded)
        self._store(encoded)

    def _check_sizes(self, encoded: Sequence[EncodedChunk]) -> None:
        """Refuse a chunk that alone takes more than the capacity in bytes."""
        if self._facts.capacity_bytes is not None and encoded:
            largest = max(encoded, key=lambda each: each.nbytes)
            file_bytes = self._next_header(self._sizes.with_room_for([largest])).file_bytes
            check_chunk_bytes(largest, file_bytes, self._facts.capacity_bytes)

    def _store(self, chunks: Sequence[EncodedChunk]) -> None:
        """Write checked chunks, and evict the oldest segments."""
        rest = chunks
        max_rows = max_chunk_rows(self._facts.capacity)
        with self._poisoning():
            while rest:
                writer = self._writer
                count = 0 if writer is None else writer.count_fitting(rest, max_rows)
                if writer is None or not count:
                    writer = self._open_segment(rest)
                    count = writer.count_fitting(rest, max_rows)
                writer.commit(rest[:count], self.view.index)
                rest = rest[count:]
                self._evict_steps()
        if _LOG.isEnabledFor(logging.DEBUG):
            rows = sum(chunk.rows for chunk in chunks)
            _LOG.debug("%s: stored %d chunks, %d rows", self._folder.path, len(chunks), rows)

    def drop_before(self, row_id: int) -> None:
        """See `DiskStorage.drop_before`."""
        self._check()
        with self._poisoning():
            while self._manifest.sealed and self.view.index.oldest_segment_stop <= row_id:
                self._evict()

    def seal(self) -> None:
        """See `DiskStorage.seal`."""
        self._check()
        with self._poisoning():
            self._seal()

    def append_session(self, facts: Mapping[str, object]) -> None:
        """See `DiskStorage.append_session`."""
        self._check()
        sessions = (*self._facts.sessions, facts)
        with self._poisoning():
            self._write_facts(replace(self._facts, sessions=sessions))

    def replace_spec(self, spec: Spec) -> bool:
        """See `DiskStorage.replace_spec`."""
        self._check()
        # Every segment repeats the Spec, so one of them, even without a chunk, settles it.
        if self._manifest.numbers or self.view.next != NextNumbers():
            return False
        with self._poisoning():
            self._write_facts(replace(self._facts, spec=spec, sessions=()))
        self._encoder, self._decoder = ChunkEncoder(spec), ChunkDecoder(spec)
        return True

    def save_checkpoint(self, name: str, data: bytes) -> None:
        """See `DiskStorage.save_checkpoint`."""
        self._check()
        with self._poisoning():
            self._folder.write_checkpoint(name, data)
            self._needed = set(self._manifest.numbers)
            self._folder.remove_held(self._needed)

    @property
    def border(self) -> Border:
        """The end of the store now."""
        return Border(
            self.view.index.counters,
            len(self._facts.sessions),
            {number: segment.chunks for number, segment in self.view.segments.items()},
            self._writer is not None,
            (self._sizes.slots, self._sizes.data_bytes),
        )

    def go_back(self, border: Border, position: int) -> None:
        """See `DiskStorage.go_back`."""
        self._check()
        manifest, loaded = self._read_back(border, position)
        before, folder = self.view.segments, self._folder
        with self._poisoning():
            folder.files.fsync_folder(folder.path)  # which has other names since `_read_back`
            self._close_writer()
            if border.is_open:
                manifest = self._begin_again(manifest, loaded)
                header = loaded[-1].segment.header
                sizes = zip(border.sizes, (header.slots, header.data_bytes), strict=True)
                self._sizes = SegmentSizes(*map(min, sizes))
            folder.write_manifest(manifest)
            with self._index_lock:
                self.view = StoreSnapshot(manifest, loaded)
                self._maps.clear()
            self._needed = set(border.segments)
            for number in {*before, *border.segments}.difference(manifest.numbers):
                self._discard(number)
            folder.remove_held(self._needed)
        _LOG.info("%s: went back to the checkpoint at chunk %d", folder.path, position)

    def _read_back(self, border: Border, position: int) -> tuple[Manifest, list[LoadedSegment]]:
        """The manifest and the segments of a border; ValueError if they are not there any more."""
        now, live, folder = self._facts, self.view.segments, self._folder
        sealed = {entry.number: entry for entry in self._manifest.sealed}
        for number in border.segments.keys() - live.keys():
            folder.unhold(number)
        try:
            entries: list[SealedSegment] = []
            for number, slots in border.segments.items():
                path = segment_path(folder.path, number)
                if path_kind(path) != "file":
                    raise ValueError(
                        f"exact: expected {path}, which holds rows of the checkpoint, got none: it "
                        f"was evicted by a writer that had neither saved nor loaded this "
                        f"checkpoint, or another was saved since; load it without exact"
                    )
                entry = sealed.get(number, SealedSegment(number, path.stat().st_size, slots))
                entries.append(entry._replace(slots=slots))
            manifest = Manifest(
                self._manifest.store,
                replace(now, sessions=now.sessions[: border.sessions]),
                tuple(entries),
                None,
                NextNumbers(self.view.next.segment, position, *border.counters),
            )
            loaded = load_all(folder, manifest)
            view = StoreSnapshot(manifest, loaded)
            found = len(manifest.facts.sessions), sum(view.extent), view.index.counters
            is_later = any(map(int.__gt__, border.counters, self.view.index.counters))
            if is_later or found != (border.sessions, position, border.counters):
                expected = border.sessions, position, border.counters
                raise StoreCorrupt(
                    f"{folder.path} does not fit the checkpoint: expected sessions, chunks and "
                    f"counters {expected}, got {found}; load it without exact"
                )
        except (ValueError, StoreCorrupt):
            for number in border.segments.keys() - live.keys():
                if path_kind(segment_path(folder.path, number)) == "file":
                    folder.hold(number)
            raise
        return manifest, loaded

    def _begin_again(self, manifest: Manifest, loaded: list[LoadedSegment]) -> Manifest:
        """Continue the last segment in a new file, as no byte of a file is changed."""
        folder, number = self._folder, manifest.next.segment
        # A crash then leaves a file whose number was used, and which is removed.
        following = manifest.next._replace(segment=number + 1)
        used = self._manifest.next._replace(segment=number + 1)
        self.view.manifest = replace(self._manifest, next=used)
        folder.write_manifest(self.view.manifest)
        source = loaded.pop()
        header = replace(source.segment.header, number=number)
        writer = SegmentWriter(folder.files, folder.path, header, self._index_lock)
        self._writer = writer
        writer.begin_with(source)
        manifest = replace(manifest, sealed=manifest.sealed[:-1], open=number, next=following)
        loaded.append(load(folder.files, folder.path, manifest, number))
        writer.segment = loaded[-1].segment
        return manifest

    def set_capacity(self, capacity: int | None, capacity_bytes: int | None) -> None:
        """Change the capacities; None leaves one as it was."""
        before = self._facts
        changed = replace(
            before,
            capacity=before.capacity if capacity is None else capacity,
            capacity_bytes=before.capacity_bytes if capacity_bytes is None else capacity_bytes,
        )
        if changed.capacity_bytes is not None:
            segment_bytes = min(before.segment_bytes, changed.capacity_bytes // SEGMENTS)
            changed = replace(changed, segment_bytes=segment_bytes)
        if changed != before:
            with self._poisoning():
                self._write_facts(changed)
            self._sizes = SegmentSizes.first(changed.segment_bytes)

    def close(self) -> None:
        """Seal the newest segment and free the lock."""
        try:
            if self._failure is None and self._pid == os.getpid():
                with self._poisoning():
                    self._seal()
        finally:
            self._close_writer()
            self._lock.close()

    def _check_room(self) -> None:
        """Refuse a store whose numbers are nearly used up, which no writer leaves."""
        segment, *others = self.view.next
        if segment > MOST_SEGMENTS - _SPARE_SEGMENTS or max(others) > MOST // 2:
            raise StoreCorrupt(
                f"{self._folder.path}: expected numbers for new rows, got {self.view.next} as the "
                f"next ones; copy what is there into a new store, with: stepwell copy"
            )

    def _recover(self, loaded: Sequence[LoadedSegment]) -> None:
        """Recover the folder after a crash: complete the slots, seal, remove what is left over."""
        files, manifest = self._folder.files, self._manifest
        # The previous writer may have been killed after the rename and before this sync.
        files.fsync_folder(self._folder.path)
        for each in loaded:
            is_open = each.entry.number == manifest.open
            if is_open or len(each.committed.missing_a) or len(each.committed.missing_b):
                write_missing_copies(files, each, is_open=is_open)
        if manifest.open is not None:
            sealed = tuple(each.entry for each in loaded)
            self._write_manifest(replace(manifest, sealed=sealed, open=None))
        for each in loaded:
            truncate(files, each)
        self._folder.sweep(self._manifest)

    def _next_header(self, sizes: SegmentSizes) -> Header:
        """The header of a new segment."""
        following = self.view.next
        return Header(
            self._manifest.store,
            following.segment,
            sizes.slots,
            align(sizes.data_bytes),
            following.position,
            Counters(*following[2:]),
            self._facts.short_text,
        )

    def _open_segment(self, waiting: Sequence[EncodedChunk]) -> SegmentWriter:
        """Begin a new segment that has room for the first one of some chunks, or for more."""
        full = self._writer
        self._seal()
        share = min(self.view.nbytes // _MOST_SEGMENTS, _MOST_BYTES)
        segment_bytes = max(share, self._facts.segment_bytes)
        if full is not None:
            self._sizes = self._sizes.after(full, segment_bytes)
        max_rows = max_chunk_rows(self._facts.capacity)
        sizes = self._sizes.with_room_for(waiting, segment_bytes, max_rows)
        header = self._next_header(sizes)
        self._evict_bytes(header.file_bytes)
        self._writer = SegmentWriter(
            self._folder.files, self._folder.path, header, self._index_lock
        )
        self._write_manifest(replace(self._manifest, open=header.number))
        self.view.segments[header.number] = self._writer.segment
        return self._writer

    def _seal(self) -> None:
        """Complete the newest segment."""
        writer = self._writer
        if writer is None:
            return
        entry = writer.seal()
        sealed = (*self._manifest.sealed, entry)
        self._write_manifest(replace(self._manifest, sealed=sealed, open=None))
        writer.truncate(entry)
        self._writer = None
        _LOG.debug("%s: sealed segment %d", self._folder.path, entry.number)

    def _evict_steps(self) -> None:
        most = self._facts.capacity
        while most is not None and self._manifest.sealed and self.view.index.steps > most:
            self._evict()

    def _evict_bytes(self, needed: int) -> None:
        most = self._facts.capacity_bytes
        while most is not None and self._manifest.sealed and self.view.nbytes + needed > most:
            self._evict()

    def _evict(self) -> None:
        """Evict the oldest segment; readers that have it mapped can still read it."""
        entry, *rest = self._manifest.sealed
        index = self.view.index
        before = len(index)
        self._write_manifest(replace(self._manifest, sealed=tuple(rest)))
        with self._index_lock:
            while len(index) and int(index.records["segment"][0]) <= entry.number:
                index.drop_segment()
            self._maps.forget(entry.number)
            del self.view.segments[entry.number]
        self._discard(entry.number)
        _LOG.debug(
            "%s: evicted segment %d, %d chunks",
            self._folder.path,
            entry.number,
            before - len(index),
        )

    def _discard(self, number: int) -> None:
        """Remove a segment that is not listed any more, or keep it for the newest checkpoint."""
        if number in self._needed:
            self._folder.hold(number)
        else:
            self._folder.files.unlink(segment_path(self._folder.path, number))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write_facts(self, facts: StoreOptions) -> None:
        self._write_manifest(replace(self._manifest, facts=facts))

    def _write_manifest(self, manifest: Manifest) -> None:
        complete = replace(manifest, next=self.view.next)
        self._folder.write_manifest(complete)
        self.view.manifest = complete

    def _check(self) -> None:
        path = self._folder.path
        if self._pid != os.getpid():
            raise StoreLocked(
                f"{path} is written by pid {self._pid}, this is its fork {os.getpid()}, expected "
                f"one writer: open the store with read_only=True here",
                holder=f"pid {self._pid}",
            )
        if self._failure is not None:
            raise StoreFailed(self._failure)

    def _poisoning(self) -> _Poisoning:
        """Refuse all writes after a failed call, whose effects are unknown."""
        return _Poisoning(self._fail)

    def _fail(self, error: BaseException) -> None:
        self._failure = (
            f"writing into {self._folder.path} failed ({_describe(error)}); what was stored "
            f"before is kept: fix the cause, then open the store again"
        )
        if isinstance(error, OSError):
            raise StoreFailed(self._failure) from error


class _Poisoning(NamedTuple):
    """Gives an error of the block to a function; `contextlib` takes three times as long for it."""

    fail: Callable[[BaseException], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)


def _check_streams(chunks: Sequence[Chunk | EncodedChunk]) -> None:
    """Refuse streams that no store can hold, as those of stores that are read as one."""
    for chunk in chunks:
        if not -MOST_STREAM <= chunk.stream <= MOST_STREAM:
            raise ValueError(
                f"chunk of episode {chunk.episode}: expected a stream from {-MOST_STREAM} to "
                f"{MOST_STREAM}, got {chunk.stream}; number the envs from 0 on, and copy stores "
                f"that are read as one with copy_episodes"
            )


def _describe(error: BaseException) -> str:
    """A short description of the error."""
    return (error.strerror if isinstance(error, OSError) else None) or repr(error)
