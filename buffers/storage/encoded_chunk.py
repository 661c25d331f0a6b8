"""Encoded chunks as values: their bytes, their place in an episode, and the form for sending them.

The bytes of several chunks as `pack_chunks` makes them::

    header      8 bytes that say what this is, u32 number of chunks, u32 CRC-32 of the number and
                the entries
    entries     48 bytes for each chunk: i64 episode, stream, first row and rows, u64 bytes, u32
                CRC-32 of the bytes, u8 flags of the end, u8 starts_late, two zeros
    chunks      the bytes of each

All numbers are little-endian. Nothing is pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

import numpy as np

from ..base.errors import StoreCorrupt
from ..base.memory_limit import check_free_memory
from ..base.native import crc32
from ..base.untrusted_json import MOST
from ..rows.episode import Chunk, End
from ..spec.spec import Spec
from .chunk_codec import (
    Buffer,
    ChunkDecoder,
    ChunkEncoder,
    Part,
    head_bytes,
    metadata_in,
    metadata_text_in,
    with_metadata,
)
from .chunk_index import ChunkInfo

_MAGIC = b"SWCHUNK1"
_HEADER = struct.Struct("<8sII")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<qqqqQIBBxx")
_MOST = MOST // 2
_FLAGS, _LOST = int(End.TERMINATED | End.TRUNCATED | End.PENDING), int(End.LOST)
_PLACE = attrgetter("episode", "stream", "first_row", "rows", "end", "starts_late")
_ENDS = [End(flags) for flags in range(_FLAGS + 1)]  # making one takes a microsecond


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChunk:
    """A `Chunk` in the bytes in which storages keep it.

    `Storage.encoded` gives it, `Storage.add_encoded` takes it in as it is; `pack_chunks` and
    `unpack_chunks` are for sending several. Two are equal if their places and bytes are.

    Args:
        episode: Id of the episode, never reused within a store.
        stream: Index of the env that played it.
        first_row: Index of the first row in the episode, 0 for the row of the reset.
        rows: Number of rows.
        end: Flags of the last row.
        starts_late: The rows before ``first_row`` are lost: this chunk may be the first one of its
            episode.
        parts: The bytes, in parts that follow each other. The first one holds the whole head: the
            places of the fields, and the metadata.
        known_crc: Their CRC-32, if it is known.
        checked: The fields under which `check` has accepted this chunk.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import Field, MemoryStorage
        >>> spec = Spec((Field("reward", "float64", (), "narrow"),), {}, {})
        >>> here, there = MemoryStorage(spec), MemoryStorage(spec)
        >>> rows = {"reward": np.array([0.0, 1.0, 1.0])}
        >>> here.add([Chunk(0, 0, 0, End.TERMINATED, rows, {"seed": 7})])
        >>> chunk = here.encoded(0)
        >>> chunk.rows, chunk.nbytes, chunk.metadata
        (3, 64, {'seed': 7})
        >>> sent = pack_chunks([chunk.placed(episode=5, stream=2)])
        >>> there.add_encoded(unpack_chunks(sent, spec))
        >>> there.index.record(0).episode, there.encoded(0).decoded(spec).fields["reward"].tolist()
        (5, [0.0, 1.0, 1.0])
    """

    episode: int
    stream: int
    first_row: int
    rows: int
    end: End
    starts_late: bool
    parts: Sequence[Part]
    known_crc: int | None = None
    checked: Spec | None = None

    @classmethod
    def of(cls, encoder: ChunkEncoder, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk.

        Raises:
            SpecMismatch: A field is missing, or has another dtype or shape than in the Spec.
        """
        return cls(
            *(chunk.episode, chunk.stream, chunk.first_row, chunk.rows, chunk.end),
            *(chunk.starts_late, encoder.encode(chunk)),
        )

    @classmethod
    def stored(
        cls,
        record: ChunkInfo,
        spec: Spec | None,
        memory: Buffer,
        offset: int,
        crc: int | None = None,
    ) -> EncodedChunk:
        """The chunk of a record; its bytes are not copied.

        Args:
            record: Its record.
            spec: The fields under which its bytes were checked; None if they were not.
            memory: Memory that holds them.
            offset: Their offset in it.
            crc: Their CRC-32, if it is known.

        Raises:
            StoreCorrupt: The chunk is left out as damaged.
        """
        if record.end & _LOST:
            raise StoreCorrupt(
                f"rows {record.first_row} to {record.first_row + record.stored_rows - 1} of "
                f"episode {record.episode} are left out as damaged"
            )
        data = memoryview(cast("bytes", memory))[offset : offset + record.nbytes]
        starts_late = record.first_row > 0 and record.previous < 0
        return cls(
            record.episode,
            record.stream,
            record.first_row,
            record.stored_rows,
            _ENDS[record.end],
            starts_late,
            (data,),
            crc,
            spec,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncodedChunk):
            return NotImplemented
        return _PLACE(self) == _PLACE(other) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # as of a memory that may be changed

    def __repr__(self) -> str:
        return (
            f"EncodedChunk(episode={self.episode}, stream={self.stream}, "
            f"first_row={self.first_row}, rows={self.rows}, end={self.end!r}, "
            f"nbytes={self.nbytes})"
        )

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        parts = self.parts
        return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

    @property
    def data(self) -> Part:
        """The bytes; a copy if they are in several parts."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def head(self) -> Part:
        """The first bytes: the places of the fields, and the metadata."""
        return self.parts[0][: head_bytes(self.parts[0])]

    @property
    def crc(self) -> int:
        """CRC-32 of the bytes."""
        if self.known_crc is not None:
            return self.known_crc
        crc = 0
        for part in self.parts:
            crc = crc32(part, crc)
        return crc

    @property
    def metadata(self) -> Mapping[str, object]:
        """JSON-able facts about the episode.

        Raises:
            StoreCorrupt: They are no JSON object.
        """
        return metadata_in(self.parts[0])

    @property
    def metadata_text(self) -> Part:
        """The same as JSON; empty where there are none."""
        return metadata_text_in(self.parts[0])

    def placed(
        self, *, episode: int, stream: int, metadata: Mapping[str, object] | None = None
    ) -> EncodedChunk:
        """The same rows as those of another episode and stream; they are not copied.

        Args:
            episode: Id of the episode.
            stream: Index of the env.
            metadata: Other JSON-able facts; None keeps those that are there.

        Raises:
            StoreCorrupt: The bytes are not those of a chunk.
        """
        if metadata is None and episode == self.episode and stream == self.stream:
            return self
        parts, crc = self.parts, self.known_crc
        if metadata is not None:
            parts, crc = with_metadata(self.data, metadata), None
        return EncodedChunk(  # `replace` takes several times as long
            *(episode, stream, self.first_row, self.rows, self.end, self.starts_late),
            *(parts, crc, self.checked),
        )

    def check(self, spec: Spec | ChunkDecoder) -> None:
        """Refuse bytes that are no chunk of these fields, or not those that were sent.

        Checks the checksum if it is known, every number, size and offset, and the metadata; decodes
        no row. Nothing is checked twice.

        Args:
            spec: The fields, or a decoder of them.

        Raises:
            StoreCorrupt: No `ChunkEncoder` made this, or the bytes are damaged.
            SpecMismatch: A field has another codec.
        """
        decoder = spec if isinstance(spec, ChunkDecoder) else None
        expected = spec if isinstance(spec, Spec) else spec.spec
        # it was checked when it came, and is not checked again when it is stored
        if self.checked is expected or self.checked == expected:
            return
        decoder = decoder or ChunkDecoder(expected)
        data, nbytes = self.data, self.nbytes
        for name, value, least, most in (
            ("episode", self.episode, 0, _MOST),
            ("stream", self.stream, -_MOST, _MOST),
            ("first_row", self.first_row, 0, _MOST),
            ("rows", self.rows, 1, _MOST),
            ("end", self.end, 0, _FLAGS),
        ):
            if not least <= value <= most:
                raise StoreCorrupt(
                    f"encoded chunk: expected {name} from {least} to {most}, got {int(value)}; "
                    f"send it again"
                )
        try:
            if self.known_crc is not None and (crc := crc32(data)) != self.known_crc:
                raise StoreCorrupt(f"expected the checksum {self.known_crc:08x}, got {crc:08x}")
            decoder.check_whole(data, 0, nbytes, self.rows)
            decoder.check_metadata(data, 0)
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"encoded chunk of rows {self.first_row} to {self.first_row + self.rows - 1} of "
                f"episode {self.episode}, {nbytes} bytes: {error}; send it again"
            ) from error
        decoder.check_codecs(data, 0)

    def decoded(self, spec: Spec | ChunkDecoder) -> Chunk:
        """The chunk with its rows.

        Args:
            spec: The fields, or a decoder of them.

        Raises:
            StoreCorrupt: The bytes are damaged.
            MemoryError: There is not enough memory for the rows.
        """
        decoder = spec if isinstance(spec, ChunkDecoder) else ChunkDecoder(spec)
        self.check(decoder)
        data, rows = self.data, self.rows
        row_bytes = sum(field.row_bytes for field in decoder.spec.fields)
        check_free_memory(rows * row_bytes, f"a chunk of episode {self.episode}")
        fields: dict[str, np.ndarray] = {}
        for field, (coding, offset) in zip(
            decoder.spec.fields, decoder.fields(data, 0, rows), strict=True
        ):
            fields[field.name] = np.empty((rows, *field.shape), field.numpy_dtype)
            decoder.copy_rows(data, coding, offset, rows, 0, fields[field.name])
        place = self.episode, self.stream, self.first_row, self.end
        return Chunk(*place, fields, self.metadata, self.starts_late)


def fitting_chunks(
    chunks: Iterable[EncodedChunk],
    max_rows: int,  # chunks with more, or with patches of another form, are encoded again
    decoder: ChunkDecoder,  # of the storage's Spec
    encoder: ChunkEncoder,  # of the same Spec
) -> list[EncodedChunk]:
    """Check chunks that are to be stored, and encode some again."""
    fitting: list[EncodedChunk] = []
    known = decoder.spec  # or an equal one: comparing two takes microseconds
    for chunk in chunks:
        if chunk.checked is not known:
            chunk.check(decoder)
            if chunk.checked == decoder.spec:
                known = chunk.checked
        if chunk.rows <= max_rows and encoder.suits(chunk.data, chunk.rows):
            fitting.append(chunk)
        else:
            parts = chunk.decoded(decoder).split(max_rows)
            fitting += [EncodedChunk.of(encoder, part) for part in parts]
    return fitting


def pack_chunks(chunks: Sequence[EncodedChunk]) -> bytes:
    """The bytes of some chunks, to be sent, empty for none; `unpack_chunks` reads them."""
    if not chunks:
        return b""
    count = _COUNT.pack(len(chunks))
    entries = b"".join(
        _ENTRY.pack(
            *(chunk.episode, chunk.stream, chunk.first_row, chunk.rows, chunk.nbytes, chunk.crc),
            *(int(chunk.end), chunk.starts_late),
        )
        for chunk in chunks
    )
    header = _HEADER.pack(_MAGIC, len(chunks), crc32(entries, crc32(count)))
    return b"".join([header, entries, *(part for chunk in chunks for part in chunk.parts)])


def unpack_chunks(data: Buffer, spec: Spec) -> list[EncodedChunk]:
    """The chunks that `pack_chunks` packed; their bytes are not copied."""
    # Every number, size and checksum is checked; see `EncodedChunk.check`.
    view = memoryview(cast("bytes", data)).cast("B").toreadonly()
    if not len(view):
        return []
    if len(view) < _HEADER.size or view[:8] != _MAGIC:
        expected = f"{_HEADER.size} bytes or more that begin with {_MAGIC!r}"
        raise _not_sent(expected, f"{len(view)} that begin with {bytes(view[:8])!r}")
    _, count, crc = _HEADER.unpack_from(view)
    begin = _HEADER.size + count * _ENTRY.size
    if begin > len(view) or crc32(view[_HEADER.size : begin], crc32(_COUNT.pack(count))) != crc:
        raise StoreCorrupt(
            f"packed chunks: the entries of {count} chunks in {len(view)} bytes are damaged; send "
            f"them again"
        )
    found: list[EncodedChunk] = []
    decoder = ChunkDecoder(spec)
    for at in range(_HEADER.size, begin, _ENTRY.size):
        entry: tuple[int, ...] = _ENTRY.unpack_from(view, at)
        episode, stream, first_row, rows, nbytes, crc, end, starts_late = entry
        if nbytes > len(view) - begin:
            raise _not_sent(f"{nbytes} bytes of a chunk", f"{len(view) - begin}")
        if end > _FLAGS or starts_late > 1:
            raise _not_sent(f"flags up to {_FLAGS} and 1", f"{end} and {starts_late}")
        part = view[begin : begin + nbytes]
        place = episode, stream, first_row, rows
        chunk = EncodedChunk(*place, _ENDS[end], bool(starts_late), (part,), crc)
        chunk.check(decoder)
        found.append(replace(chunk, checked=spec))
        begin += nbytes
    if begin != len(view):
        raise _not_sent(f"{begin} bytes", f"{len(view)}")
    return found


def _not_sent(expected: str, got: str) -> StoreCorrupt:
    return StoreCorrupt(f"packed chunks: expected {expected}, got {got}; send them again")
