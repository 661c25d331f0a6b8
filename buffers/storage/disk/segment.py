"""Reads the slots of a segment, and returns chunks whose checksums were compared."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import StoreCorrupt
from ...base.native import crc32
from ..chunk_index import CHUNK, ChunkIndex, ChunkInfo, Counters
from ..encoded_chunk import EncodedChunk
from .files import Files, as_bytes
from .format import SLOT, Header, Manifest, SealedSegment, Slot, TableCopy, align, repair_advice
from .recovery import CommittedSlots, check_slots, open_slots, sealed_slots

_RUN_BYTES = 8 << 20
_MOST_MAPS = 512  # each holds a file descriptor


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"segment-{number:08}.bin"


class Segment:
    """The checksums of a segment's chunks, in RAM: thirteen bytes for each."""

    def __init__(self, path: Path, header: Header, nbytes: int) -> None:
        self.path = path
        self.header = header
        self.nbytes = nbytes
        self._crcs = array("I")
        self._head_crcs = array("I")
        self._head_bytes = array("I")
        self._is_proved = bytearray()
        self.used_bytes = header.data_offset

    @property
    def chunks(self) -> int:
        """Number of committed chunks."""
        return len(self._crcs)

    def follows(self, other: Segment) -> bool:
        """True for the same segment with the same committed chunks, and perhaps more."""
        return self is other or (
            self.header == other.header
            and self._crcs[: other.chunks] == other._crcs
            and self._head_crcs[: other.chunks] == other._head_crcs
        )

    def extend(self, slots: np.ndarray) -> None:
        """Add committed slots that were read from the file."""
        if len(slots):
            # The offset of a lost slot's chunk may be unknown.
            end = int((slots["offset"] + slots["nbytes"]).max())
            self.used_bytes = max(self.header.data_offset, end)
        self._crcs.extend(slots["data_crc"].tolist())
        self._head_crcs.extend(slots["head_crc"].tolist())
        self._head_bytes.extend(slots["head_bytes"].tolist())
        self._is_proved.extend(bytes(len(slots)))

    def append(self, slot: Slot) -> None:
        """Add a slot that was committed now."""
        self.used_bytes = slot.offset + slot.nbytes
        self._crcs.append(slot.data_crc)
        self._head_crcs.append(slot.head_crc)
        self._head_bytes.append(slot.head_bytes)
        self._is_proved.append(False)

    def prove(self, memory: np.ndarray, position: int, record: ChunkInfo) -> None:
        """Check a chunk's bytes and fields when it is first used."""
        number = position - self.header.position
        if self._is_proved[number]:
            self._check_length(memory, record, record.nbytes)
            return
        self._compare(memory, record, record.nbytes, self._crcs[number])
        try:
            self._check_fields(memory, number, record)
        except StoreCorrupt as error:
            raise self._placed(record, error) from error
        self._is_proved[number] = True

    def metadata(
        self, memory: np.ndarray, position: int, record: ChunkInfo
    ) -> Mapping[str, object]:
        """The metadata of a chunk; only its head is checked, not its rows."""
        number = position - self.header.position
        self._compare(memory, record, self._head_bytes[number], self._head_crcs[number])
        chunks = self.header.chunks
        try:
            chunks.check_head(memory, record.offset, self._head_bytes[number])
            return chunks.metadata(memory, record.offset)
        except StoreCorrupt as error:
            raise self._placed(record, error) from error

    def encoded(self, memory: np.ndarray, position: int, record: ChunkInfo) -> EncodedChunk:
        """A chunk in its bytes, which are those that were written."""
        chunks, number = self.header.chunks, position - self.header.position
        chunk = EncodedChunk.stored(record, chunks.spec, memory, record.offset, self._crcs[number])
        self.prove(memory, position, record)
        try:
            chunks.check_codecs(memory, record.offset)
            chunks.check_metadata(memory, record.offset)
        except StoreCorrupt as error:
            raise self._placed(record, error) from error
        return chunk

    def check_all(self, memory: np.ndarray, position: int, record: ChunkInfo) -> None:
        """Check a chunk with the right checksum completely, and decode its rows."""
        self.metadata(memory, position, record)
        try:
            self._check_fields(memory, position - self.header.position, record)
            self.header.chunks.check_rows(memory, record.offset, record.stored_rows)
        except StoreCorrupt as error:
            raise self._placed(record, error) from error

    def _placed(self, record: ChunkInfo, error: StoreCorrupt) -> StoreCorrupt:
        """The error, with the place of the chunk."""
        return StoreCorrupt(damage_message(self.path, record, str(error)))

    def _check_fields(self, memory: np.ndarray, number: int, record: ChunkInfo) -> None:
        """Refuse a chunk whose fields do not fit in its bytes."""
        chunks = self.header.chunks
        chunks.check_head(memory, record.offset, self._head_bytes[number])
        chunks.check(memory, record.offset, record.nbytes, record.stored_rows)

    def _compare(self, memory: np.ndarray, record: ChunkInfo, nbytes: int, crc: int) -> None:
        end = self._check_length(memory, record, nbytes)
        if crc32(as_bytes(memory[record.offset : end])) != crc:
            raise StoreCorrupt(damage_message(self.path, record))

    def _check_length(self, memory: np.ndarray, record: ChunkInfo, nbytes: int) -> int:
        """Refuse memory that ends before a chunk does; it may have been mapped again."""
        end = record.offset + nbytes
        if len(memory) < end:
            raise StoreCorrupt(
                wrong_size_message(self.path, len(memory), str(max(self.nbytes, end)))
            )
        return end


class LoadedSegment(NamedTuple):
    """A segment read from its file."""

    segment: Segment  # its checksums
    entry: SealedSegment  # in the manifest, or the one it would have if it were sealed now
    committed: CommittedSlots
    records: np.ndarray  # of its chunks
    counters: Counters  # of the index after its last chunk

    def kept(self, index: ChunkIndex) -> LoadedSegment:
        """The same in less memory: without slots, and with the records that an index has of it."""
        # The slots are needed only to write missing copies.
        begin = self.segment.header.position - index.base
        return self._replace(
            committed=self.committed._replace(slots=self.committed.slots[:0].copy()),
            records=index.records[begin : begin + len(self.records)],
        )


def load(
    files: Files, folder: Path, manifest: Manifest, number: int, *, keep_rest: bool = False
) -> LoadedSegment:
    """Read header and slots of a live segment."""
    # `keep_rest` gives the valid slots of a file of another length, or with lost slots.
    sealed = {entry.number: entry for entry in manifest.sealed}.get(number)
    path = segment_path(folder, number)
    with open_segment(files, path) as file:
        nbytes = files.size(file)
        header = read_header(files, file, path)
        _check_identity(header, manifest, number, path)
        if not keep_rest:
            check_size(header, sealed, nbytes, path)
        elif nbytes < header.data_offset:
            raise StoreCorrupt(wrong_size_message(path, nbytes, f"{header.data_offset} or more"))
        committed = _read_slots(files, file, header, sealed, path)
    if len(committed.lost) and not keep_rest:
        raise StoreCorrupt(lost_slot_message(path, int(committed.lost[0])))
    data_end = header.file_bytes
    if sealed is not None and not keep_rest:
        data_end = min(sealed.nbytes, data_end)
    check_slots(committed, header, data_end, str(path))
    segment = Segment(path, header, nbytes)
    segment.extend(committed.slots)
    entry = sealed
    # The file is truncated to the entry's length: never within its header and slots.
    if entry is None or entry.nbytes < header.data_offset:
        entry = SealedSegment(number, align(segment.used_bytes), len(committed.slots))
    records = _records(committed.slots, number)
    return LoadedSegment(segment, entry, committed, records, _counters(header, committed.slots))


def open_segment(files: Files, path: Path) -> FileIO:
    """Open a segment that should be there."""
    try:
        return files.open(path)
    except FileNotFoundError as error:
        raise StoreCorrupt(
            f"{path} is missing: it was removed, or evicted by the writer of the store since the "
            f"store was opened; open it again, or {repair_advice(path)}"
        ) from error


class SegmentMaps:
    """Maps segments into memory when they are first used, a bounded number at a time."""

    # A returned array stays valid when its map is dropped, or its file is evicted.

    def __init__(self, files: Files) -> None:
        self._files = files
        self._maps: dict[int, np.ndarray] = {}

    def of(self, segment: Segment) -> np.ndarray:
        """The bytes of a segment's file."""
        memory = self._maps.get(segment.header.number)
        return self._map(segment) if memory is None else memory

    @property
    def numbers(self) -> set[int]:
        """The segments that are mapped."""
        return set(self._maps)

    def forget(self, number: int) -> None:
        """Drop the map of a segment that is evicted."""
        self._maps.pop(number, None)

    def clear(self) -> None:
        """Drop all maps."""
        self._maps.clear()

    def _map(self, segment: Segment) -> np.ndarray:
        while len(self._maps) >= _MOST_MAPS:
            self._maps.pop(next(iter(self._maps)))
        try:
            memory = self._open(segment)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            self._maps.clear()
            memory = self._open(segment)
        self._maps[segment.header.number] = memory
        return memory

    def _open(self, segment: Segment) -> np.ndarray:
        with open_segment(self._files, segment.path) as file:
            # Without a length, as the writer may truncate it after its last chunk meanwhile.
            is_empty = self._files.size(file) == 0
            return np.empty(0, np.uint8) if is_empty else self._files.map(file)


def read_header(files: Files, file: FileIO, path: Path) -> Header:
    """Read the header of a segment."""
    start = files.pread(file, 4096, 0)
    header_bytes = Header.length(start, str(path))
    rest = files.pread(file, header_bytes - len(start), len(start))
    return Header.unpack(start + rest, str(path))


def _read_slots(
    files: Files, file: FileIO, header: Header, sealed: SealedSegment | None, path: Path
) -> CommittedSlots:
    slots = header.slots if sealed is None else sealed.slots
    if slots > header.slots:
        raise StoreCorrupt(
            f"{path} has {header.slots} slots, but the manifest counts {slots}; "
            f"{repair_advice(path)}"
        )
    # B first: a concurrent flush is then seen in A at least as far as in B.
    nbytes = slots * SLOT.itemsize
    in_b, in_a = (
        files.pread(file, nbytes, offset).ljust(nbytes, b"\0")
        for offset in reversed(header.table_offsets)
    )
    b = TableCopy.parse(in_b, header)
    a = b if in_a == in_b else TableCopy.parse(in_a, header)  # mostly they are the same
    if sealed is not None:
        return sealed_slots(a, b)

    def is_data_right(slot: np.ndarray) -> bool:
        begin, count = int(slot["offset"]), int(slot["nbytes"])
        if not header.data_offset <= begin <= begin + count <= header.file_bytes:
            raise StoreCorrupt(
                f"{path}: slot {slot['number']} describes {count} bytes at {begin}, expected a "
                f"place from {header.data_offset} to {header.file_bytes}; {repair_advice(path)}"
            )
        crc = 0
        for offset in range(begin, begin + count, _RUN_BYTES):
            crc = crc32(files.pread(file, min(_RUN_BYTES, begin + count - offset), offset), crc)
        return crc == int(slot["data_crc"])

    return open_slots(a, b, str(path), is_data_right)


def _check_identity(header: Header, manifest: Manifest, number: int, path: Path) -> None:
    if header.store != manifest.store or header.number != number:
        raise StoreCorrupt(
            f"{path} is segment {header.number} of store {header.store.hex()}, expected segment "
            f"{number} of store {manifest.store.hex()}; put the right file there"
        )
    if header.facts.spec != manifest.facts.spec:
        raise StoreCorrupt(
            f"{path} holds other fields than the manifest says: "
            f"{manifest.facts.spec.difference(header.facts.spec)}; restore both from one copy"
        )


def check_size(header: Header, sealed: SealedSegment | None, nbytes: int, path: Path) -> None:
    """Refuse a file of another length; a sealed one may still have that of its writing."""
    expected = header.file_bytes if sealed is None else sealed.nbytes
    if nbytes not in (expected, header.file_bytes) or expected < header.data_offset:
        raise StoreCorrupt(wrong_size_message(path, nbytes, str(max(expected, header.data_offset))))


def wrong_size_message(path: Path, nbytes: int, expected: str) -> str:
    """The message for a file of another length."""
    return f"{path} has {nbytes} bytes, expected {expected}; {repair_advice(path)}"


def lost_slot_message(path: Path, number: int) -> str:
    """The message for a slot without a valid copy."""
    what = f"both copies of slot {number} are damaged, so that a chunk is lost"
    return f"{path}: {what}; {repair_advice(path)}"


def damage_message(path: Path, record: ChunkInfo, why: str = "") -> str:
    """The message for a chunk whose bytes are damaged."""
    last_row = record.first_row + record.stored_rows - 1
    return (
        f"{path}: the {record.nbytes} bytes at offset {record.offset}, rows {record.first_row} to "
        f"{last_row} of episode {record.episode}, are not what was written"
        f"{why and f' ({why})'}; {repair_advice(path)}"
    )


def _counters(header: Header, slots: np.ndarray) -> Counters:
    """The counters of the index after the given slots of a segment."""
    if not len(slots):
        return header.counters
    # A slot that a repair marked as lost may have lower numbers than the header.
    return Counters(
        max(header.counters.next_row_id, int(slots["row_id"][-1] + slots["rows"][-1])),
        max(header.counters.next_episode, int(slots["episode"].max()) + 1),
        max(header.counters.total_steps, int(slots["total_steps"][-1])),
    )


def _records(slots: np.ndarray, number: int) -> np.ndarray:
    records = np.zeros(len(slots), CHUNK)
    for name in ("episode", "stream", "first_row", "end", "row_id", "offset", "nbytes"):
        records[name] = slots[name]
    records["stored_rows"] = slots["rows"]
    records["segment"] = number
    return records
