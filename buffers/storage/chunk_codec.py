"""The bytes of one chunk, the same in RAM and on disk. Pure: uses no files and no clock.

::

    header      u32 number of fields, u32 bytes of metadata
    fields      one entry of 32 bytes each: codec, stored dtype, rows a block, offset, bytes
    metadata    JSON, UTF-8
    data        of each field, at a multiple of 8:
                  raw, narrow   the rows, in the stored dtype
                  zstd          u32 end of each block, then the blocks, each a zstd frame of
                                consecutive rows, or the rows themselves where zstd gains nothing

All numbers are little-endian; offsets count from the chunk's first byte.
"""

from __future__ import annotations

import contextvars
import json
import math
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import zstandard

from stepwell.buffers import json_values
from stepwell.buffers.episode import Chunk
from stepwell.buffers.errors import SpecMismatch, StoreCorrupt
from stepwell.buffers.spec import Field, Spec

__all__ = ["Buffer", "ChunkDecoder", "ChunkEncoder", "Coding", "Part"]

Buffer: TypeAlias = "bytes | bytearray | memoryview | np.ndarray"
Part: TypeAlias = "bytes | memoryview"

_HEADER = struct.Struct("<II")
_FIELD = struct.Struct("<B4s3xI4xQQ")
_END = struct.Struct("<I")
_DTYPE_CHARS = 4
_TAGS: dict[str, int] = {"raw": 0, "narrow": 1, "zstd": 2}
_RAW, _NARROW, _ZSTD = 0, 1, 2

# 16 frames of 84x84 a block: measured best between ratio and rows decoded for nothing.
_BLOCK_ROWS, _BLOCK_BYTES = 16, 1 << 16
_ZSTD_LEVEL = 3
_COPIED_BYTES = 1 << 13  # copying these takes less time than making a view
_MAX_BLOCKS_BYTES = 2**32 - 1  # the largest end of a block
# A zstd frame begins with 6 bytes at least, and 4 bytes hold 128 KiB at most.
_FRAME_BYTES, _PART_BYTES, _PART_HOLDS = 6, 4, 1 << 17

_NARROWER = {
    kind: tuple(map(np.dtype, names))
    for kind, names in {
        "i": ("<i1", "<u1", "<i2", "<u2", "<i4", "<u4"),
        "u": ("<u1", "<u2", "<u4"),
        "f": ("<i1", "<i2", "<f4"),
        "b": (),
    }.items()
}


class ChunkEncoder:
    """Encodes chunks as bytes. Not safe to share between threads.

    Args:
        spec: The fields that every chunk must have.
    """

    def __init__(self, spec: Spec) -> None:
        self._fields = [(field, field.numpy_dtype.newbyteorder("<")) for field in spec.fields]
        self._head = struct.Struct(_head_format(spec))
        self._silent = contextvars.Context()  # `np.errstate` takes longer than the casts
        self._silent.run(np.seterr, invalid="ignore", over="ignore")
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True)

    def encode(self, chunk: Chunk) -> list[Part]:
        """The chunk's bytes, in parts to be written one after the other.

        Raises:
            SpecMismatch: A field is missing, or has another dtype or shape than in the Spec.
        """
        metadata = _metadata_text(chunk)
        offset = self._head.size + len(metadata)
        padding = _padding(offset)
        offset += len(padding)
        head: list[int | bytes] = [len(self._fields), len(metadata)]
        data: list[Part] = [padding]
        count = chunk.rows
        for field, dtype in self._fields:
            rows = _rows_of(chunk, field, dtype, count)
            stored, block_rows, parts = self._encode_field(field, rows)
            nbytes = sum(map(len, parts))
            head += (_TAGS[field.codec], stored.encode(), block_rows, offset, nbytes)
            padding = _padding(nbytes)
            data += [*parts, padding]
            offset += nbytes + len(padding)
        return [self._head.pack(*head) + metadata, *data]

    def _encode_field(self, field: Field, rows: np.ndarray) -> tuple[str, int, list[Part]]:
        if field.codec == "narrow":
            rows = self._silent.run(_narrowed, rows)
        if field.codec != "zstd":
            few = rows.nbytes <= _COPIED_BYTES
            return rows.dtype.str, 0, [rows.tobytes() if few else _as_bytes(rows)]
        block_rows = _block_rows(field)
        return rows.dtype.str, block_rows, self._compress(rows, block_rows)

    def _compress(self, rows: np.ndarray, block_rows: int) -> list[Part]:
        blocks: list[Part] = []
        for start in range(0, len(rows), block_rows):
            block = _as_bytes(rows[start : start + block_rows])
            packed = self._compressor.compress(block)
            # A block as long as its rows holds the rows themselves: readers rely on that.
            blocks.append(packed if len(packed) < block.nbytes else block)
        ends = np.cumsum([len(block) for block in blocks], dtype=np.int64)
        if ends[-1] > _MAX_BLOCKS_BYTES:
            raise ValueError(
                f"one field of a chunk takes {ends[-1]} bytes, expected at most "
                f"{_MAX_BLOCKS_BYTES}: flush more often"
            )
        return [_as_bytes(ends.astype("<u4")), *blocks]


class Coding(NamedTuple):
    """The storage form of one field of a chunk; most chunks share it."""

    dtype: np.dtype[np.generic]
    row_bytes: int
    block_rows: int


class ChunkDecoder:
    """Reads rows out of the bytes that `ChunkEncoder` made. Safe to share between threads.

    Bytes from outside this process' memory must be checked by `check` first.

    Args:
        spec: The fields that the chunks were written with.
    """

    def __init__(self, spec: Spec) -> None:
        self._fields = spec.fields
        self._head = struct.Struct(_head_format(spec))
        # By codec, stored dtype and rows a block, as in an entry.
        self._codings = [dict(_codings(field)) for field in spec.fields]
        stored = [
            [coding for (tag, *_), coding in codings.items() if tag == _TAGS[field.codec]]
            for field, codings in zip(self._fields, self._codings, strict=True)
        ]
        self._least_row = float(
            sum(min(c.row_bytes for c in each) for each in stored if not each[0].block_rows)
        )
        self._least_blocks = [each[0].block_rows for each in stored if each[0].block_rows]
        self._local = threading.local()

    def least_bytes(self, rows: np.ndarray) -> np.ndarray:
        """Least sizes in bytes [n] of chunks with numbers of rows [n], as float64."""
        least = rows * self._least_row + self._head.size  # may exceed 64 bits
        for block_rows in self._least_blocks:
            least += np.ceil(rows / block_rows) * _END.size
        return least

    def check_head(self, buffer: Buffer, origin: int, nbytes: int) -> None:
        """Refuse a head whose length, or number of fields, is not the expected one.

        Raises:
            StoreCorrupt: No `ChunkEncoder` made this.
        """
        fields, metadata = _HEADER.unpack_from(cast("bytes", buffer), origin)
        if fields != len(self._fields) or self._head.size + metadata != nbytes:
            raise StoreCorrupt(
                f"its head has {fields} fields and {metadata} bytes of metadata, expected "
                f"{len(self._fields)} and {nbytes - self._head.size}"
            )

    def check(self, buffer: Buffer, origin: int, nbytes: int, rows: int) -> None:
        """Refuse a chunk whose fields do not fit in its bytes.

        Checks every size and offset, and decodes no row.

        Args:
            buffer: Memory that holds the chunk.
            origin: Offset of the chunk in it.
            nbytes: Length of the chunk.
            rows: Rows that were written into it.

        Raises:
            StoreCorrupt: No `ChunkEncoder` made this.
        """
        _, metadata, *values = self._head.unpack_from(cast("bytes", buffer), origin)
        least = self._head.size + metadata
        for field, codings, tag, name, block_rows, offset, size in zip(
            *(self._fields, self._codings, values[::5], values[1::5], values[2::5]),
            *(values[3::5], values[4::5]),
            strict=True,
        ):
            coding = codings.get((tag, name, block_rows))
            if coding is None:
                raise StoreCorrupt(
                    f"field {field.name!r} is kept as codec {tag}, dtype {name!r}, {block_rows} "
                    f"rows a block, expected what {field.dtype} can be kept as"
                )
            if offset < least or offset + size > nbytes:
                raise StoreCorrupt(
                    f"field {field.name!r} lies at {offset} to {offset + size}, expected a place "
                    f"from {least} to {nbytes}"
                )
            if coding.block_rows:
                _check_blocks(field, buffer, origin + offset, size, rows, coding)
            elif size != rows * coding.row_bytes:
                raise StoreCorrupt(
                    f"field {field.name!r} takes {size} bytes, expected {rows * coding.row_bytes} "
                    f"for {rows} rows"
                )
            least = offset + size

    def check_rows(self, buffer: Buffer, origin: int, rows: int) -> None:
        """Decode every row of a chunk, which `check` has accepted.

        Raises:
            StoreCorrupt: A compressed block does not hold its rows.
        """
        source = memoryview(cast("bytes", buffer))
        for coding, offset in self.fields(buffer, origin):
            if not coding.block_rows:
                continue
            target = self._scratch(min(coding.block_rows, rows) * coding.row_bytes)
            for start in range(0, rows, coding.block_rows):
                count = min(coding.block_rows, rows - start)
                part = target[: count * coding.row_bytes]
                self.decode_rows(source, coding, offset, rows, start, count, part)

    def metadata(self, buffer: Buffer, origin: int) -> Mapping[str, object]:
        """The metadata of the chunk that begins at ``origin``.

        Raises:
            StoreCorrupt: It is no JSON object.
        """
        _, nbytes = _HEADER.unpack_from(cast("bytes", buffer), origin)
        start = origin + self._head.size
        text = bytes(memoryview(cast("bytes", buffer))[start : start + nbytes])
        try:
            return json_values.parse(text, is_finite=False) if text else {}
        except ValueError as error:
            raise StoreCorrupt(f"its metadata: {error}") from error

    def fields(self, buffer: Buffer, origin: int) -> list[tuple[Coding, int]]:
        """The coding of each field and the offset of its rows, in the order of the Spec.

        Args:
            buffer: Memory that holds the chunk.
            origin: Offset of the chunk in the memory.
        """
        values = self._head.unpack_from(cast("bytes", buffer), origin)
        return [
            (codings[key], origin + offset)
            for codings, key, offset in zip(
                self._codings,
                zip(values[2::5], values[3::5], values[4::5], strict=True),
                values[5::5],
                strict=True,
            )
        ]

    def copy_rows(
        self,
        buffer: Buffer,
        coding: Coding,
        offset: int,
        rows: int,
        start: int,
        out: np.ndarray,
    ) -> None:
        """Copy rows ``start .. start + len(out)`` of one field into ``out``.

        Args:
            buffer: Memory that holds the chunk.
            coding: How the rows are stored.
            offset: Offset of the field in the memory.
            rows: Rows that were written into the chunk.
            start: First row to copy, counted within the chunk.
            out: C-contiguous array ``[n, *shape]``, in the field's dtype where it is compressed.
        """
        dtype, row_bytes, block_rows = coding
        if block_rows:
            source = memoryview(cast("bytes", buffer))
            self.decode_rows(source, coding, offset, rows, start, len(out), _as_bytes(out))
        else:
            out[...] = np.ndarray(out.shape, dtype, buffer, offset + start * row_bytes)

    def read(
        self, buffer: Buffer, origin: int, rows: int, field: int, start: int, out: np.ndarray
    ) -> None:
        """`copy_rows` of the chunk at ``origin``, of the field with this number in the Spec."""
        coding, offset = self.fields(buffer, origin)[field]
        self.copy_rows(buffer, coding, offset, rows, start, out)

    def decode_rows(
        self,
        source: memoryview,
        coding: Coding,
        offset: int,
        rows: int,
        start: int,
        count: int,
        target: memoryview,
    ) -> None:
        """Decode the blocks that hold ``count`` rows of a compressed field.

        Args:
            source: Memory that holds the chunk.
            coding: How the rows are stored.
            offset: Offset of the field in the memory.
            rows: Rows of the chunk.
            start: First row to decode.
            count: Number of rows to decode.
            target: Receives their bytes.
        """
        _, row_bytes, block_rows = coding
        data, stop = offset + 4 * -(-rows // block_rows), start + count
        for block in range(start // block_rows, (stop - 1) // block_rows + 1):
            begin = block * block_rows
            end = begin + block_rows
            if end > rows:
                end = rows
            low = start if start > begin else begin
            high = stop if stop < end else end
            where = offset + 4 * block
            before = _END.unpack_from(source, where - 4)[0] if block else 0
            packed = source[data + before : data + _END.unpack_from(source, where)[0]]
            self._decode(
                packed,
                (end - begin) * row_bytes,
                (low - begin) * row_bytes,
                target[(low - start) * row_bytes : (high - start) * row_bytes],
            )

    def _decode(self, packed: memoryview, size: int, skip: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes of a block of ``size`` bytes, from ``skip`` on."""
        if len(packed) == size:
            target[:] = packed[skip : skip + len(target)]
            return
        # Stops as soon as the rows are decoded; uses scratch memory if other rows precede them.
        want = skip + len(target)
        into = target if skip == 0 else self._scratch(want)
        try:
            holds = zstandard.frame_content_size(packed)
            got = self._decompressor.stream_reader(packed).readinto(into) if holds == size else 0
        except zstandard.ZstdError as error:
            raise StoreCorrupt(
                f"a compressed block of {len(packed)} bytes cannot be decoded, expected {size} "
                f"bytes of rows ({error})"
            ) from error
        if holds != size or got != want:
            raise StoreCorrupt(
                f"a compressed block declares {holds} bytes and has {got} of {want}, expected "
                f"{size} in all"
            )
        if skip:
            target[:] = into[skip:]

    @property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        found = getattr(self._local, "decompressor", None)
        if found is None:
            found = self._local.decompressor = zstandard.ZstdDecompressor()
        return cast("zstandard.ZstdDecompressor", found)

    def _scratch(self, nbytes: int) -> memoryview:
        scratch = getattr(self._local, "scratch", None)
        if scratch is None or len(scratch) < nbytes:
            scratch = self._local.scratch = memoryview(bytearray(nbytes))
        return cast("memoryview", scratch)[:nbytes]


def _metadata_text(chunk: Chunk) -> bytes:
    if not chunk.metadata:
        return b""
    text = json.dumps(dict(chunk.metadata), separators=(",", ":")).encode()
    json_values.check_extent(text, chunk.metadata)
    return text


def _head_format(spec: Spec) -> str:
    """The format of a chunk's head without its metadata, for `struct`."""
    return _HEADER.format + _FIELD.format.removeprefix("<") * len(spec.fields)


def _rows_of(chunk: Chunk, field: Field, dtype: np.dtype[np.generic], count: int) -> np.ndarray:
    """The rows of one field, contiguous and in the given dtype, which is little-endian.

    Their dtype and shape are checked: a wrong cast would be permanent.
    """
    rows, expected = chunk.fields.get(field.name), (count, *field.shape)
    if rows is not None and rows.shape == expected:
        # Any byte order is accepted, as it is converted exactly.
        if rows.dtype == dtype or rows.dtype.newbyteorder("<") == dtype:
            return np.ascontiguousarray(rows, dtype)
    got = "nothing" if rows is None else f"{rows.dtype} {rows.shape}"
    raise SpecMismatch(
        f"field {field.name!r} of a chunk: expected {field.dtype} {expected}, got {got}"
    )


def _narrowed(rows: np.ndarray) -> np.ndarray:
    """The same values in the smallest dtype that preserves every bit."""
    dtype, exact = rows.dtype, rows.tobytes()
    for narrower in _NARROWER.get(dtype.kind, ()):
        if narrower.itemsize >= dtype.itemsize:
            break
        small = rows.astype(narrower)
        # Bits, not values: -0.0 equals 0 and NaN equals nothing.
        if small.astype(dtype).tobytes() == exact:
            return small
    return rows


def _block_rows(field: Field) -> int:
    """Rows of a compressed block."""
    return max(_BLOCK_ROWS, _BLOCK_BYTES // max(1, field.row_bytes))


def _codings(field: Field) -> Iterator[tuple[tuple[int, bytes, int], Coding]]:
    """All codings of a field by `ChunkEncoder`, by codec, dtype and rows a block.

    Joined stores may use other codecs than the Spec of the first store, so all codecs are here.
    """
    own = field.numpy_dtype.newbyteorder("<")
    smaller = [each for each in _NARROWER.get(own.kind, ()) if each.itemsize < own.itemsize]
    items = math.prod(field.shape)
    for codec, dtypes in (("raw", [own]), ("narrow", [*smaller, own]), ("zstd", [own])):
        block_rows = _block_rows(field) if codec == "zstd" else 0
        for dtype in dtypes:
            name = dtype.str.encode().ljust(_DTYPE_CHARS, b"\0")
            coding = Coding(dtype, items * dtype.itemsize, block_rows)
            yield (_TAGS[codec], name, block_rows), coding


def _check_blocks(
    field: Field, buffer: Buffer, offset: int, size: int, rows: int, coding: Coding
) -> None:
    """Refuse compressed rows whose blocks do not add up to their size, or are too small.

    Args:
        field: The field.
        buffer: Memory that holds the chunk.
        offset: Offset of the ends of the blocks in it.
        size: Length of ends and blocks.
        rows: Number of rows.
        coding: Their coding.
    """
    blocks = -(-rows // coding.block_rows)
    room = size - _END.size * blocks
    if room < 0:
        raise StoreCorrupt(
            f"field {field.name!r} takes {size} bytes, expected {_END.size * blocks} or more for "
            f"the ends of {blocks} blocks"
        )
    ends = np.ndarray(blocks, "<u4", buffer, offset).astype(np.int64)
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    full = coding.block_rows * coding.row_bytes
    last = (rows - (blocks - 1) * coding.block_rows) * coding.row_bytes
    # The last block may have fewer rows.
    is_right = (
        int(ends[-1]) == room
        and _least_block(last) <= lengths[-1] <= last
        and (blocks == 1 or _least_block(full) <= lengths[:-1].min())
        and (blocks == 1 or lengths[:-1].max() <= full)
    )
    if not is_right:
        raise StoreCorrupt(
            f"the {blocks} compressed blocks of field {field.name!r} take {room} bytes in parts "
            f"that cannot hold {rows} rows of {coding.row_bytes} bytes"
        )


def _least_block(nbytes: int) -> int:
    """Least number of bytes of a compressed block of ``nbytes`` bytes."""
    return min(nbytes, _FRAME_BYTES + _PART_BYTES * -(-nbytes // _PART_HOLDS))


def _as_bytes(rows: np.ndarray) -> memoryview:
    return memoryview(cast("bytes", rows.reshape(-1).view(np.uint8)))


def _padding(nbytes: int) -> bytes:
    return b"\0" * (-nbytes % 8)


assert sys.byteorder == "little", "Stepwell runs on little-endian machines"
