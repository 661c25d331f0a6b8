"""A writer that adds, evicts, is killed and reopened, and two readers, against a list."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepwell.buffers import Chunk, DiskStorage, End
from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from stepwell.buffers.storage.disk import snapshot
from stepwell.buffers.testing import Recording, assert_holds, rows_of
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import create
from support.models.chunk_model import KINDS, assert_same_index, same_records

CAPACITY = 480  # chunks of up to 30 rows are kept whole
CAPACITY_BYTES = 1 << 20

FLUSHES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 30),
        st.sampled_from([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]),
    ),
    min_size=1,
    max_size=4,
)
EITHER = st.integers(0, 1)
NOISE = np.random.default_rng(0).integers(0, 256, (150, 12, 8), np.uint8)


class Killed(BaseException):
    """Stands for the end of the process."""


class KillingFiles(NoSyncFiles):
    """Raises `Killed` in one of the next writes, of which some bytes are written."""

    def __init__(self) -> None:
        self.writes_left: int | None = None
        self.share_of_last = 0.0

    def pwrite(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                super().pwrite(file, data[: int(self.share_of_last * len(data))], offset)
                raise Killed
        return super().pwrite(file, data, offset)


@dataclass
class Reader:
    """A reader and what it must see: chunks ``base .. end`` of the list."""

    storage: DiskStorage
    base: int
    end: int


def drop(storage: DiskStorage) -> None:
    """Close files and lock and write nothing, as the kernel does after kill -9."""
    appender = storage._appender
    assert appender is not None
    if appender._writer is not None:
        appender._writer.close()
    appender._lock.close()


class WriterAndReaders(RuleBasedStateMachine):
    """The list is never cut: the position of the oldest chunk tells how much was evicted."""

    @initialize(ring=st.sampled_from(["dataset", "steps", "bytes"]), many=st.sampled_from([0, 32]))
    def make(self, ring: str, many: int) -> None:
        # With 0 an index is continued whenever it can be, also by more chunks than it has.
        self.patch = mock.patch.object(snapshot, "_MANY_NEW", many)
        self.patch.start()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "a"
        self.added: list[Chunk] = []
        self.recording = Recording()
        self.readers: dict[int, Reader] = {}
        self.oldest = 0
        self.not_evicted = 0  # steps at most above the capacity, as a kill came before the eviction
        self.capacity = CAPACITY if ring == "steps" else None
        budget = CAPACITY_BYTES if ring == "bytes" else None
        create(self.path, capacity=self.capacity, capacity_bytes=budget).close()
        self.open_writer()

    def teardown(self) -> None:
        for reader in self.readers.values():
            self.check_all(reader)
            reader.storage.close()
        if hasattr(self, "writer"):
            self.writer.close()
            shutil.rmtree(self.folder)
            self.patch.stop()

    # --- the writer -------------------------------------------------------------------------------

    @rule(flush=FLUSHES)
    def add(self, flush: list[tuple[int, int, End]]) -> None:
        chunks = [self.recording.chunk(*each) for each in flush]
        self.writer.add(chunks)
        self.added += chunks
        self.not_evicted = 0

    @rule(calls=st.integers(2, 8))
    def add_much(self, calls: int) -> None:
        """Enough to seal segments, and to evict in a ring."""
        for _ in range(calls):
            chunks = [self.large_chunk(stream) for stream in range(3)]
            self.writer.add(chunks)
            self.added += chunks
        self.not_evicted = 0

    @rule(end=st.sampled_from([DiskStorage.close, drop]))
    def close_or_kill_and_reopen(self, end: Callable[[DiskStorage], None]) -> None:
        before = self.writer.index
        end(self.writer)
        self.open_writer()
        after = self.writer.index
        assert same_records(after.records, before.records)
        assert (after.base, after.counters) == (before.base, before.counters)
        assert (after.steps, after.episodes) == (before.steps, before.episodes)

    @rule(flush=FLUSHES, writes=st.integers(0, 8), share=st.floats(0, 1))
    def kill_while_adding_or_closing(
        self, flush: list[tuple[int, int, End]], writes: int, share: float
    ) -> None:
        """The last flush may be stored or not; readers and the next writer must agree."""
        chunks = [self.recording.chunk(*each) for each in flush]
        self.files.writes_left, self.files.share_of_last = writes, share
        try:
            self.writer.add(chunks)
            self.writer.close()
        except Killed:
            drop(self.writer)
        with DiskStorage.open(self.path, read_only=True, files=NoSyncFiles()) as seen:
            more = seen.index.base + len(seen.index) - len(self.added)
        assert 0 <= more <= len(chunks)
        self.added += chunks[:more]
        self.not_evicted += sum(chunk.rows for chunk in chunks[:more])
        self.open_writer()

    @rule()
    def kill_and_move(self) -> None:
        """Continue a copy of the folder as a killed process leaves it; the readers are closed."""
        self.path = Path(shutil.copytree(self.path, self.path.with_name(self.path.name + "a")))
        self.writer.close()
        for reader in self.readers.values():
            self.check_all(reader)
            reader.storage.close()
        self.readers.clear()
        self.open_writer()

    # --- the readers ------------------------------------------------------------------------------

    @rule(number=EITHER)
    def open_reader(self, number: int) -> None:
        if number in self.readers:
            self.readers.pop(number).storage.close()
        storage = DiskStorage.open(self.path, read_only=True, files=NoSyncFiles())
        self.readers[number] = Reader(storage, self.writer.index.base, len(self.added))
        self.check_all(self.readers[number])

    @precondition(lambda self: self.readers)
    @rule(number=EITHER)
    def close_reader(self, number: int) -> None:
        if number in self.readers:
            self.readers.pop(number).storage.close()

    @precondition(lambda self: self.readers)
    @rule(number=EITHER)
    def refresh_reader(self, number: int) -> None:
        if number in self.readers:
            reader = self.readers[number]
            is_new = (reader.base, reader.end) != (self.writer.index.base, len(self.added))
            before = reader.storage.index
            counted, records = [before.items(kind).total for kind in KINDS], before.records.copy()
            assert reader.storage.refresh() == is_new
            reader.base, reader.end = self.writer.index.base, len(self.added)
            # What was seen before is not changed, and what is seen now is what a new reader sees.
            assert np.array_equal(before.records, records)
            assert [before.items(kind).total for kind in KINDS] == counted
            with DiskStorage.open(self.path, read_only=True, files=NoSyncFiles()) as new:
                assert_same_index(reader.storage.index, new.index)

    @precondition(lambda self: self.readers)
    @rule(number=EITHER)
    def read_everything(self, number: int) -> None:
        if number in self.readers:
            self.check_all(self.readers[number])

    @precondition(lambda self: self.readers)
    @rule(number=EITHER, place=st.floats(0, 1, exclude_max=True))
    def read_one_chunk(self, number: int, place: float) -> None:
        reader = self.readers.get(number)
        if reader is not None and reader.end > reader.base:
            position = reader.base + int(place * (reader.end - reader.base))
            assert_chunk_is(reader.storage, position, self.added[position])

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def the_writer_has_the_end_of_the_list(self) -> None:
        if hasattr(self, "writer"):
            index = self.writer.index
            assert index.base + len(index) == len(self.added)
            assert index.base >= self.oldest
            self.oldest = index.base
            if self.capacity is not None:
                assert index.steps <= self.capacity + self.not_evicted
                assert index.base == 0 or index.steps > self.capacity // 2
            elif self.writer.capacity_bytes is not None:
                assert self.writer.nbytes <= CAPACITY_BYTES
            else:
                assert index.base == 0

    @invariant()
    def readers_see_what_they_saw(self) -> None:
        for reader in getattr(self, "readers", {}).values():
            assert (reader.storage.index.base, len(reader.storage.index)) == (
                reader.base,
                reader.end - reader.base,
            )

    def large_chunk(self, stream: int) -> Chunk:
        """Noise, of which two chunks do not go into one segment where bytes are counted."""
        rows = 120 if self.capacity is None else 30
        chunk = self.recording.chunk(stream, rows, End.TRUNCATED)
        noise = np.roll(NOISE, chunk.episode, axis=0)[:rows]
        return replace(chunk, fields={**chunk.fields, "observation": noise})

    def open_writer(self) -> None:
        self.files = KillingFiles()
        self.writer = DiskStorage.open(self.path, files=self.files)
        self.recording.open.clear()  # an unfinished episode stays cut
        self.recording.next_episode = self.writer.index.next_episode

    def check_all(self, reader: Reader) -> None:
        for position in range(reader.base, reader.end):
            assert_chunk_is(reader.storage, position, self.added[position])
        if reader.end - reader.base < 60:  # quadratic in the chunks
            assert_holds(reader.storage, self.added[reader.base : reader.end])


def assert_chunk_is(storage: DiskStorage, position: int, chunk: Chunk) -> None:
    """A chunk has the rows that were added, bit by bit."""
    record = storage.index.record(position)
    assert (record.episode, record.first_row) == (chunk.episode, chunk.first_row)
    assert record.stored_rows == chunk.rows
    buffer, origin = storage.payload(position)
    reader = ChunkDecoder(storage.spec)
    for place, field in enumerate(storage.spec.fields):
        rows = rows_of(0, 0, chunk.rows)[field.name]
        reader.read(buffer, origin, chunk.rows, place, 0, rows)
        assert rows.tobytes() == chunk.fields[field.name].tobytes()
    assert list(chunk.fields) == storage.spec.names


TestWriterAndReaders = WriterAndReaders.TestCase
TestWriterAndReaders.settings = settings(
    stateful_step_count=25, max_examples=max(1, settings().max_examples // 4)
)
