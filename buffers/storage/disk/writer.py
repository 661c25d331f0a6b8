"""Writes the newest segment of a store."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import numpy as np

from ...base.native import crc32
from ..chunk_codec import Part
from ..chunk_index import ChunkIndex
from ..encoded_chunk import EncodedChunk
from .files import Files, write_at
from .format import SLOT, Header, SealedSegment, Slot, align, pack_slots
from .segment import LoadedSegment, Segment, segment_path

_MIN_SLOTS = 256
_MIN_DATA_BYTES = 1 << 20
_MIN_BYTES_A_SLOT = 512
_LONG_BYTES = 1 << 16
_RUN_BYTES = 1 << 20


class SegmentSizes(NamedTuple):
    """The space in a segment."""

    # A run begins with a small segment, and the resource that ran out is doubled in the next one.
    # So neither a short run nor one with few large chunks leaves much space unused. Chunks that are
    # added together get a segment of their size.

    slots: int
    data_bytes: int

    @classmethod
    def first(cls, segment_bytes: int) -> SegmentSizes:
        """The sizes with which a run begins."""
        return cls(min(_MIN_SLOTS, segment_bytes // 4096 + 1), min(_MIN_DATA_BYTES, segment_bytes))

    def after(self, full: SegmentWriter, segment_bytes: int) -> SegmentSizes:
        """The sizes of the segment that follows a full one."""
        slots, data_bytes = self
        if full.free_slots == 0:
            slots = min(2 * slots, max(slots, _most_slots(segment_bytes)))
        elif full.used_data_bytes > data_bytes // 2:
            data_bytes = min(2 * data_bytes, segment_bytes)
        return SegmentSizes(slots, data_bytes)

    def with_room_for(
        self, chunks: Sequence[EncodedChunk], segment_bytes: int = 0, max_rows: int = 0
    ) -> SegmentSizes:
        """At least these sizes, with room for the first chunk, and for more within the limits."""
        # The limits are those of a segment.
        slots, data_bytes, rows = 0, 0, 0
        most_slots = _most_slots(segment_bytes)
        for chunk in chunks:
            nbytes, rows = chunk.nbytes, rows + chunk.rows
            is_full = slots >= most_slots or data_bytes + nbytes > segment_bytes or rows > max_rows
            if slots and is_full:
                break
            slots, data_bytes = slots + 1, data_bytes + nbytes
        return SegmentSizes(max(self.slots, slots), max(self.data_bytes, data_bytes))


def _most_slots(segment_bytes: int) -> int:
    """Slots that a segment begins with at most."""
    return segment_bytes // _MIN_BYTES_A_SLOT


class SegmentWriter:
    """Appends chunks to a new segment, which belongs to the store once the manifest lists it."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        header: Header,
        index_lock: RLock,  # held while the index changes
    ) -> None:
        self._files = files
        self._index_lock = index_lock
        self._header = header
        self._file = _create(files, folder, header)
        self._table_offsets = header.table_offsets
        self._slots = 0
        self._data_begin = self._data_end = header.data_offset
        self.segment = Segment(segment_path(folder, header.number), header, header.file_bytes)
        self.rows = 0

    def begin_with(self, loaded: LoadedSegment) -> None:
        """Make the chunks of another segment durable here, as one flush."""
        slots, end = loaded.committed.slots.copy(), loaded.segment.used_bytes
        slots["group"], slots["group_slots"] = 0, len(slots)
        with self._files.open(loaded.segment.path) as old:
            for start in range(self._data_begin, end, _RUN_BYTES):
                run = self._files.pread(old, min(_RUN_BYTES, end - start), start)
                write_at(self._files, self._file, run, start)
        packed = pack_slots(self._header, slots)
        for offset in self._table_offsets:
            write_at(self._files, self._file, packed, offset)
            self._files.fdatasync(self._file)
        self.segment.extend(slots)
        self._slots, self._data_end, self.rows = len(slots), end, int(slots["rows"].sum())

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return self._header.slots - self._slots

    @property
    def used_data_bytes(self) -> int:
        """Bytes of all chunks."""
        return self._data_end - self._data_begin

    def count_fitting(self, chunks: Sequence[EncodedChunk], max_rows: int) -> int:
        """The number of chunks, from the first on, that fit in this segment."""
        free_bytes, rows, count = self._header.data_bytes - self.used_data_bytes, self.rows, 0
        for encoded in chunks[: self.free_slots]:
            if encoded.nbytes > free_bytes or rows + encoded.rows > max_rows:
                break
            free_bytes -= encoded.nbytes
            rows += encoded.rows
            count += 1
        return count

    def commit(self, chunks: Sequence[EncodedChunk], index: ChunkIndex) -> None:
        """Make chunks durable, all of them or none, and enter them in the index."""
        end = self._write_data(chunks)
        # After the data, so that the disk is busy while the checksums are computed.
        slots = self._new_slots(chunks, index)
        packed = b"".join([slot.pack(self._header) for slot in slots])
        in_a, in_b = (offset + self._slots * SLOT.itemsize for offset in self._table_offsets)
        write_at(self._files, self._file, packed, in_a)
        self._files.fdatasync(self._file)
        # Copy B proves that all the rest is on the medium, so it is written after the sync.
        write_at(self._files, self._file, packed, in_b)
        with self._index_lock:
            for encoded, slot in zip(chunks, slots, strict=True):
                self.segment.append(slot)
                index.append(encoded, self._header.number, slot.offset, slot.nbytes)
                self.rows += slot.rows
        self._slots += len(chunks)
        self._data_end = end

    def seal(self) -> SealedSegment:
        """Make the last copies B durable and return the manifest's entry."""
        self._files.fdatasync(self._file)
        return SealedSegment(self._header.number, align(self._data_end), self._slots)

    def truncate(self, sealed: SealedSegment) -> None:
        """Truncate the file after the last chunk, once the manifest has its length."""
        if not self._files.has_other_name(self._file):  # such as a copy by hard links
            self._files.truncate(self._file, sealed.nbytes)
            self.segment.nbytes = sealed.nbytes
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_data(self, chunks: Sequence[EncodedChunk]) -> int:
        """Write the chunks' bytes and return where they end."""
        end = self._data_end
        for data in _in_few_parts(part for encoded in chunks for part in encoded.parts):
            for start in range(0, len(data), _RUN_BYTES):
                run = memoryview(data)[start : start + _RUN_BYTES]
                write_at(self._files, self._file, run, end)
                if len(run) >= _LONG_BYTES:
                    self._files.begin_sync(self._file, end, len(run))
                end += len(run)
        return end

    def _new_slots(self, chunks: Sequence[EncodedChunk], index: ChunkIndex) -> list[Slot]:
        """The slots of the chunks."""
        position, row_id = index.base + len(index), index.next_row_id
        total_steps, offset = index.total_steps, self._data_end
        slots: list[Slot] = []
        for place, (chunk, new_steps) in enumerate(zip(chunks, index.check(chunks), strict=True)):
            head, rows, nbytes = chunk.head, chunk.rows, chunk.nbytes
            total_steps += new_steps
            slots.append(
                Slot(
                    *(self._slots + place, self._slots, len(chunks), int(chunk.end)),
                    *(position + place, chunk.episode, chunk.stream, chunk.first_row, rows),
                    *(row_id, total_steps, offset, nbytes, len(head), crc32(head), chunk.crc),
                )
            )
            row_id, offset = row_id + rows, offset + nbytes
        return slots


def _in_few_parts(parts: Iterable[Part]) -> Iterator[Part]:
    """The same bytes in few parts, of which the long ones are not copied."""
    short, nbytes = list[Part](), 0
    for part in parts:
        is_long = len(part) >= _LONG_BYTES
        if is_long or nbytes + len(part) > _RUN_BYTES:
            yield b"".join(short)
            short, nbytes = [], 0
        if is_long:
            yield part
        else:
            short.append(part)
            nbytes += len(part)
    yield b"".join(short)


def write_missing_copies(files: Files, loaded: LoadedSegment, *, is_open: bool) -> None:
    """Write the missing copies of committed slots again; `is_open`: the writer did not seal it."""
    segment, committed = loaded.segment, loaded.committed
    with files.open_to_write(segment.path) as file:
        if is_open:
            # The last flush may have failed at its sync, after which the system marks bytes as
            # written that are not. So write them again.
            for slot in committed.slots[committed.missing_b]:
                offset = int(slot["offset"])
                write_at(files, file, files.pread(file, int(slot["nbytes"]), offset), offset)
        # Their copy A may not be on the medium either, and must be there before B is: a slot with a
        # valid B is not written again if the last sync here fails, too.
        missing_a = (
            np.union1d(committed.missing_a, committed.missing_b) if is_open else committed.missing_a
        )
        for table_offset, numbers in zip(
            segment.header.table_offsets, (missing_a, committed.missing_b), strict=True
        ):
            files.fdatasync(file)
            for number in numbers.tolist():
                data = committed.slots[number].tobytes()
                write_at(files, file, data, table_offset + number * SLOT.itemsize)
        files.fdatasync(file)


def truncate(files: Files, loaded: LoadedSegment) -> None:
    """Truncate a sealed segment after its last chunk."""
    if loaded.segment.nbytes > loaded.entry.nbytes:
        with files.open_to_write(loaded.segment.path) as file:
            if files.has_other_name(file):
                return
            files.truncate(file, loaded.entry.nbytes)
        loaded.segment.nbytes = loaded.entry.nbytes


def _create(files: Files, folder: Path, header: Header) -> FileIO:
    """Create a segment's file, with its space allocated and its name durable."""
    path = segment_path(folder, header.number)
    temporary = path.with_name(path.name + ".tmp")
    file = files.create(temporary)
    try:
        _allocate(files, folder, file, header.file_bytes)
        write_at(files, file, header.pack(), 0)
        files.fsync(file)
        files.rename(temporary, path)
        files.fsync_folder(folder)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):
                files.unlink(temporary)
        raise
    return file


def _allocate(files: Files, folder: Path, file: FileIO, nbytes: int) -> None:
    try:
        files.allocate(file, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(folder).free
        raise OSError(
            error.errno, f"no room: a new segment takes {nbytes} bytes, {free} are free"
        ) from error
