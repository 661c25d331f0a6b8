"""The bytes of manifest, segment headers and slots, version 1. Pure: uses no files and no clock.

`docs/disk-format.md` describes every byte; the bytes of a chunk are in `chunk_codec`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np

from ...base.errors import StoreCorrupt, StoreTooNew
from ...base.untrusted_json import items, json_text, mapping, member, parse, text, whole
from ...spec.spec import Spec
from ..chunk_codec import ChunkDecoder
from ..chunk_index import Counters

FORMAT = 1
"""The version that is written, and the newest that is read."""

MOST_SLOTS = 1 << 22
"""Slots of a segment at most."""

MOST_STREAM = 1 << 32
"""Absolute value of a stream at most."""

MOST_FACTS_BYTES = (64 << 20) + 4096
"""Length of a manifest, and of a segment's header, at most."""

MOST_SEGMENTS = 10**8
"""Segments that a store can ever have: their names have eight digits."""

_MOST_DATA_BYTES = 1 << 48
_ALIGNMENT = 4096
_MAGIC = b"\x93SWELL\r\n"
_HEADER = struct.Struct("<8sHHIIIQ16sqqqqI")
_CRC = struct.Struct("<I")
_SLOT_BODY = struct.Struct("<6IQ9qII8xI")
_SLOT_MAGIC = int.from_bytes(b"SLOT", "little")

SLOT = np.dtype(
    [
        ("magic", "<u4"),
        ("segment", "<u4"),
        ("number", "<u4"),
        ("group", "<u4"),  # number of the first slot of the same flush
        ("group_slots", "<u4"),  # slots of that flush
        ("end", "<u4"),
        ("store", "<u8"),
        ("position", "<i8"),
        ("episode", "<i8"),
        ("stream", "<i8"),
        ("first_row", "<i8"),
        ("rows", "<i8"),
        ("row_id", "<i8"),
        ("total_steps", "<i8"),  # of the store, after this chunk
        ("offset", "<i8"),  # from the file's first byte
        ("nbytes", "<i8"),
        ("head_bytes", "<u4"),  # of the chunk: fields and metadata, which are read alone
        ("head_crc", "<u4"),
        ("reserved", "V8"),
        ("data_crc", "<u4"),
        ("crc", "<u4"),  # of the 124 bytes before
    ]
)
"""The commit record of one chunk: 128 bytes."""


def align(nbytes: int) -> int:
    """The next multiple of 4096."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class Header:
    """The first part of a segment: its number, facts, and the offsets of its parts."""

    store: bytes  # the store's 16 random bytes
    number: int  # the segment's own
    slots: int  # places in each slot table
    data_bytes: int  # room for chunks, a multiple of 4096
    position: int  # of its first chunk
    counters: Counters  # of the index when the segment was opened
    # the store's facts in the manifest, as JSON: with them a segment can be read, and a lost
    # manifest be made again
    facts_text: bytes = field(repr=False)

    @property
    def facts(self) -> StoreOptions:
        """The store's facts when the segment was created."""
        return _facts_in(self.facts_text)

    @property
    def chunks(self) -> ChunkDecoder:
        """Reads the chunks of the segment."""
        return _reader_of(self.facts_text)

    @property
    def header_bytes(self) -> int:
        """Length of the header, and so the offset of slot table A."""
        return align(_HEADER.size + len(self.facts_text) + _CRC.size)

    @property
    def table_bytes(self) -> int:
        """Length of one slot table."""
        return align(self.slots * SLOT.itemsize)

    @property
    def table_offsets(self) -> tuple[int, int]:
        """Offsets of slot tables A and B."""
        return self.header_bytes, self.header_bytes + self.table_bytes

    @property
    def data_offset(self) -> int:
        """Offset of the first chunk."""
        return self.header_bytes + 2 * self.table_bytes

    @property
    def file_bytes(self) -> int:
        """Length of the file while it is written."""
        return self.data_offset + self.data_bytes

    @property
    def store_tag(self) -> int:
        """The part of the store's name that every slot carries."""
        return int.from_bytes(self.store[:8], "little")

    def pack(self) -> bytes:
        """The header's bytes; the last four are their checksum."""
        fixed = _HEADER.pack(
            *(_MAGIC, FORMAT, FORMAT, self.header_bytes, self.number, self.slots, self.data_bytes),
            *(self.store, self.position, *self.counters, len(self.facts_text)),
        )
        body = (fixed + self.facts_text).ljust(self.header_bytes - _CRC.size, b"\0")
        return body + _CRC.pack(crc32(body))

    @staticmethod
    def length(start: bytes, where: str) -> int:
        """The length of a header whose first bytes are given."""
        if len(start) < _HEADER.size or not start.startswith(_MAGIC):
            raise StoreCorrupt(
                f"{where} does not begin like a segment: expected {_HEADER.size} bytes or more "
                f"that begin with {_MAGIC!r}, got {len(start)} that begin with "
                f"{bytes(start[: len(_MAGIC)])!r}; {repair_advice(where)}"
            )
        _, _, least_reader, header_bytes, *_ = _HEADER.unpack_from(start)
        if least_reader > FORMAT:
            raise too_new_error(where, least_reader)
        with _reading(where):
            return whole(header_bytes, "length of the header", _ALIGNMENT, MOST_FACTS_BYTES)

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Header:
        """The checked header in ``data``, which is as long as `length` says."""
        body, crc = data[: -_CRC.size], data[-_CRC.size :]
        if len(data) < _HEADER.size + _CRC.size or crc != _CRC.pack(crc32(body)):
            raise StoreCorrupt(f"{where}: its header is damaged; {repair_advice(where)}")
        _, _, _, _, number, slots, data_bytes, store, *rest = _HEADER.unpack_from(body)
        position, next_row_id, next_episode, total_steps, facts_bytes = rest
        facts_text = body[_HEADER.size : _HEADER.size + facts_bytes]
        counters = Counters(next_row_id, next_episode, total_steps)
        header = cls(store, number, slots, data_bytes, position, counters, facts_text)
        with _reading(where):
            whole(number, "number of the segment", 0, MOST_SEGMENTS - 1)
            whole(slots, "slots", 1, MOST_SLOTS)
            whole(data_bytes, "length of the data", 0, _MOST_DATA_BYTES)
            for value in (position, *counters):
                whole(value, "counters")
            if header.header_bytes != len(data) or data_bytes % _ALIGNMENT:
                raise ValueError(
                    f"header of {len(data)} bytes and data of {data_bytes}, expected "
                    f"{header.header_bytes} and a multiple of {_ALIGNMENT}"
                )
            header.facts  # noqa: B018  # all of it is read
        return header


@functools.lru_cache(8)  # the segments of a store differ little in it
def _facts_in(facts_text: bytes) -> StoreOptions:
    return StoreOptions.from_json(parse(facts_text))


@functools.lru_cache(8)
def _reader_of(facts_text: bytes) -> ChunkDecoder:
    return ChunkDecoder(_facts_in(facts_text).spec)


@contextlib.contextmanager
def _reading(where: str) -> Generator[None]:
    """Name the file in errors about values that no writer has written."""
    try:
        yield
    except ValueError as error:
        raise StoreCorrupt(
            f"{where} is not what a writer has made: {error}; {repair_advice(where)}"
        ) from error


def repair_advice(where: object) -> str:
    """The advice for a damaged file or object, for messages."""
    if "://" in str(where):
        return "push the store again"
    return f"restore it from a copy, or run: stepwell repair {str(where).rpartition('/')[0]}"


def too_new_error(where: object, version: int) -> StoreTooNew:
    """The error for data of a later version."""
    return StoreTooNew(
        f"{where} is format {version}, this stepwell reads up to {FORMAT}; upgrade stepwell"
    )


class Slot(NamedTuple):
    """The values of one slot, but for those that all slots of a segment share; see `SLOT`."""

    number: int
    group: int
    group_slots: int
    end: int
    position: int
    episode: int
    stream: int
    first_row: int
    rows: int
    row_id: int
    total_steps: int
    offset: int
    nbytes: int
    head_bytes: int
    head_crc: int
    data_crc: int

    def pack(self, header: Header) -> bytes:
        """The bytes of the slot; `pack_slots` makes the same ones from an array."""
        values = (_SLOT_MAGIC, header.number, *self[:4], header.store_tag, *self[4:])
        body = _SLOT_BODY.pack(*values)
        return body + _CRC.pack(crc32(body))


def pack_slots(header: Header, slots: np.ndarray) -> bytes:
    """Finish slots [n], dtype `SLOT`, and return their bytes."""
    slots["magic"], slots["segment"], slots["store"] = _SLOT_MAGIC, header.number, header.store_tag
    data = bytearray(slots.tobytes())
    for start in range(0, len(data), SLOT.itemsize):
        end = start + SLOT.itemsize - _CRC.size
        _CRC.pack_into(data, end, crc32(memoryview(data)[start:end]))
    return bytes(data)


class TableCopy(NamedTuple):
    """One copy of a slot table, as found: its slots [n] and which of them are whole."""

    slots: np.ndarray
    is_valid: np.ndarray

    @classmethod
    def parse(cls, data: bytes, header: Header) -> TableCopy:
        """Find the whole slots of a table's bytes."""
        slots = np.frombuffer(data, SLOT, len(data) // SLOT.itemsize)
        numbers = np.arange(len(slots), dtype="<u4")
        is_valid = (slots["magic"] == _SLOT_MAGIC) & (slots["number"] == numbers)
        is_valid &= (slots["segment"] == header.number) & (slots["store"] == header.store_tag)
        view = memoryview(data)
        crcs = slots["crc"].tolist()
        for number in np.flatnonzero(is_valid).tolist():
            start = number * SLOT.itemsize
            is_valid[number] = crc32(view[start : start + 124]) == crcs[number]
        return cls(slots, is_valid)


class SealedSegment(NamedTuple):
    """The manifest's entry of a segment that is complete."""

    number: int
    nbytes: int
    slots: int


class NextNumbers(NamedTuple):
    """Numbers that are not used yet."""

    segment: int = 0
    position: int = 0
    row_id: int = 0
    episode: int = 0
    total_steps: int = 0


NOTHING_USED = NextNumbers()


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Facts about the store as a whole."""

    spec: Spec
    capacity: int | None  # steps to keep at most
    capacity_bytes: int | None  # to take at most
    segment_bytes: int  # largest file, unless a single chunk needs more
    provenance: Mapping[str, object]  # JSON-able facts about the data
    # JSON-able facts about each run that wrote, the oldest first
    sessions: Sequence[Mapping[str, object]] = ()

    def __post_init__(self) -> None:
        rewards = [field for field in self.spec.fields if field.name == "reward"]
        if [(field.dtype, field.source_shape) for field in rewards] != [("float64", ())]:
            raise ValueError(
                f"fields of a store: expected a reward of float64 (), got "
                f"{', '.join(map(str, rewards)) or 'none'}; make the Spec by Spec.from_spaces"
            )

    def to_json(self) -> dict[str, object]:
        """Plain data for a JSON file; `from_json` reads it."""
        return {
            "spec": self.spec.to_json(),
            "capacity": self.capacity,
            "capacity_bytes": self.capacity_bytes,
            "segment_bytes": self.segment_bytes,
            "provenance": dict(self.provenance),
            "sessions": [dict(session) for session in self.sessions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> StoreOptions:
        """The facts that `to_json` described."""
        sessions = items(member(data, "sessions"), "sessions")
        return cls(
            spec=Spec.from_json(mapping(member(data, "spec"), "spec")),
            capacity=_capacity(data, "capacity"),
            capacity_bytes=_capacity(data, "capacity_bytes"),
            segment_bytes=whole(member(data, "segment_bytes"), "segment_bytes"),
            provenance=mapping(member(data, "provenance"), "provenance"),
            sessions=tuple(mapping(session, "session") for session in sessions),
        )

    @property
    def is_ring(self) -> bool:
        """The oldest segments are evicted as new ones come."""
        return self.capacity is not None or self.capacity_bytes is not None

    @property
    def short_text(self) -> bytes:
        """JSON for a segment's header: only the first session, which describes the envs."""
        # A store that is resumed often would else write all of them into every segment.
        return json_text(replace(self, sessions=self.sessions[:1]).to_json())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts of a store, and its live segments."""

    store: bytes  # the store's 16 random bytes
    facts: StoreOptions
    sealed: tuple[SealedSegment, ...] = ()  # complete ones, the oldest first
    open: int | None = None  # number of the segment that is being written, after all sealed ones
    # lower bounds of the next segment's numbers, used if no segment is live
    next: NextNumbers = NOTHING_USED

    @property
    def numbers(self) -> list[int]:
        """The live segments, the oldest first."""
        return [entry.number for entry in self.sealed] + ([] if self.open is None else [self.open])

    def pack(self) -> bytes:
        """The manifest's file: a JSON object of the body and its checksum."""
        body = json_text(
            {
                "format": FORMAT,
                "least_reader": FORMAT,
                "store": self.store.hex(),
                **self.facts.to_json(),
                "sealed": [list(entry) for entry in self.sealed],
                "open": self.open,
                "next": list(self.next),
            }
        )
        return b'{"body":%b,"crc":"%08x"}\n' % (body, crc32(body))

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Manifest:
        """The manifest in a file."""
        facts = data[len(b'{"body":') : -len(b',"crc":"00000000"}\n')]
        if data != b'{"body":%b,"crc":"%08x"}\n' % (facts, crc32(facts)):
            raise StoreCorrupt(f"{where} is damaged: wrong checksum; {repair_advice(where)}")
        with _reading(where):
            body = parse(facts)
            # First, as in a manifest of a later version everything else may differ.
            least_reader = whole(member(body, "least_reader"), "least_reader")
            if least_reader > FORMAT:
                raise too_new_error(where.rpartition("/")[0], least_reader)
            name = text(member(body, "store"), "store")
            if not re.fullmatch("[0-9a-f]{32}", name):
                raise ValueError(f"store: expected 32 hexadecimal digits, got {name[:60]!r}")
            entries = items(member(body, "sealed"), "sealed")
            sealed = tuple(_sealed(entry) for entry in entries)
            newest = member(body, "open")
            if newest is not None:
                newest = whole(newest, "open", 0, MOST_SEGMENTS - 1)
            following = (whole(value, "next") for value in items(member(body, "next"), "next", 5))
            found = cls(
                store=bytes.fromhex(name),
                facts=StoreOptions.from_json(body),
                sealed=sealed,
                open=newest,
                next=NextNumbers(*following),
            )
            whole(found.next.segment, "next segment", 0, MOST_SEGMENTS)
            numbers = found.numbers
            for before, after in itertools.pairwise(numbers):
                if after <= before:
                    raise ValueError(
                        f"segments: expected rising numbers, got {after} after {before}"
                    )
        return found


def _capacity(data: Mapping[str, object], key: str) -> int | None:
    """A capacity, which may have been given, and so written, as 1e6."""
    value = member(data, key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else whole(value, key, 1)


def _sealed(entry: object) -> SealedSegment:
    number, nbytes, slots = items(entry, "sealed", 3)
    return SealedSegment(
        whole(number, "number of a segment", 0, MOST_SEGMENTS - 1),
        whole(nbytes, "length of a segment"),
        whole(slots, "slots of a segment", 0, MOST_SLOTS),
    )
