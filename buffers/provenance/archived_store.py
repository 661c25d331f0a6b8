"""The contents of an archive: a store without the rows that its envs can show again."""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import IO, Self
from zlib import crc32

import numpy as np
import zstandard

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.json_values import mapping, member, parse, whole
from stepwell.buffers.provenance.archive_file import ArchiveFile, SectionWriter
from stepwell.buffers.provenance.chunk_table import ChunkTable
from stepwell.buffers.provenance.packing import (
    Cursor,
    pack_numbers,
    pack_rows,
    unpack_numbers,
    unpack_rows,
)
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.storage.chunk_codec import Buffer, ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.chunk_index import CHUNK, ChunkIndex, Counters
from stepwell.buffers.storage.disk.format import StoreFacts
from stepwell.buffers.storage.disk.layout import FolderLayout
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.encoded_chunk import EncodedChunk, check_position
from stepwell.buffers.storage.joined import JoinedStorage
from stepwell.buffers.storage.protocol import Storage

__all__ = [
    "ArchivedChunks",
    "ArchivedStore",
    "archived_ids",
    "check_archivable",
    "is_kept",
    "write_archive",
]

_GROUP_ROWS = 1024
"""Rows that share a checksum, at least; an episode is never divided."""

_BLOCK_BYTES, _MOST_BLOCKS = 2 << 20, 32  # in memory, of each field: lanes read in several
_FIELDS = 1 << 12  # that a Spec has at most: blocks are numbered in steps of it
_SEGMENT_BYTES = 64 << 20  # of a folder that is made of a store in RAM


def is_kept(field: Field) -> bool:
    """True for a field whose rows no env shows again: the action, and what a policy adds."""
    return field.kind in ("action", "extra")


class Fingerprints:
    """Checksums of the rows of each episode, in groups of short episodes.

    Args:
        table: The chunks and episodes.
        fields: Number of fields.
        group_rows: Rows of a group, at least.
    """

    def __init__(self, table: ChunkTable, fields: int, group_rows: int) -> None:
        self.begins = _groups_of(table.episode_rows, group_rows)
        self._crcs = np.zeros((fields, len(table.episode)), "<u4")

    def update(self, field: int, episode: int, rows: np.ndarray) -> None:
        """Add the next rows of an episode."""
        data = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
        crc = crc32(data.reshape(-1).view(np.uint8).data, int(self._crcs[field, episode]))
        self._crcs[field, episode] = crc

    def group_of(self, episode: int) -> int:
        """The group of an episode."""
        return int(np.searchsorted(self.begins, episode, side="right")) - 1

    def episodes_of(self, group: int) -> range:
        """The episodes of a group."""
        following = [*self.begins[group + 1 : group + 2].tolist(), self._crcs.shape[1]]
        return range(int(self.begins[group]), following[0])

    def of(self, group: int) -> np.ndarray:
        """The checksum of each field [fields] of the rows of a group."""
        episodes = self.episodes_of(group)
        own = self._crcs[:, episodes.start : episodes.stop]
        return np.array([crc32(each.tobytes()) for each in own], "<u4")

    def all(self) -> np.ndarray:
        """The checksums [fields, groups]."""
        found = [self.of(group) for group in range(len(self.begins))]
        return np.array(found, "<u4").reshape(-1, len(self._crcs)).T.copy()


def write_archive(storage: Storage, file: IO[bytes], *, is_proved: bool = False) -> None:
    """Write the archive of a store.

    Args:
        storage: The store, to which nothing is added meanwhile.
        file: An empty file.
        is_proved: Its episodes were played again before, and were equal.

    Raises:
        ValueError: Chunks of the store are lost, or it is several stores.
        StoreCorrupt: The store is damaged.
    """
    check_archivable(storage)
    table = _table_of(storage)
    layout = storage.layout() if isinstance(storage, DiskStorage) else None
    played = [field for field in storage.spec.fields if not is_kept(field)]
    sections = SectionWriter(file)
    facts = {
        "facts": _facts_of(storage).to_json(),
        "folder": None if layout is None else layout.to_json(),
        "group_rows": _GROUP_ROWS,
        "is_proved": is_proved,
        "versions": {
            "stepwell": importlib.metadata.version("stepwell"),
            "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        },
    }
    sections.add("facts", json.dumps(facts, separators=(",", ":")).encode())
    sections.add("chunks", table.pack())
    if layout is not None:
        sections.add("folder", _pack_folder(table, layout))
    fingerprints = Fingerprints(table, len(played), _GROUP_ROWS)
    for number, contents in _blocks(storage, table, fingerprints):
        sections.add("rows", contents, number)
    sections.add("checks", fingerprints.all().tobytes())
    ledger = storage.ledger
    if ledger:
        sections.add("ledger", _ledger_table(ledger).pack())
        for number, contents in _ledger_blocks(storage.spec, ledger):
            sections.add("actions", contents, number)
    sections.finish()


class ArchivedStore:
    """The contents of an archive, checked.

    Args:
        file: The archive.

    Raises:
        StoreCorrupt: No writer has made it.
    """

    def __init__(self, file: ArchiveFile) -> None:
        self.file = file
        try:
            self._read()
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            file.close()
            raise file.error(str(error)) from error
        except BaseException:
            file.close()
            raise

    def _read(self) -> None:
        facts = parse(self.file.read("facts"))
        self.facts = StoreFacts.from_json(mapping(member(facts, "facts"), "facts"))
        self.is_proved = member(facts, "is_proved") is True
        self.versions = mapping(member(facts, "versions"), "versions")
        group_rows = whole(member(facts, "group_rows"), "group_rows", 1)
        self.spec = self.facts.spec
        self.table = ChunkTable.unpack(self.file.read("chunks"))
        self.table.check()
        self._begins = self.table.begins
        self.played = tuple(field for field in self.spec.fields if not is_kept(field))
        self.layout: FolderLayout | None = None
        folder = member(facts, "folder")
        if folder is not None:
            contents = self.file.read("folder")
            self.layout = _unpack_folder(self.table, mapping(folder, "folder"), contents)
        self.fingerprints = Fingerprints(self.table, len(self.played), group_rows)
        shape = len(self.played), len(self.fingerprints.begins)
        checks = self.file.read("checks")
        if len(checks) != 4 * math.prod(shape):
            raise ValueError(f"{len(checks)} bytes of checksums, expected {shape} of four")
        self.checks = np.frombuffer(checks, "<u4").reshape(shape)
        self._rows = {
            field.name: _StoredRows(self.file, "rows", place, field, self.table)
            for place, field in enumerate(self.spec.fields)
            if is_kept(field)
        }
        self.ledger = self._read_ledger()

    @property
    def steps(self) -> int:
        """Env steps of all episodes."""
        table = self.table
        begins = np.zeros(len(table.episode), np.bool_)
        begins[table.episode_of[table.first_row == 0]] = True
        return int(table.new_rows.sum()) - int(np.count_nonzero(begins))

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start .. stop`` of a kept field, counted over all chunks.

        Raises:
            StoreCorrupt: The rows are not those of a writer.
        """
        return self._rows[name].read(start, stop)

    def actions(self) -> Storage:
        """The chunks with their actions alone, as a storage whose chains can be found."""
        numbers = np.arange(len(self.table))
        spec = replace(self.spec, fields=self.spec.of_kind("action"))
        encoder = ChunkEncoder(spec)

        def bytes_of(number: int) -> bytes:
            return b"".join(encoder.encode(self._actions_of(number)))

        return ArchivedChunks(self, spec, numbers, bytes_of, self.ledger)

    def action_chunks(self, numbers: np.ndarray) -> list[Chunk]:
        """Chunks with their actions alone, as a ledger keeps them: no row waits for its action."""
        found: list[Chunk] = []
        for number in numbers.tolist():
            chunk = self._actions_of(number)
            if chunk.end & End.PENDING:
                fields = {name: rows[:-1] for name, rows in chunk.fields.items()}
                chunk = replace(chunk, end=End.NONE, fields=fields)
            if chunk.rows:
                found.append(chunk)
        return found

    def check_group(self, group: int) -> Field | None:
        """The first field whose rows differ in a group of episodes that were played; or None."""
        found = self.fingerprints.of(group) != self.checks[:, group]
        return self.played[int(found.argmax())] if found.any() else None

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _actions_of(self, number: int) -> Chunk:
        """A chunk with its actions alone."""
        table = self.table
        episode, (start, stop) = int(table.episode_of[number]), self._begins[number : number + 2]
        return Chunk(
            *(int(table.episode[episode]), int(table.stream[episode])),
            *(int(table.first_row[number]), End(int(table.end[number]))),
            {
                field.name: self.rows(field.name, int(start), int(stop))
                for field in self.spec.of_kind("action")
            },
            table.metadata[episode],
        )

    def _read_ledger(self) -> Sequence[Chunk]:
        if ("ledger", 0) not in self.file:
            return ()
        table = ChunkTable.unpack(self.file.read("ledger"))
        rows = {
            field.name: _StoredRows(self.file, "actions", place, field, table)
            for place, field in enumerate(self.spec.fields)
            if field.kind == "action"
        }
        begins = table.begins.tolist()
        total = begins[-1] * sum(self.spec[name].row_bytes for name in rows)
        check_free_memory(total, f"actions of {self.file.path}")
        return [
            Chunk(
                *(int(table.episode[k]), int(table.stream[k]), int(table.first_row[k])),
                End(int(table.end[k])),
                {name: each.read(begins[k], begins[k + 1]) for name, each in rows.items()},
                table.metadata[k],
            )
            for k in range(len(table))
        ]


def archived_ids(path: Path) -> list[int]:
    """The ids of the episodes in an archive.

    Raises:
        ValueError: It is no archive.
        StoreCorrupt: It is damaged.
        StoreTooNew: A later version wrote it.
    """
    with ArchivedStore(ArchiveFile(path)) as archived:
        ids: list[int] = archived.table.episode.tolist()
        return ids


class ArchivedChunks:
    """Chunks of an archive as a `Storage` that can only be read.

    Args:
        archived: The archive.
        spec: The fields of the chunks.
        numbers: Numbers of the chunks [n], rising.
        bytes_of: Returns the bytes of the chunk with a number.
        ledger: Actions of other chunks.
    """

    def __init__(
        self,
        archived: ArchivedStore,
        spec: Spec,
        numbers: np.ndarray,
        bytes_of: Callable[[int], bytes],
        ledger: Sequence[Chunk],
    ) -> None:
        self._table = archived.table
        self._numbers = numbers
        self._bytes_of = bytes_of
        self.spec = spec
        self.index = _index_of(archived.table, numbers)
        self.lock = RLock()
        self.skips_corrupt = False
        self.lost_chunks = self.generation = self.nbytes = 0
        self.sessions = archived.facts.sessions
        self.ledger = ledger

    def payload(self, position: int) -> tuple[Buffer, int]:
        """The bytes of a chunk."""
        return self._bytes_of(int(self._numbers[position])), 0

    def encoded(self, position: int) -> EncodedChunk:
        """The chunk at a position in its bytes, of which nothing was checked."""
        check_position(self.index, position)
        data = self._bytes_of(int(self._numbers[position]))
        record = self.index.record(position)._replace(nbytes=len(data))  # not known before
        return EncodedChunk.stored(record, None, data, 0)

    def metadata(self, position: int) -> Mapping[str, object]:
        """JSON-able facts about the episode of the chunk at a position."""
        return self._table.metadata[int(self._table.episode_of[self._numbers[position]])]

    def refresh(self) -> bool:
        """False: an archive does not change."""
        return False

    def close(self) -> None:
        """Do nothing: the archive closes its file."""

    def append_session(self, facts: Mapping[str, object]) -> None:
        """Refused."""
        raise _read_only()

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Refused."""
        raise _read_only()

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        """Refused."""
        raise _read_only()

    def keep_actions(self, chunks: Sequence[Chunk]) -> None:
        """Refused."""
        raise _read_only()

    def drop_before(self, row_id: int) -> None:
        """Refused."""
        raise _read_only()

    def lose(self, position: int) -> None:
        """Refused."""
        raise _read_only()


class _StoredRows:
    """The rows of a field that are in an archive, in blocks.

    Args:
        file: The archive.
        kind: Kind of their sections.
        place: Place of the field in the Spec.
        field: The field.
        table: The chunks that they are the rows of.
    """

    def __init__(
        self, file: ArchiveFile, kind: str, place: int, field: Field, table: ChunkTable
    ) -> None:
        self._file, self._kind, self._place, self._field = file, kind, place, field
        self._without_action = table.without_action
        self._total = int(table.begins[-1])
        self._block_rows = _block_rows(field)
        self._blocks: OrderedDict[int, np.ndarray] = OrderedDict()
        last = max(0, self._total - 1) // self._block_rows
        if (kind, last * _FIELDS + place) not in file and self._total:
            raise ValueError(f"{self._total} rows of field {field.name!r}, which are not there")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start .. stop``."""
        check_free_memory((stop - start) * self._field.row_bytes, f"a chunk of {self._file.path}")
        rows = np.empty((stop - start, *self._field.shape), self._field.numpy_dtype)
        at = start
        while at < stop:
            block, begin = divmod(at, self._block_rows)
            found = self._read_block(block)
            until = min(stop, at - begin + len(found))
            rows[at - start : until - start] = found[begin : begin + until - at]
            at = until
        return rows

    def _read_block(self, block: int) -> np.ndarray:
        if block in self._blocks:
            self._blocks.move_to_end(block)
            return self._blocks[block]
        begin = block * self._block_rows
        count = min(self._block_rows, self._total - begin)
        has_value = _has_value(self._without_action, begin, count)
        contents = self._file.read(self._kind, block * _FIELDS + self._place)
        try:
            found = unpack_rows(contents, self._field, has_value)
        except ValueError as error:
            raise self._file.error(f"field {self._field.name!r}: {error}") from error
        while len(self._blocks) >= _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        self._blocks[block] = found
        return found


class _Blocks:
    """Divides the rows of a field into blocks.

    Args:
        place: Place of the field in the Spec.
        field: The field.
        table: The chunks whose rows come.
    """

    def __init__(self, place: int, field: Field, table: ChunkTable) -> None:
        self._place, self._field = place, field
        self._without_action = table.without_action
        self._block_rows = _block_rows(field)
        self._parts: list[np.ndarray] = []
        self._rows = self._blocks = 0

    def add(self, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
        """Add rows; returns the numbers and contents of blocks that are complete."""
        while self._rows + len(rows) >= self._block_rows:
            count = self._block_rows - self._rows
            self._parts.append(rows[:count])
            rows = rows[count:]
            yield self.take()
        if len(rows):
            self._parts.append(rows)
            self._rows += len(rows)

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """The last block."""
        if self._parts:
            yield self.take()

    def take(self) -> tuple[int, bytes]:
        """The block of the rows that are there."""
        rows = np.concatenate(self._parts)
        begin = self._blocks * self._block_rows
        has_value = _has_value(self._without_action, begin, len(rows))
        number = self._blocks * _FIELDS + self._place
        self._parts, self._rows, self._blocks = [], 0, self._blocks + 1
        return number, pack_rows(rows, has_value)


def check_archivable(storage: Storage) -> None:
    """Refuse a store that no archive can hold.

    Raises:
        ValueError: Chunks of the store are lost, or it is several stores, or has no action.
    """
    if isinstance(storage, JoinedStorage):
        raise ValueError(
            f"an archive holds one store, got {len(storage.storages)}: archive each, or join them "
            f"first (stepwell merge)"
        )
    if storage.lost_chunks:
        raise ValueError(
            f"{storage.lost_chunks:,} chunks of the store are lost, expected none: archive a copy "
            f"of what is left (stepwell copy)"
        )
    if not storage.spec.of_kind("action"):
        raise ValueError(
            f"fields of the store: expected an action, got {', '.join(storage.spec.names)}; rows "
            f"without one cannot be played again"
        )


def _facts_of(storage: Storage) -> StoreFacts:
    if isinstance(storage, DiskStorage):
        return storage.facts
    return StoreFacts(storage.spec, None, None, _SEGMENT_BYTES, {}, tuple(storage.sessions))


def _table_of(storage: Storage) -> ChunkTable:
    """The table of all chunks."""
    records, base = storage.index.records, storage.index.base
    ids, first, episode_of = np.unique(records["episode"], return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    metadata = [storage.metadata(base + number) for number in first[order].tolist()]
    episode_of = place[episode_of.reshape(-1)]
    for number, episode in enumerate(episode_of.tolist()):
        if first[order[episode]] != number and storage.metadata(base + number) != metadata[episode]:
            raise ValueError(
                f"episode {ids[order[episode]]} has other metadata in chunk {base + number} than "
                f"in its first one, expected the same: archive a copy (stepwell copy)"
            )
    table = ChunkTable(
        episode_of=episode_of,
        first_row=records["first_row"].copy(),
        rows=records["stored_rows"].copy(),
        end=records["end"].copy(),
        episode=ids[order],
        stream=records["stream"][first[order]],
        metadata=metadata,
    )
    try:
        table.check()
    except ValueError as error:
        raise ValueError(f"the store has gaps: {error}; archive a copy (stepwell copy)") from error
    return table


def _blocks(
    storage: Storage, table: ChunkTable, fingerprints: Fingerprints
) -> Iterator[tuple[int, bytes]]:
    """The blocks of all kept fields; computes the checksums of the others on the way."""
    spec, decoder = storage.spec, ChunkDecoder(storage.spec)
    kept = {
        place: _Blocks(place, field, table)
        for place, field in enumerate(spec.fields)
        if is_kept(field)
    }
    played = [place for place, field in enumerate(spec.fields) if not is_kept(field)]
    new_rows = table.new_rows
    last: dict[int, list[bytes]] = {}  # of episodes, rows that come again
    for number, episode in enumerate(table.episode_of.tolist()):
        buffer, origin = storage.payload(storage.index.base + number)
        count, new = int(table.rows[number]), int(new_rows[number])
        check_free_memory(count * spec.row_bytes, f"chunk {number}")
        repeated = last.pop(episode, None)
        again: list[bytes] = []
        for place, field in enumerate(spec.fields):
            rows = np.empty((count, *field.shape), field.numpy_dtype)
            decoder.read(buffer, origin, count, place, 0, rows)
            if place in kept:
                yield from kept[place].add(rows)
                continue
            if repeated is not None and rows[0].tobytes() != repeated[len(again)]:
                raise ValueError(
                    f"field {field.name!r} of episode {table.episode[episode]}: expected row "
                    f"{table.first_row[number]} to be the same in two chunks, got two; archive a "
                    f"copy (stepwell copy)"
                )
            again.append(rows[-1].tobytes())
            fingerprints.update(played.index(place), episode, rows[:new])
        if new < count:
            last[episode] = again
    for each in kept.values():
        yield from each.finish()


def _ledger_table(chunks: Sequence[Chunk]) -> ChunkTable:
    """The table of chunks of actions, each as an episode of its own, for they may overlap."""

    def column(values: Iterable[int]) -> np.ndarray:
        return np.array(list(values), np.int64)

    return ChunkTable(
        episode_of=np.arange(len(chunks)),
        first_row=column(each.first_row for each in chunks),
        rows=column(each.rows for each in chunks),
        end=column(int(each.end) for each in chunks),
        episode=column(each.episode for each in chunks),
        stream=column(each.stream for each in chunks),
        metadata=[each.metadata for each in chunks],
    )


def _ledger_blocks(spec: Spec, chunks: Sequence[Chunk]) -> Iterator[tuple[int, bytes]]:
    table = _ledger_table(chunks)
    for place, field in enumerate(spec.fields):
        if field.kind == "action":
            blocks = _Blocks(place, field, table)
            for chunk in chunks:
                yield from blocks.add(chunk.fields[field.name])
            yield from blocks.finish()


def _pack_folder(table: ChunkTable, layout: FolderLayout) -> bytes:
    """The part of a folder's layout that each chunk has."""
    ids, steps = _expected_numbers(table)
    return b"".join(
        map(
            pack_numbers,
            (
                layout.begins_flush.astype(np.int64),
                layout.row_ids - ids,
                layout.total_steps - steps,
            ),
        )
    )


def _unpack_folder(table: ChunkTable, facts: Mapping[str, object], contents: bytes) -> FolderLayout:
    cursor = Cursor(contents)
    begins, ids, steps = (unpack_numbers(cursor, len(table)) for _ in range(3))
    cursor.finish()
    expected_ids, expected_steps = _expected_numbers(table)
    return FolderLayout.from_json(facts, begins != 0, ids + expected_ids, steps + expected_steps)


def _expected_numbers(table: ChunkTable) -> tuple[np.ndarray, np.ndarray]:
    """The id of the first row, and the steps of the store, of each chunk of a simple store."""
    return table.begins[:-1], np.cumsum(table.rows - (table.first_row == 0))


def _index_of(table: ChunkTable, numbers: np.ndarray) -> ChunkIndex:
    """The index of some chunks, as if each were in a file of its own."""
    records = np.zeros(len(numbers), CHUNK)
    episodes = table.episode_of[numbers]
    records["episode"], records["stream"] = table.episode[episodes], table.stream[episodes]
    records["first_row"], records["end"] = table.first_row[numbers], table.end[numbers]
    records["rows"] = records["stored_rows"] = table.rows[numbers]
    records["row_id"], records["segment"] = table.begins[numbers], np.arange(len(numbers))
    counters = Counters(int(table.begins[-1]), int(table.episode.max(initial=-1)) + 1, 0)
    return ChunkIndex.restore([records], counters, 0)


def _read_only() -> ValueError:
    return ValueError("an archive: expected to be read, got a write; restore it first")


def _groups_of(rows: np.ndarray, least: int) -> np.ndarray:
    """The first episode [groups] of each group of consecutive episodes with enough rows."""
    begins: list[int] = []
    count = least
    for episode, more in enumerate(rows.tolist()):
        if count >= least:
            begins.append(episode)
            count = 0
        count += more
    return np.array(begins, np.int64)


def _block_rows(field: Field) -> int:
    return max(1, _BLOCK_BYTES // max(1, field.row_bytes))


def _has_value(without_action: np.ndarray, begin: int, count: int) -> np.ndarray:
    """[count] bool: False for rows from which no action was chosen, from row ``begin`` on."""
    has_value = np.ones(count, np.bool_)
    first, last = np.searchsorted(without_action, (begin, begin + count))
    has_value[without_action[first:last] - begin] = False
    return has_value
