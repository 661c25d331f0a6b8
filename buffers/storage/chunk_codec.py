"""The bytes of one chunk, the same in RAM and on disk. Pure: uses no files and no clock.

::

    header      u32 number of fields, u32 bytes of metadata
    fields      one entry of 32 bytes each: codec, stored dtype, rows a block, offset, bytes
    metadata    JSON, UTF-8
    data        of each field, at a multiple of 8:
                  raw, narrow   the rows, in the stored dtype
                  zstd, delta,  u32 end of each block, then the blocks, each a zstd frame of
                  patch         consecutive rows, or the rows themselves where zstd gains nothing;
                                in delta, which is only read, also a zstd frame of their deltas,
                                which are shorter; in patch their patches, on disk as a zstd frame,
                                in RAM as they are

All numbers are little-endian; offsets count from the chunk's first byte. `docs/disk-format.md`
describes every byte.
"""

from __future__ import annotations

import contextvars
import json
import math
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import zstandard

from ..base import native, untrusted_json
from ..base.errors import SpecMismatch, StoreCorrupt
from ..rows.episode import Chunk
from ..spec.spec import IMAGE_BYTES, PATCHED_BYTES, Field, Spec, as_written
from . import patches

Buffer: TypeAlias = "bytes | bytearray | memoryview | np.ndarray"
Part: TypeAlias = "bytes | memoryview"
_Key: TypeAlias = "bytes | tuple[int, int, int]"

_HEADER = struct.Struct("<II")
_FIELD = struct.Struct("<B4s3xI4xQQ")
_END = struct.Struct("<I")
_OFFSET, _OFFSET_AT = struct.Struct("<Q"), 16  # in an entry
_COUNT, _FORM = struct.Struct("<Q"), struct.Struct("<I4sIIQ")  # as in _native.c
_DTYPE_CHARS = 4
_ENTRY = np.dtype(
    {
        "names": ["tag", "name", "block_rows", "offset"],
        "formats": ["u1", "<u4", "<u4", "<u8"],
        "offsets": [0, 1, 8, 16],
        "itemsize": _FIELD.size,
    }
)
_PADDINGS = [b"\0" * count for count in range(8)]
_TAGS: dict[str, int] = {"raw": 0, "narrow": 1, "zstd": 2, "delta": 3, "patch": 4}

# 84x84 frames a block: measured best between ratio and rows decoded for nothing.
_BLOCK_ROWS, _BLOCK_BYTES = {"zstd": 16, "delta": 32}, 1 << 16
# Of patches a reader takes those alone that it needs, so that blocks may be long.
_PATCHED_ROWS = 256
# Longer patches save too little: the rows are compressed as they are.
_MOST_PATCHES = 3 / 4
# In RAM, of rows without patches: plain ones are drawn from some ten times as fast.
_MOST_IN_RAM = 1 / 2
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # more, as a number, than a block has patches
_ZSTD_LEVEL = 3
# A level finds too little in words of eight bytes: these take an eighth off those of twelve
# games at 1.5 us of CPU a row, half of what level 6 takes for the same.
_PATCH_ZSTD = zstandard.ZstdCompressionParameters(
    **{"strategy": zstandard.STRATEGY_GREEDY, "min_match": 5, "search_log": 5, "target_length": 8},
    **{"window_log": 21, "hash_log": 16, "chain_log": 16, "write_content_size": True},
)
_COPIED_BYTES = 1 << 13  # copying these takes less time than making a view
_MOST_REMEMBERED = 1 << 12  # bytes of metadata
_CHANGES = {"delta": "deltas", "patch": "patches"}
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
    """Encodes chunks as bytes. Not safe to share between threads."""

    # In RAM patches are not compressed: they are drawn from faster than plain rows.

    def __init__(self, spec: Spec, *, packs_patches: bool = True) -> None:
        self._packs_patches = packs_patches
        spec = as_written(spec)
        self._tags = {_TAGS[field.codec] for field in spec.fields}
        self._fields = [
            (
                field,
                field.numpy_dtype.newbyteorder("<"),
                _TAGS[field.codec],
                _block_rows(field, field.codec),
            )
            for field in spec.fields
        ]
        self._names = {
            dtype: dtype.str.encode()
            for field in spec.fields
            for dtype in _stored_dtypes(field, field.codec)
        }
        self._head = struct.Struct(_head_format(spec))
        self._silent = contextvars.Context()  # `np.errstate` takes longer than the casts
        self._silent.run(np.seterr, invalid="ignore", over="ignore")
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True)
        self._patch_compressor = zstandard.ZstdCompressor(compression_params=_PATCH_ZSTD)

    def encode(self, chunk: Chunk) -> list[Part]:
        """The chunk's bytes, in parts to be written one after the other; its fields are checked."""
        metadata = _metadata_text(chunk.metadata)
        offset = self._head.size + len(metadata)
        padding = _padding(offset)
        offset += len(padding)
        head: list[int | bytes] = [len(self._fields), len(metadata)]
        data: list[Part] = [padding]
        count = chunk.rows
        for field, dtype, tag, block_rows in self._fields:
            rows = _rows_of(chunk, field, dtype, count)
            if field.codec == "narrow":
                rows = self._silent.run(_narrowed, rows)
            nbytes = rows.nbytes
            if block_rows:
                parts = self._patch(rows, block_rows) if field.codec == "patch" else None
                if parts is None:
                    if field.codec == "patch":
                        tag, block_rows = _TAGS["zstd"], _block_rows(field, "zstd")
                    parts = self._compress(rows, block_rows, field)
                nbytes = sum(map(len, parts))
                data += parts
            else:
                data.append(rows.tobytes() if nbytes <= _COPIED_BYTES else _as_bytes(rows))
            head += (tag, self._names[rows.dtype], block_rows, offset, nbytes)
            padding = _padding(nbytes)
            data.append(padding)
            offset += nbytes + len(padding)
        return [self._head.pack(*head) + metadata, *data]

    def suits(self, data: Buffer, rows: int) -> bool:
        """False if the patches of a chunk are compressed, and would not be here, or the reverse."""
        if _TAGS["patch"] not in self._tags:
            return True
        values = self._head.unpack_from(cast("bytes", data))
        for field, tag, block_rows, offset in zip(
            self._fields, values[2::5], values[4::5], values[5::5], strict=True
        ):
            if tag != _TAGS["patch"]:
                continue
            for block, count in _blocks(data, offset, rows, block_rows):
                if len(block) != count * field[0].row_bytes:
                    packed = bytes(block[: len(_ZSTD_MAGIC)]) == _ZSTD_MAGIC
                    return packed == self._packs_patches
        return True

    def _compress(self, rows: np.ndarray, block_rows: int, field: Field) -> list[Part]:
        """The blocks of rows; one that zstd does not make small enough is plain."""
        most = _MOST_IN_RAM if field.codec == "patch" and not self._packs_patches else 1
        blocks: list[Part] = []
        for start in range(0, len(rows), block_rows):
            block = _as_bytes(rows[start : start + block_rows])
            packed = self._compressor.compress(block)
            # A block as long as its rows holds the rows themselves: readers rely on that.
            blocks.append(packed if len(packed) < block.nbytes * most else block)
        return self._with_ends(blocks)

    def _patch(self, rows: np.ndarray, block_rows: int) -> list[Part] | None:
        """The blocks of patches; None where compressed rows are better."""
        flat = np.frombuffer(_as_bytes(rows), np.uint8).reshape(len(rows), -1)
        blocks: list[Part] = []
        left = int(flat.size * _MOST_PATCHES)
        for start in range(0, len(rows), block_rows):
            some = flat[start : start + block_rows]
            # A last block of one row is that row: it alone decides nothing of all the others.
            most = int(some.size * _MOST_PATCHES) if len(some) > 1 else some.size
            found = patches.patches_of(some, min(most, left))
            if found is None:
                return None
            left -= len(found)
            plain = _as_bytes(found)
            packed = self._patch_compressor.compress(plain) if self._packs_patches else plain
            blocks.append(packed if len(packed) < len(plain) else plain)
        return self._with_ends(blocks)

    @staticmethod
    def _with_ends(blocks: list[Part]) -> list[Part]:
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
    changes: str = ""  # that a block may hold in place of its rows: deltas, patches, or none


class ChunkDecoder:
    """Reads rows out of the bytes that `ChunkEncoder` made. Safe to share between threads."""

    # Bytes from outside this process' memory must be checked by `check` first.

    def __init__(
        self,
        spec: Spec,
        # memory for deltas that were decompressed, to use them again: they are a small part of
        # their rows
        cache_bytes: int = 0,
    ) -> None:
        self.spec = spec
        self._fields = spec.fields
        self._head = struct.Struct(_head_format(spec))
        # By codec, stored dtype and rows a block, as in an entry.
        self._codings = [dict(_codings(field)) for field in spec.fields]
        stored = [
            [coding for (tag, *_), coding in codings.items() if tag == _TAGS[field.codec]]
            for field, codings in zip(self._fields, self._codings, strict=True)
        ]
        self._forms = b"".join(map(_forms, self._codings))
        self._parsed = b""
        self._tags = bytes(_TAGS[field.codec] for field in spec.fields)
        self._least_row = float(
            sum(min(c.row_bytes for c in each) for each in stored if not each[0].block_rows)
        )
        self._least_blocks = [each[0].block_rows for each in stored if each[0].block_rows]
        self._local = threading.local()
        self.cache = BlockCache(cache_bytes)

    def least_bytes(self, rows: np.ndarray) -> np.ndarray:
        """Least sizes in bytes [n] of chunks with numbers of rows [n], as float64."""
        least = rows * self._least_row + self._head.size  # may exceed 64 bits
        for block_rows in self._least_blocks:
            least += np.ceil(rows / block_rows) * _END.size
        return least

    def check_head(self, buffer: Buffer, origin: int, nbytes: int) -> None:
        """Refuse a head whose length, or number of fields, is not the expected one."""
        fields, metadata = _HEADER.unpack_from(cast("bytes", buffer), origin)
        if fields != len(self._fields) or self._head.size + metadata != nbytes:
            raise StoreCorrupt(
                f"its head has {fields} fields and {metadata} bytes of metadata, expected "
                f"{len(self._fields)} and {nbytes - self._head.size}"
            )

    def check(self, buffer: Buffer, origin: int, nbytes: int, rows: int) -> None:
        """Refuse a chunk whose fields do not fit in its bytes."""
        # Checks every size and offset, and decodes no row. The chunk lies at `origin`, `nbytes`
        # long.
        core = native.core
        if core is not None and core.is_chunk(
            cast("bytes", buffer), origin, nbytes, rows, self._forms
        ):
            return
        if nbytes % 8:
            raise StoreCorrupt(f"it has {nbytes} bytes, expected a multiple of 8")
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

    def check_whole(self, buffer: Buffer, origin: int, nbytes: int, rows: int) -> None:
        """`check` a chunk of whose head nothing was checked before."""
        if nbytes < self._head.size:
            raise StoreCorrupt(f"it has {nbytes} bytes, expected {self._head.size} or more")
        _, metadata = _HEADER.unpack_from(cast("bytes", buffer), origin)
        self.check_head(buffer, origin, min(nbytes, self._head.size + metadata))
        self.check(buffer, origin, nbytes, rows)

    def check_codecs(self, buffer: Buffer, origin: int) -> None:
        """Refuse a chunk, accepted by `check`, whose fields have other codecs than in the Spec."""
        view = memoryview(cast("bytes", buffer))
        tags = view[origin + _HEADER.size : origin + self._head.size : _FIELD.size].tobytes()
        if tags == self._tags:
            return
        for field, tag, expected in zip(self._fields, tags, self._tags, strict=True):
            if tag != expected and (tag, expected) != (_TAGS["zstd"], _TAGS["patch"]):
                codec = next(name for name, value in _TAGS.items() if value == tag)
                raise SpecMismatch(
                    f"field {field.name!r} of an encoded chunk: expected the codec "
                    f"{field.codec!r}, got {codec!r}; encode it with the Spec of this storage"
                )

    def check_rows(self, buffer: Buffer, origin: int, rows: int) -> None:
        """Decode every row of a chunk, which `check` has accepted."""
        source = memoryview(cast("bytes", buffer))
        for coding, offset in self.fields(buffer, origin, rows):
            if not coding.block_rows:
                continue
            target = self._scratch(min(coding.block_rows, rows) * coding.row_bytes)
            for start in range(0, rows, coding.block_rows):
                count = min(coding.block_rows, rows - start)
                part = target[: count * coding.row_bytes]
                self.decode_rows(source, coding, offset, rows, start, count, part)

    def metadata(self, buffer: Buffer, origin: int) -> Mapping[str, object]:
        """The metadata of the chunk that begins at ``origin``."""
        return metadata_in(buffer, origin)

    def check_metadata(self, buffer: Buffer, origin: int) -> None:
        """Refuse a chunk, accepted by `check`, whose metadata are no JSON object."""
        text = metadata_text_in(buffer, origin)
        # Chunks of one episode, which have the same, often follow each other.
        if text != self._parsed:
            self.metadata(buffer, origin)
            self._parsed = bytes(text) if len(text) <= _MOST_REMEMBERED else b""

    def fields(self, buffer: Buffer, origin: int, rows: int) -> list[tuple[Coding, int]]:
        """The coding of each field and the offset of its rows, in the order of the Spec."""
        # Compressed rows of which no block became smaller are raw rows behind the blocks' ends.
        values = self._head.unpack_from(cast("bytes", buffer), origin)
        found: list[tuple[Coding, int]] = []
        for codings, tag, name, block_rows, offset, size in zip(
            *(self._codings, values[2::5], values[3::5], values[4::5]),
            *(values[5::5], values[6::5]),
            strict=True,
        ):
            coding = codings[tag, name, block_rows]
            if block_rows:
                ends = _END.size * -(-rows // block_rows)
                # No block is longer than its rows, so here all are as long.
                if size == ends + rows * coding.row_bytes:
                    coding, offset = coding._replace(block_rows=0), offset + ends
            found.append((coding, origin + offset))
        return found

    def copy_rows(
        self,
        buffer: Buffer,
        coding: Coding,
        offset: int,  # of the field in the memory
        rows: int,  # that were written into the chunk
        start: int,  # first row to copy, counted within the chunk
        out: np.ndarray,  # C-contiguous [n, *shape], in the field's dtype where it is compressed
    ) -> None:
        """Copy rows ``start .. start + len(out)`` of one field into ``out``."""
        dtype, row_bytes, block_rows, _ = coding
        if block_rows:
            source = memoryview(cast("bytes", buffer))
            self.decode_rows(source, coding, offset, rows, start, len(out), _as_bytes(out))
        else:
            out[...] = np.ndarray(out.shape, dtype, buffer, offset + start * row_bytes)

    def read(
        self, buffer: Buffer, origin: int, rows: int, field: int, start: int, out: np.ndarray
    ) -> None:
        """`copy_rows` of the chunk at ``origin``, of the field with this number in the Spec."""
        coding, offset = self.fields(buffer, origin, rows)[field]
        self.copy_rows(buffer, coding, offset, rows, start, out)

    def read_many(
        self,
        buffer: Buffer,
        origins: np.ndarray,  # [n] offsets of the chunks
        stored_rows: np.ndarray,  # [n] that were written into each
        rows: np.ndarray,  # [n] to copy of each, 1 or more
        field: int,  # number of the field in the Spec
        out: np.ndarray,  # C-contiguous [sum of rows, *shape] in the field's dtype
    ) -> None:
        """Copy the first rows of one field of many chunks, which lie in the same memory."""
        memory = np.frombuffer(cast("bytes", buffer), np.uint8)
        places = origins[:, None] + np.arange(
            _HEADER.size + field * _FIELD.size, _HEADER.size + (field + 1) * _FIELD.size
        )
        entries = memory[places].view(_ENTRY)[:, 0]
        kinds = entries["name"].astype(np.int64) << 8 | entries["tag"]
        stops, rest = np.cumsum(rows), np.ones(len(origins), np.bool_)
        for kind in np.unique(kinds[entries["block_rows"] == 0]).tolist():
            name = (kind >> 8).to_bytes(_DTYPE_CHARS, "little")
            dtype, row_bytes, *_ = self._codings[field][kind & 0xFF, name, 0]
            starts = origins + entries["offset"].astype(np.int64)
            of = np.flatnonzero(
                (kinds == kind) & (entries["block_rows"] == 0) & (starts % dtype.itemsize == 0)
            )
            rest[of] = False
            values = memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)
            items = row_bytes // dtype.itemsize
            found = values.take(_runs(starts[of] // dtype.itemsize, rows[of] * items))
            found = found.reshape(int(rows[of].sum()), *out.shape[1:])
            if len(of) == len(origins):
                out[...] = found
            else:
                out[_runs(stops[of] - rows[of], rows[of])] = found
        for k in np.flatnonzero(rest).tolist():
            begin, stop = int(stops[k] - rows[k]), int(stops[k])
            self.read(buffer, int(origins[k]), int(stored_rows[k]), field, 0, out[begin:stop])

    def decode_rows(
        self,
        source: memoryview,
        coding: Coding,
        offset: int,  # of the field in the memory
        rows: int,  # of the chunk
        start: int,  # first row to decode
        count: int,
        target: memoryview,  # receives their bytes
    ) -> None:
        """Decode the blocks that hold ``count`` rows of a compressed field."""
        _, row_bytes, block_rows, changes = coding
        if changes == "patches" and self._all_plain(
            source, coding, offset, rows, start, count, target
        ):
            return
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
            at, until = data + before, data + _END.unpack_from(source, where)[0]
            part = target[(low - start) * row_bytes : (high - start) * row_bytes]
            if until - at == (end - begin) * row_bytes:
                at += (low - begin) * row_bytes
                part[:] = source[at : at + len(part)]
            elif changes:
                self._decode_changes(source, at, until, coding, end - begin, low - begin, part)
            else:
                size = (end - begin) * row_bytes
                self._decode(source[at:until], size, (low - begin) * row_bytes, part)

    def _all_plain(
        self,
        source: memoryview,
        coding: Coding,
        offset: int,
        rows: int,
        start: int,
        count: int,
        target: memoryview,
    ) -> bool:
        """Decode rows of patches that are not compressed in one call; False if some are."""
        if native.core is None:
            return False
        where = np.array([offset, rows, start, count, 0])
        try:
            return not native.core.apply_patches(
                target, [source], where, coding.block_rows, coding.row_bytes, 0
            )
        except ValueError as error:
            raise StoreCorrupt(
                f"the patches of {rows} rows of {coding.row_bytes} bytes, {coding.block_rows} a "
                f"block, are damaged"
            ) from error

    def _decode_changes(
        self,
        source: memoryview,
        begin: int,  # first byte of the block
        stop: int,  # the byte after its last one
        coding: Coding,
        rows: int,  # of the block
        start: int,
        target: memoryview,
    ) -> None:
        """Fill ``target`` with rows of a block of deltas or patches, from ``start`` on."""
        packed, row_bytes = source[begin:stop].tobytes(), coding.row_bytes
        if coding.changes == "patches" and not packed.startswith(_ZSTD_MAGIC):
            changes: bytes | None = packed
        else:
            changes = self.cache.get(packed)
        size = rows * row_bytes
        if changes is None:
            changes = self._unpacked(packed, rows, row_bytes)
            if changes is None:
                self._decode(packed, size, start * row_bytes, target)
                return
            self.cache.put(packed, changes)
        try:
            if coding.changes == "deltas":
                patches.apply_deltas(changes, rows, row_bytes, start, target)
            else:
                out = np.frombuffer(target, np.uint8).reshape(-1, row_bytes)
                patches.apply_patches(changes, rows, row_bytes, start, out)
        except ValueError as error:
            raise _undecodable(packed, size, error) from error

    def _unpacked(self, packed: bytes, rows: int, row_bytes: int) -> bytes | None:
        """The deltas or patches in a zstd frame; None where it holds the rows themselves."""
        # No other frame is decompressed in one call: a frame to skip may ask for much.
        least, size = patches.least_deltas(rows, row_bytes), rows * row_bytes
        try:
            if not least <= zstandard.frame_content_size(packed) < size:
                return None
            return self._decompressor.decompress(packed)
        except zstandard.ZstdError as error:
            raise _undecodable(packed, size, error) from error

    def plain_patches(self, source: memoryview, coding: Coding, offset: int, rows: int) -> bytes:
        """The field of a chunk, whose blocks are then not compressed, as in RAM."""
        blocks: list[bytes] = []
        for part, count in _blocks(source, offset, rows, coding.block_rows):
            block, size = part.tobytes(), count * coding.row_bytes
            if len(block) != size and block.startswith(_ZSTD_MAGIC):
                found = self._unpacked(block, count, coding.row_bytes)
                if found is None:
                    whole = memoryview(bytearray(size))
                    self._decode(block, size, 0, whole)
                    found = bytes(whole)
                block = found
            blocks.append(block)
        lengths = np.cumsum([len(block) for block in blocks]).astype("<u4")
        return b"".join([lengths.tobytes(), *blocks])

    def _decode(self, packed: bytes | memoryview, size: int, skip: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes of a block of ``size`` bytes, from ``skip`` on."""
        want, got = skip + len(target), 0
        try:
            holds = zstandard.frame_content_size(packed)
            if holds == size <= _PART_HOLDS and len(target) < size:
                # zstd decodes so much at once, whatever is asked for.
                target[:] = memoryview(self._decompressor.decompress(packed))[skip:want]
                return
            if holds == size:
                # Stops soon after the rows; uses scratch memory if other rows precede them.
                into = self._scratch(want) if skip else target
                got = self._decompressor.stream_reader(packed).readinto(into)
        except zstandard.ZstdError as error:
            raise _undecodable(packed, size, error) from error
        if got != want:
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


class BlockCache:
    """Contents of compressed blocks, up to a number of bytes; the oldest are forgotten first."""

    # They are found by the compressed bytes themselves, or by the generation and position of a
    # chunk and the number of a field, so none can ever be out of date.

    def __init__(self, most: int) -> None:
        self._most = self._room = most
        self._contents: OrderedDict[_Key, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.get = self._contents.get

    @property
    def nbytes(self) -> int:
        """Bytes of all contents, and of the blocks by which they are found."""
        return self._most - self._room

    def put(self, packed: _Key, content: bytes) -> None:
        """Remember the content of a block."""
        with self._lock:
            if packed not in self._contents:  # by another thread
                self._room -= len(packed) + len(content)
                self._contents[packed] = content
            while self._room < 0:
                self._room += sum(map(len, self._contents.popitem(last=False)))


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers of consecutive runs: from each start on, as many as its length."""
    stops = np.cumsum(lengths)
    total = int(stops[-1]) if len(stops) else 0
    found: np.ndarray = np.arange(total) + np.repeat(starts - (stops - lengths), lengths)
    return found


def _blocks(
    buffer: Buffer, offset: int, rows: int, block_rows: int
) -> Iterator[tuple[memoryview, int]]:
    """Each block of a compressed field at an offset, and the number of its rows."""
    source, count = memoryview(cast("bytes", buffer)), -(-rows // block_rows)
    data = offset + _END.size * count
    ends = [data, *(np.frombuffer(source, "<u4", count, offset) + np.int64(data)).tolist()]
    for number, (begin, end) in enumerate(pairwise(ends)):
        yield source[begin:end], min(block_rows, rows - number * block_rows)


def _undecodable(packed: bytes | memoryview, size: int, error: Exception) -> StoreCorrupt:
    return StoreCorrupt(
        f"a compressed block of {len(packed)} bytes cannot be decoded, expected {size} bytes of "
        f"rows ({error})"
    )


# Made once: `json.dumps` makes an encoder at each call, which takes longer than the encoding.
_to_json = json.JSONEncoder(separators=(",", ":")).encode


def head_bytes(buffer: Buffer, origin: int = 0) -> int:
    """Length of the head of the chunk at an offset of the memory: fields and metadata."""
    fields, metadata = _HEADER.unpack_from(cast("bytes", buffer), origin)
    return _HEADER.size + int(fields) * _FIELD.size + int(metadata)


def metadata_in(buffer: Buffer, origin: int = 0) -> Mapping[str, object]:
    """The metadata of the chunk at an offset of the memory, whatever its fields are."""
    text = bytes(metadata_text_in(buffer, origin))
    try:
        return untrusted_json.parse(text, is_finite=False) if text else {}
    except ValueError as error:
        raise StoreCorrupt(f"its metadata: {error}") from error


def metadata_text_in(buffer: Buffer, origin: int = 0) -> Part:
    """The metadata of the chunk at an offset of the memory, as JSON."""
    _, nbytes = _HEADER.unpack_from(cast("bytes", buffer), origin)
    stop = origin + head_bytes(buffer, origin)
    return memoryview(cast("bytes", buffer))[stop - nbytes : stop]


def with_metadata(buffer: Buffer, metadata: Mapping[str, object]) -> list[Part]:
    """The same chunk with other metadata, in two parts; its rows are not copied."""
    # `check_whole` has accepted the chunk.
    source = memoryview(cast("bytes", buffer))
    fields, nbytes = _HEADER.unpack_from(source)
    text = _metadata_text(metadata)
    fixed = _HEADER.size + fields * _FIELD.size
    begin = fixed + nbytes + len(_padding(fixed + nbytes))
    padding = _padding(fixed + len(text))
    shift = fixed + len(text) + len(padding) - begin
    head = bytearray(source[:fixed])
    _HEADER.pack_into(head, 0, fields, len(text))
    for entry in range(_HEADER.size, fixed, _FIELD.size):
        (offset,) = _OFFSET.unpack_from(head, entry + _OFFSET_AT)
        if offset < begin:
            raise StoreCorrupt(f"a field of it lies at {offset}, expected {begin} or more")
        _OFFSET.pack_into(head, entry + _OFFSET_AT, offset + shift)
    return [bytes(head) + text + padding, source[begin:]]


def _metadata_text(metadata: Mapping[str, object]) -> bytes:
    if not metadata:
        return b""
    plain = dict(metadata)
    text = _to_json(plain).encode()
    untrusted_json.check_extent(text, plain)
    return text


def _head_format(spec: Spec) -> str:
    """The format of a chunk's head without its metadata, for `struct`."""
    return _HEADER.format + _FIELD.format.removeprefix("<") * len(spec.fields)


def _rows_of(chunk: Chunk, field: Field, dtype: np.dtype[np.generic], count: int) -> np.ndarray:
    """The rows of one field, contiguous and in the given dtype, which is little-endian."""
    # Their dtype and shape are checked: a wrong cast would be permanent.
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


def _block_rows(field: Field, codec: str) -> int:
    """Rows of a compressed block; 0 for a codec without blocks."""
    if codec == "patch":
        return _PATCHED_ROWS
    if codec not in _BLOCK_ROWS:
        return 0
    return max(_BLOCK_ROWS[codec], _BLOCK_BYTES // max(1, field.row_bytes))


def _stored_dtypes(field: Field, codec: str) -> list[np.dtype[np.generic]]:
    """The dtypes that rows of a field may be stored in."""
    own = field.numpy_dtype.newbyteorder("<")
    if codec != "narrow":
        return [own]
    smaller = (each for each in _NARROWER.get(own.kind, ()) if each.itemsize < own.itemsize)
    return [*smaller, own]


def _codings(field: Field) -> Iterator[tuple[tuple[int, bytes, int], Coding]]:
    """All codings of a field by `ChunkEncoder`, by codec, dtype and rows a block."""
    # Joined stores may use other codecs than the Spec of the first store, so all codecs are here.
    items = math.prod(field.shape)
    for codec, tag in _TAGS.items():
        if codec in ("delta", "patch") and field.row_bytes < IMAGE_BYTES:
            continue
        if codec == "patch" and field.row_bytes > PATCHED_BYTES:
            continue
        changes = _CHANGES.get(codec, "")
        block_rows = _block_rows(field, codec)
        for dtype in _stored_dtypes(field, codec):
            name = dtype.str.encode().ljust(_DTYPE_CHARS, b"\0")
            coding = Coding(dtype, items * dtype.itemsize, block_rows, changes)
            yield (tag, name, block_rows), coding


def _forms(codings: Mapping[tuple[int, bytes, int], Coding]) -> bytes:
    """The codings of a field, as the compiled core takes them."""
    return _COUNT.pack(len(codings)) + b"".join(
        _FORM.pack(tag, name, block_rows, coding.changes != "", coding.row_bytes)
        for (tag, name, block_rows), coding in codings.items()
    )


def _check_blocks(
    field: Field,
    buffer: Buffer,
    offset: int,  # of the ends of the blocks in it
    size: int,  # length of ends and blocks
    rows: int,
    coding: Coding,
) -> None:
    """Refuse compressed rows whose blocks do not add up to their size, or are too small."""
    blocks = -(-rows // coding.block_rows)
    room = size - _END.size * blocks
    if room < 0:
        raise StoreCorrupt(
            f"field {field.name!r} takes {size} bytes, expected {_END.size * blocks} or more for "
            f"the ends of {blocks} blocks"
        )
    ends = memoryview(cast("bytes", buffer))[offset : offset + _END.size * blocks].cast("I")
    full = coding.block_rows * coding.row_bytes
    last = (rows - (blocks - 1) * coding.block_rows) * coding.row_bytes
    least, before, is_right = _least_block(coding, full), 0, ends[-1] == room
    for end in ends[:-1]:
        is_right = is_right and least <= end - before <= full
        before = end
    # The last block may have fewer rows.
    if not is_right or not _least_block(coding, last) <= room - before <= last:
        raise StoreCorrupt(
            f"the {blocks} compressed blocks of field {field.name!r} take {room} bytes in parts "
            f"that cannot hold {rows} rows of {coding.row_bytes} bytes"
        )


def _least_block(coding: Coding, nbytes: int) -> int:
    """Least number of bytes of a compressed block of ``nbytes`` bytes of rows."""
    content = nbytes
    if coding.changes:
        rows = nbytes // coding.row_bytes
        content = min(nbytes, patches.least_deltas(rows, coding.row_bytes))
    return min(nbytes, _FRAME_BYTES + _PART_BYTES * -(-content // _PART_HOLDS))


def _as_bytes(rows: np.ndarray) -> memoryview:
    return memoryview(cast("bytes", rows.reshape(-1).view(np.uint8)))


def _padding(nbytes: int) -> bytes:
    return _PADDINGS[-nbytes % 8]


assert sys.byteorder == "little", "Stepwell runs on little-endian machines"
