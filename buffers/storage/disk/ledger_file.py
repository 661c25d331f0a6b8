"""The file ``ledger.bin`` of a store: kept actions in records that check themselves.

Records are only ever appended, or the whole file is replaced. A record is marked once it is on the
medium: a damaged one with the mark is an error, one without it at the end of the file is left of
an append that never returned. `docs/disk-format.md` describes every byte.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import NamedTuple, overload
from zlib import crc32

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.json_values import MOST
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.disk.files import Files, path_kind, write_at
from stepwell.buffers.storage.disk.folder import LEDGER, StoreFolder
from stepwell.buffers.storage.disk.format import FORMAT, MOST_STREAM, repair_advice, too_new_error
from stepwell.buffers.storage.ledger import (
    Facts,
    Kept,
    Ledger,
    action_spec,
    check_actions,
    facts_of,
    joined,
)

__all__ = ["DiskLedger", "KeptChunks", "LedgerFile", "LedgerPlace", "LedgerReader", "LedgerRecord"]

_MAGIC = b"\x93SWLED\r\n"
_HEADER = struct.Struct("<8sHH16sI")
_RECORD_BEGIN = struct.Struct("<4sI")
_RECORD = struct.Struct("<4sII12s")
_CHUNK = struct.Struct("<qqqII")
_BEGIN = b"KEPT"
_MARK, _MARK_OFFSET = b"DONE" * 3, 12
_RECORD_BYTES = 1 << 16  # a record that is longer holds one chunk
_MOST_RECORD_BYTES = 1 << 30
_MOST_ROWS = 1 << 16
_RUN_BYTES = 1 << 20
# After damage, records are searched for in so many bytes.
_SEARCHED_BYTES = 64 << 20


class LedgerPlace(NamedTuple):
    """The place of a kept chunk in the file.

    Args:
        stream: Its stream.
        first_row: Its first row.
        rows: Number of rows.
        end: Flags of the last one.
        offset: Offset of its bytes in the file.
        nbytes: Length of its bytes.
    """

    stream: int
    first_row: int
    rows: int
    end: int
    offset: int
    nbytes: int


class LedgerScan(NamedTuple):
    """The contents of a ledger's file.

    Args:
        places: Where its chunks are, each with its episode's place in its chain.
        damages: A sentence for each damaged part.
        is_complete: Every record is marked, and nothing follows the last one.
        nbytes: Bytes whose checksums were compared.
    """

    places: list[tuple[LedgerPlace, Facts]]
    damages: list[str]
    is_complete: bool
    nbytes: int


class _OwnFile:
    """An open file that is closed with its last user.

    Args:
        file: The file.
    """

    def __init__(self, file: FileIO) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


class LedgerFile:
    """Reads a ledger's file, which stays as it is while a writer replaces it by another.

    Args:
        files: The system calls.
        path: Its path.
        file: The file.
        store: The store's 16 random bytes.
        spec: The fields of the store's rows.
    """

    @classmethod
    def open(cls, files: Files, path: Path, store: bytes, spec: Spec) -> LedgerFile:
        """Open the file at a path.

        Raises:
            FileNotFoundError: There is none.
            StoreCorrupt: It is no file.
        """
        return cls(files, path, _OwnFile(files.open(path)), store, spec)

    def __init__(self, files: Files, path: Path, file: _OwnFile, store: bytes, spec: Spec) -> None:
        self.path = path
        self.file = file.file
        self._own = file
        self._files = files
        self._store = store
        self._spec = action_spec(spec)
        self._decoder = ChunkDecoder(self._spec)

    def read(self, place: LedgerPlace) -> Chunk:
        """A kept chunk.

        Raises:
            StoreCorrupt: A compressed block does not hold its rows.
        """
        row_bytes = sum(field.row_bytes for field in self._spec.fields)
        check_free_memory(place.nbytes + place.rows * row_bytes, str(self.path))
        data = self._files.pread(self.file, place.nbytes, place.offset)
        fields: dict[str, np.ndarray] = {}
        with self._naming_place(place):
            for number, field in enumerate(self._spec.fields):
                rows = np.empty((place.rows, *field.shape), field.numpy_dtype)
                self._decoder.read(data, 0, place.rows, number, 0, rows)
                fields[field.name] = rows
        metadata = self._decoder.metadata(data, 0)
        return Chunk(0, place.stream, place.first_row, End(place.end), fields, metadata)

    def scan(self, on_bytes: Callable[[int], None] = lambda nbytes: None) -> LedgerScan:
        """Read all records and compare their checksums; no row is decoded.

        Args:
            on_bytes: Called with the number of bytes that were compared since the last call.

        Raises:
            StoreTooNew: A later version wrote the file.
        """
        size = self._files.size(self.file)
        damages = self._damaged_header()
        places: list[tuple[LedgerPlace, Facts]] = []
        offset, compared, is_complete = _HEADER.size, _HEADER.size, True
        search = _Search(_SEARCHED_BYTES)
        while offset < size:
            head = self._files.pread(self.file, _RECORD.size, offset)
            body = self._body(head, offset, size)
            if body is None:
                is_complete = False
                following = self._next(offset + 8, size, search)
                if following is None and not _is_marked(head):
                    break  # of an append that never returned
                end = size if following is None else following
                damages.append(self._damage(offset, end))
                offset = end
                continue
            is_complete &= _is_marked(head)
            try:
                places += self._chunks(body, offset + _RECORD.size)
            except StoreCorrupt as error:
                damages.append(f"{self._damage(offset, offset + len(body))} ({error})")
            offset += _RECORD.size + len(body)
            compared += _RECORD.size + len(body)
            on_bytes(len(body))
        return LedgerScan(places, damages, is_complete, compared)

    def check_rows(self, place: LedgerPlace) -> None:
        """Decode every row of a kept chunk.

        Raises:
            StoreCorrupt: A compressed block does not hold its rows.
        """
        data = self._files.pread(self.file, place.nbytes, place.offset)
        with self._naming_place(place):
            self._decoder.check_rows(data, 0, place.rows)

    @contextlib.contextmanager
    def _naming_place(self, place: LedgerPlace) -> Generator[None]:
        try:
            yield
        except StoreCorrupt as error:
            end = place.offset + place.nbytes
            raise StoreCorrupt(f"{self._damage(place.offset, end)} ({error})") from error

    def _damaged_header(self) -> list[str]:
        """A sentence if the header is damaged, or that of another store."""
        data = self._files.pread(self.file, _HEADER.size, 0)
        if len(data) == _HEADER.size:
            magic, _, least_reader, store, crc = _HEADER.unpack(data)
            if magic == _MAGIC and crc == crc32(data[:-4]):
                if least_reader > FORMAT:
                    raise too_new_error(self.path, least_reader)
                if store == self._store:
                    return []
                return [
                    f"{self.path} is of store {store.hex()}, expected store {self._store.hex()}; "
                    f"{repair_advice(self.path)}"
                ]
        return [self._damage(0, _HEADER.size)]

    def _body(self, head: bytes, offset: int, size: int) -> bytes | None:
        """The bytes of a record without its head; None if they are not what was written."""
        if len(head) < _RECORD.size:
            return None
        begin, nbytes, crc, _ = _RECORD.unpack(head)
        if begin != _BEGIN or not 0 < nbytes <= min(size - offset, _MOST_RECORD_BYTES):
            return None
        body = self._files.pread(self.file, nbytes, offset + _RECORD.size)
        is_right = crc32(body, crc32(head[: _RECORD_BEGIN.size], crc32(self._store))) == crc
        return body if is_right and len(body) == nbytes else None

    def _next(self, offset: int, size: int, search: _Search) -> int | None:
        """The offset of the next whole record from an offset on."""
        while offset < size and search.left > 0:
            run = self._files.pread(self.file, _RUN_BYTES, offset)
            search.left -= len(run)
            place = run.find(_BEGIN)
            while place >= 0:
                if place % 8 == 0 and search.left > 0:
                    head = self._files.pread(self.file, _RECORD.size, offset + place)
                    if len(head) == _RECORD.size:
                        search.left -= _RECORD.unpack(head)[1]
                    if self._body(head, offset + place, size) is not None:
                        return offset + place
                place = run.find(_BEGIN, place + 1)
            offset += _RUN_BYTES
        return None

    def _chunks(self, body: bytes, begin: int) -> Iterator[tuple[LedgerPlace, Facts]]:
        """The chunks of a record whose bytes begin at an offset of the file.

        Raises:
            StoreCorrupt: No writer can have made them.
        """
        at = 0
        while at < len(body):
            if len(body) - at < _CHUNK.size:
                raise StoreCorrupt(f"expected a chunk at {at}, got {len(body) - at} bytes")
            stream, first_row, rows, end, nbytes = _CHUNK.unpack_from(body, at)
            at += _CHUNK.size
            if (
                not 0 <= first_row <= MOST
                or not 0 < rows <= _MOST_ROWS
                or abs(stream) > MOST_STREAM
                or end > End.TERMINATED | End.TRUNCATED
                or nbytes > len(body) - at
            ):
                raise StoreCorrupt(
                    f"rows {first_row} to {first_row + rows - 1} of stream {stream} with end {end} "
                    f"in {nbytes} bytes, expected what a writer can write"
                )
            self._decoder.check_whole(body, at, nbytes, rows)
            facts = facts_of(self._decoder.metadata(body, at))
            if facts is None:
                raise StoreCorrupt("its metadata lack session or stream_episode")
            yield LedgerPlace(stream, first_row, rows, end, begin + at, nbytes), facts
            at += nbytes

    def _damage(self, begin: int, end: int) -> str:
        return (
            f"{self.path}: the {end - begin} bytes at offset {begin} are not what was written, so "
            f"that actions of rows that are gone are lost; {repair_advice(self.path)}"
        )


class _Search:
    """Bytes that may still be read to find a record."""

    def __init__(self, left: int) -> None:
        self.left = left


class KeptChunks(Sequence[Chunk]):
    """The chunks of a ledger's file, each read when it is asked for.

    Args:
        file: The file.
        places: Where they are.
    """

    def __init__(self, file: LedgerFile | None, places: Sequence[LedgerPlace]) -> None:
        self._file = file
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> KeptChunks: ...
    def __getitem__(self, index: int | slice) -> Chunk | KeptChunks:
        if isinstance(index, slice):
            return KeptChunks(self._file, self._places[index])
        place = self._places[index]
        assert self._file is not None
        return self._file.read(place)


class LedgerReader:
    """The ledger of a store, for its readers: only asked for it can fail.

    Args:
        folder: The store's folder.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._files = folder.files
        self._path = folder.path / LEDGER
        self._file: _OwnFile | None = None
        self._error: Exception | None = None

    def look(self) -> None:
        """Open the file that is there now."""
        if self.is_current and self._error is None:
            return
        self._file, self._error = None, None
        try:
            with contextlib.suppress(FileNotFoundError):
                self._file = _OwnFile(self._files.open(self._path))
        except (StoreCorrupt, OSError) as error:
            self._error = error

    @property
    def is_current(self) -> bool:
        """True if the file that was opened is still there, or there still is none."""
        if self._error is not None:
            return True
        try:
            now = os.lstat(self._path)
        except FileNotFoundError:
            return self._file is None
        return self._file is not None and os.path.samestat(os.fstat(self._file.file.fileno()), now)

    def chunks(self, store: bytes, spec: Spec, *, skip: bool) -> KeptChunks:
        """The chunks in it, at least those that were there at the last `look`.

        Args:
            store: The store's 16 random bytes.
            spec: The fields of the store's rows.
            skip: Leave out damaged parts.

        Raises:
            StoreCorrupt: It is damaged.
            StoreTooNew: A later version wrote it.
        """
        if self._error is not None and not skip:
            raise self._error
        if self._file is None:
            return KeptChunks(None, ())
        file = LedgerFile(self._files, self._path, self._file, store, spec)
        scan = file.scan()
        if scan.damages and not skip:
            raise StoreCorrupt(scan.damages[0])
        return KeptChunks(file, [place for place, _ in scan.places])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.file.close()


class DiskLedger(Ledger[LedgerPlace]):
    """Writes the ledger of a store, as its only writer.

    Args:
        files: The system calls.
        folder: The store's folder.
        store: The store's 16 random bytes.
        spec: The fields of the store's rows.
    """

    def __init__(self, files: Files, folder: Path, store: bytes, spec: Spec) -> None:
        super().__init__(spec)
        self._files = files
        self._path = folder / LEDGER
        self._store = store
        self._spec = spec
        self._encoder = ChunkEncoder(action_spec(spec))
        self._reader: LedgerFile | None = None
        self._end = 0  # of the last record
        self._needless = 0  # bytes of chunks that are no longer needed
        self._is_complete = True

    def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            StoreCorrupt: It is damaged.
            StoreTooNew: A later version wrote it.
        """
        if path_kind(self._path) is None:
            return
        self._open(self._files.open_to_write(self._path))
        assert self._reader is not None
        scan = self._reader.scan()
        if scan.damages:
            raise StoreCorrupt(scan.damages[0])
        self._is_complete = scan.is_complete
        self._end = self._files.size(self._reader.file)
        for place, facts in scan.places:
            self._enter(place, facts)
        self._unsure = set(self.kept)

    @property
    def chunks(self) -> KeptChunks:
        """All chunks that are needed."""
        places = [each.place for key in sorted(self.kept) for each in self.kept[key]]
        return KeptChunks(self._reader, places)

    def recover(self) -> None:
        """Complete the file after a crash."""
        if not self._is_complete:
            self.replace_file(self.chunks)

    def records(self, chunks: Sequence[Chunk]) -> list[LedgerRecord]:
        """The records of actions that are to be kept.

        Raises:
            ValueError: A chunk has no rows, or its metadata do not say its place in a chain.
            SpecMismatch: A field is missing or has another dtype or shape.
        """
        return list(self._records(chunks))

    def add(self, records: Sequence[LedgerRecord]) -> None:
        """Append records; when it returns they are durable."""
        if not records:
            return
        # A file with a second name, such as a copy by hard links, is not written to.
        if self._reader is None or self._files.has_other_name(self._reader.file):
            self.replace_file(self.chunks, records)
            return
        file, end = self._reader.file, self._end
        write_at(self._files, file, b"".join(record.data for record in records), end)
        self._files.fdatasync(file)
        # A mark proves that the record is on the medium, so it is written after the sync.
        for record in records:
            write_at(self._files, file, _MARK, end + _MARK_OFFSET)
            self._enter_record(record, end)
            end += len(record.data)
        self._end = end

    def forget(self, gone: Iterable[Kept[LedgerPlace]]) -> None:
        """Make the file shorter if more than half of it is no longer needed."""
        self._needless += sum(_CHUNK.size + each.place.nbytes for each in gone)
        if 2 * self._needless > self._end:
            self.replace_file(self.chunks)

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.file.close()

    def _open(self, file: FileIO) -> None:
        own = _OwnFile(file)
        self._reader = LedgerFile(self._files, self._path, own, self._store, self._spec)

    def replace_file(self, chunks: Iterable[Chunk], more: Iterable[LedgerRecord] = ()) -> None:
        """Replace the file by one with these chunks and records alone."""
        temporary = self._path.with_name(self._path.name + ".tmp")
        file = self._files.create(temporary)
        self.kept = {}
        try:
            write_at(self._files, file, _header(self._store), 0)
            end = _HEADER.size
            for record in chain(self._records(joined(chunks)), more):
                write_at(self._files, file, record.data, end)
                write_at(self._files, file, _MARK, end + _MARK_OFFSET)
                self._enter_record(record, end)
                end += len(record.data)
            self._files.fsync(file)
            self._files.rename(temporary, self._path)
            self._files.fsync_folder(self._path.parent)
        except BaseException:
            file.close()
            raise
        self._open(file)
        self._end, self._needless, self._is_complete = end, 0, True

    def _records(self, chunks: Iterable[Chunk]) -> Iterator[LedgerRecord]:
        """The records that hold some chunks."""
        body: list[bytes] = []
        places: list[tuple[LedgerPlace, Facts]] = []
        size = 0
        for whole in chunks:
            facts = check_actions(self._spec, whole)
            row_bytes = max(1, sum(rows.nbytes for rows in whole.fields.values()) // whole.rows)
            most = max(1, min(_MOST_ROWS, _RECORD_BYTES // row_bytes))
            for chunk in whole.split(most):
                data = b"".join(self._encoder.encode(chunk))
                if len(data) > _MOST_RECORD_BYTES - _CHUNK.size:
                    raise ValueError(
                        f"actions to keep: expected at most {_MOST_RECORD_BYTES} bytes a row, got "
                        f"{len(data)}"
                    )
                if body and size + len(data) > _RECORD_BYTES:
                    yield LedgerRecord.of(self._store, b"".join(body), places)
                    body, places, size = [], [], 0
                end = int(chunk.end & (End.TERMINATED | End.TRUNCATED))
                head = chunk.stream, chunk.first_row, chunk.rows, end
                size += _CHUNK.size + len(data)
                offset = _RECORD.size + size - len(data)
                places.append((LedgerPlace(*head, offset, len(data)), facts))
                body += [_CHUNK.pack(*head, len(data)), data]
        if body:
            yield LedgerRecord.of(self._store, b"".join(body), places)

    def _enter_record(self, record: LedgerRecord, offset: int) -> None:
        for place, facts in record.places:
            self._enter(place._replace(offset=place.offset + offset), facts)

    def _enter(self, place: LedgerPlace, facts: Facts) -> None:
        first_row, stop = place.first_row, place.first_row + place.rows
        is_final = End(place.end).is_final
        self.enter(
            (facts.session, place.stream),
            Kept(facts.number, facts.is_seeded, first_row, stop, is_final, place),
        )


class LedgerRecord(NamedTuple):
    """A record as it is written.

    Args:
        data: Its bytes, without the mark.
        places: Where its chunks are in them.
    """

    data: bytes
    places: list[tuple[LedgerPlace, Facts]]

    @classmethod
    def of(cls, store: bytes, body: bytes, places: list[tuple[LedgerPlace, Facts]]) -> LedgerRecord:
        """The record with some chunks."""
        begin = _RECORD_BEGIN.pack(_BEGIN, len(body))
        crc = crc32(body, crc32(begin, crc32(store)))
        return cls(_RECORD.pack(_BEGIN, len(body), crc, bytes(len(_MARK))) + body, places)


def _is_marked(head: bytes) -> bool:
    """True if a record was on the medium; a part of the mark may be damaged together with it."""
    return any(head[at : at + 4] == b"DONE" for at in range(_MARK_OFFSET, _RECORD.size, 4))


def _header(store: bytes) -> bytes:
    data = _HEADER.pack(_MAGIC, FORMAT, FORMAT, store, 0)[:-4]
    return data + struct.pack("<I", crc32(data))
