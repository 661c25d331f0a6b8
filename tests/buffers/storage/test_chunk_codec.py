"""An encoded chunk decodes to the same rows, bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.buffers import Chunk, Codec, End, Field, Spec, SpecMismatch, StoreCorrupt
from stepwell.buffers.base import native
from stepwell.buffers.storage.chunk_codec import BlockCache, ChunkDecoder, ChunkEncoder
from stepwell.buffers.testing import SPEC, chunk_of
from support.old_chunks import writing_deltas

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
CODECS: list[Codec] = ["raw", "narrow", "zstd", "delta", "patch"]
OF_CHANGES: tuple[Codec, ...] = ("delta", "patch")


def spec_of(*fields: Field) -> Spec:
    return Spec(fields, {}, {})


def encoded(
    spec: Spec, fields: Mapping[str, np.ndarray], packs: bool = True, **metadata: object
) -> bytes:
    chunk = Chunk(0, 0, 0, End.NONE, fields, metadata)
    with writing_deltas():
        return b"".join(ChunkEncoder(spec, packs_patches=packs).encode(chunk))


def decoded(
    spec: Spec, data: bytes, rows: int, place: int, start: int = 0, stop: int | None = None
) -> np.ndarray:
    field = spec.fields[place]
    out = np.empty(((rows if stop is None else stop) - start, *field.shape), field.numpy_dtype)
    shifted = b"\xaa" * 24 + data  # a chunk may begin anywhere in its memory
    ChunkDecoder(spec).read(shifted, 24, rows, place, start, out)
    return out


@st.composite
def columns(draw: st.DrawFn) -> tuple[Field, np.ndarray]:
    dtype, codec = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(CODECS))
    shapes: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (0,), (2, 0)]
    if codec in OF_CHANGES:
        shapes = [(64,), (9, 8), (71,)]
    shape, rows = draw(st.sampled_from(shapes)), draw(st.integers(1, 70))
    if codec in OF_CHANGES and draw(st.booleans()):
        return Field("info/x", dtype, shape, codec), draw(moving_rows(dtype, shape, rows))
    values = small_values(dtype) if draw(st.booleans()) else None
    array = draw(hnp.arrays(dtype, (rows, *shape), elements=values, fill=st.nothing()))
    return Field("info/x", dtype, shape, codec), array


@st.composite
def moving_rows(draw: st.DrawFn, dtype: str, shape: tuple[int, ...], rows: int) -> np.ndarray:
    """Rows that are alike but for a few items."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = np.zeros((rows, *shape), dtype)
    flat, changes = array.reshape(rows, -1), draw(st.sampled_from([0, 1, 3, 20]))
    for row in range(1, rows):
        flat[row] = flat[row - 1]
        flat[row, rng.integers(0, flat.shape[1], changes)] = rng.integers(0, 2, changes)
    return array


def small_values(dtype: str) -> st.SearchStrategy[object] | None:
    """Values that a narrower dtype represents, and some that only seem to be such."""
    if np.dtype(dtype).kind == "f":
        return st.sampled_from([0.0, -0.0, 1.0, -1.0, 100.0, 200.0, 0.5, np.nan, np.inf, -np.inf])
    if np.dtype(dtype).kind == "u":
        return st.integers(0, 127)
    return st.integers(-100, 100) if np.dtype(dtype).kind == "i" else None


@pytest.mark.proof
@given(columns(), st.data())
def test_every_codec_restores_every_bit_of_every_dtype(
    column: tuple[Field, np.ndarray], data: st.DataObject
) -> None:
    field, array = column
    spec = spec_of(field)
    start = data.draw(st.integers(0, len(array) - 1))
    stop = data.draw(st.integers(start + 1, len(array)))
    chunk = encoded(spec, {"info/x": array}, packs=data.draw(st.booleans()))
    out = decoded(spec, chunk, len(array), 0, start, stop)
    assert out.tobytes() == array[start:stop].tobytes()


@given(columns())
def test_big_endian_and_strided_rows_are_stored_by_value(column: tuple[Field, np.ndarray]) -> None:
    field, array = column
    spec, reference = spec_of(field), encoded(spec_of(field), {"info/x": array})
    big = array.astype(array.dtype.newbyteorder(">"))
    strided = np.repeat(array, 2, axis=0)[::2]
    fortran = np.asfortranarray(array)
    for same in (big, strided, fortran):
        assert encoded(spec, {"info/x": same}) == reference


NAN_BITS = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bits", [*NAN_BITS, 1 << 63, 1])
def test_payloads_of_nan_and_signs_of_zero_survive(codec: Codec, bits: int) -> None:
    array = np.array([0, bits, 1 << 62] * 8, np.uint64).view(np.float64).reshape(3, 8)
    spec = spec_of(Field("info/x", "float64", (8,), codec))
    out = decoded(spec, encoded(spec, {"info/x": array}), 3, 0)
    assert out.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "values", "kept_as"),
    [
        ("int64", [0, 127], "|i1"),
        ("int64", [0, 255], "|u1"),
        ("int64", [-1, 255], "<i2"),
        ("int64", [-3_000_000_000], "<i8"),
        ("uint64", [1 << 63], "<u8"),
        ("float64", [-3.0, 1.0], "|i1"),
        ("float64", [300.0], "<i2"),
        ("float64", [0.25], "<f4"),
        ("float64", [0.1], "<f8"),
        ("float64", [-0.0], "<f4"),
        ("float64", [float("nan")], "<f4"),
        ("bool", [True], "|b1"),
        ("complex128", [1j], "<c16"),
    ],
)
def test_narrow_keeps_the_smallest_exact_dtype(
    dtype: str, values: list[object], kept_as: str
) -> None:
    spec = spec_of(Field("info/x", dtype, (), "narrow"))
    data = encoded(spec, {"info/x": np.array(values, dtype)})
    tag, name = struct.unpack_from("<B4s", data, 8)
    assert (tag, name.rstrip(b"\0").decode()) == (1, kept_as)


def test_any_range_of_rows_is_read_from_its_blocks() -> None:
    """All windows of a chunk of 2.5 blocks, incompressible rows in the middle block."""
    spec = spec_of(Field("info/x", "uint8", (64, 64), "zstd"))
    array = np.repeat(np.arange(40, dtype=np.uint8), 64 * 64).reshape(40, 64, 64)
    array[16:32] = np.random.default_rng(0).integers(0, 256, (16, 64, 64))
    data = encoded(spec, {"info/x": array})
    for start in range(40):
        for stop in range(start + 1, 41):
            assert (decoded(spec, data, 40, 0, start, stop) == array[start:stop]).all()


def moving_frames() -> np.ndarray:
    """Frames of blocks of 32: deltas, noise, other frames every time, deltas; and 4 more frames."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 64, 64), np.uint8), 132, axis=0)
    frames[:, :8] = np.arange(64)
    frames[np.arange(132), 40, np.arange(132) % 64] = 9
    frames[:, 3, 60] = frames[:, 60, 3] = np.arange(132)
    frames[32:64] = rng.integers(0, 256, (32, 64, 64))
    frames[64:96] = np.arange(32)[:, None, None]
    return frames


def test_of_patches_a_chunk_takes_the_smaller_form() -> None:
    """Patches, or the rows compressed as zstd, where too many words change."""
    spec = spec_of(Field("info/x", "uint8", (64, 64), "patch"))
    calm, noise = moving_frames()[:30], moving_frames()[32:64]
    scrolled = np.arange(40 * 4096, dtype=np.uint32).astype(np.uint8).reshape(40, 64, 64)
    scrolled = np.stack([np.roll(scrolled[0], row, 1) for row in range(40)])
    cases = [(calm, 4), (noise, 2), (scrolled, 2), (calm[:1], 2), (calm[:2], 4)]
    # A block has 256 rows; what a last one of few rows takes matters in the whole chunk alone.
    cases += [(np.resize(calm, (rows, 64, 64)), 4) for rows in (256, 257, 258, 513)]
    cases.append((np.concatenate([np.resize(calm, (256, 64, 64)), noise]), 2))
    for frames, tag in cases:
        plain, packed = (encoded(spec, {"info/x": frames}, packs=packs) for packs in (False, True))
        assert plain[8] == packed[8] == tag
        assert len(packed) <= len(plain) <= frames.nbytes + 100
        for data in (plain, packed):
            assert decoded(spec, data, len(frames), 0).tobytes() == frames.tobytes()
            assert ChunkEncoder(spec, packs_patches=data is packed).suits(data, len(frames))
            ChunkDecoder(spec).check_codecs(data, 0)
    plain, packed = (encoded(spec, {"info/x": calm}, packs=packs) for packs in (False, True))
    assert not ChunkEncoder(spec).suits(plain, len(calm))
    assert not ChunkEncoder(spec, packs_patches=False).suits(packed, len(calm))


def test_rows_without_patches_are_plain_in_ram_unless_zstd_halves_them() -> None:
    spec = spec_of(Field("info/x", "uint8", (64, 64), "patch"))
    rng = np.random.default_rng(0)
    for values, in_ram in (64, 1.0), (8, 0.4):
        frames = rng.integers(0, values, (40, 64, 64), np.uint8)
        plain, packed = (encoded(spec, {"info/x": frames}, packs=packs) for packs in (False, True))
        assert len(packed) < 0.8 * frames.nbytes
        assert (len(plain) >= frames.nbytes) == (in_ram == 1.0)
        assert (len(plain) == len(packed)) == (in_ram < 1)
        for data in (plain, packed):
            assert decoded(spec, data, 40, 0).tobytes() == frames.tobytes()


def test_patches_with_another_word_or_length_are_refused() -> None:
    """By the compiled core and by numpy; nothing outside of a row is written."""
    spec = spec_of(Field("info/x", "uint8", (64, 64), "patch"))
    frames = moving_frames()[:20]
    good = encoded(spec, {"info/x": frames}, packs=False)
    reader, rng = ChunkDecoder(spec), np.random.default_rng(0)
    (offset,) = struct.unpack_from("<Q", good, 8 + 16)
    seen = set()
    for _ in range(300):
        data = bytearray(good)
        place = offset + 4 + int(rng.integers(4 * 19 + 300))
        data[place] ^= int(rng.integers(1, 256))
        guarded = np.full((22, 64, 64), 7, np.uint8)
        found = []
        for core in (native.core, None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "core", core)
                try:
                    reader.read(data, 0, 20, 0, 0, guarded[1:21])
                    found.append(guarded[1:21].tobytes())
                except StoreCorrupt:
                    found.append(b"")
            assert (guarded[[0, 21]] == 7).all()
        assert found[0] == found[1]
        seen.add(bool(found[0]))
    assert seen == {False, True}


def test_deltas_are_no_longer_written() -> None:
    spec = spec_of(
        Field("info/x", "uint8", (64, 64), "delta"), Field("info/y", "uint8", (1 << 20,), "delta")
    )
    chunk = Chunk(
        *(0, 0, 0, End.NONE),
        {"info/x": moving_frames()[:30], "info/y": np.zeros((30, 1 << 20), np.uint8)},
        {},
    )
    data = b"".join(ChunkEncoder(spec).encode(chunk))
    assert (data[8], data[8 + 32]) == (4, 2)  # patch; zstd, where a row is too long for it
    for place, rows in enumerate(chunk.fields.values()):
        assert decoded(spec, data, 30, place).tobytes() == rows.tobytes()


def test_a_cache_forgets_the_oldest_blocks() -> None:
    cache = BlockCache(100)
    for number in range(50):
        cache.put(bytes([number]), bytes(20 + number))
        assert cache.get(bytes([number])) == bytes(20 + number)
        assert cache.nbytes <= 100
    assert cache.get(b"\x30") is None
    cache.put(b"large", bytes(96))
    assert cache.get(b"large") is None
    assert cache.nbytes == 0


def test_a_block_may_be_cached_by_two_threads() -> None:
    cache = BlockCache(100)
    cache.put(b"a", b"bc")
    cache.put(b"a", b"bc")
    assert cache.nbytes == 3


def test_incompressible_rows_take_their_plain_size() -> None:
    spec = spec_of(Field("info/x", "uint8", (64, 64), "zstd"))
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64), np.uint8)
    assert noise.nbytes < len(encoded(spec, {"info/x": noise})) < noise.nbytes + 100
    assert len(encoded(spec, {"info/x": np.zeros_like(noise)})) < 300


def some_noise(*noisy: int) -> np.ndarray:
    """Frames of three blocks, the last of 8 rows, that do not compress in the given blocks."""
    frames = np.zeros((40, 64, 64), np.uint8)
    for block in noisy:
        part = frames[16 * block : 16 * block + 16]
        part[:] = np.random.default_rng(block).integers(0, 256, part.shape)
    return frames


@pytest.mark.parametrize("noisy", [(), (0,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_only_rows_that_no_block_compresses_are_located_as_raw(noisy: tuple[int, ...]) -> None:
    spec = spec_of(Field("info/x", "uint8", (64, 64), "zstd"))
    frames = some_noise(*noisy)
    data, reader = encoded(spec, {"info/x": frames}), ChunkDecoder(spec)
    reader.check(data, 0, len(data), len(frames))
    ((coding, offset),) = reader.fields(data, 0, len(frames))
    assert (coding.block_rows == 0) == (noisy == (0, 1, 2))
    if not coding.block_rows:
        assert data[offset : offset + frames.nbytes] == frames.tobytes()
    assert decoded(spec, data, len(frames), 0).tobytes() == frames.tobytes()


@pytest.mark.parametrize("change", [-1, 1, 64 * 64, -64 * 64])
@pytest.mark.parametrize("block", range(2))
def test_raw_rows_with_other_ends_of_their_blocks_are_refused(block: int, change: int) -> None:
    """No block is longer than its rows, so rows that are located as raw are in their places."""
    spec = spec_of(Field("info/x", "uint8", (64, 64), "zstd"))
    data = bytearray(encoded(spec, {"info/x": some_noise(0, 1, 2)}))
    place = struct.unpack_from("<Q", data, 8 + 16)[0] + 4 * block
    (end,) = struct.unpack_from("<I", data, place)
    assert end == (block + 1) * 16 * 64 * 64
    struct.pack_into("<I", data, place, end + change)
    with pytest.raises(StoreCorrupt, match=r"'info/x'.*\b163840\b.*\b40\b.*\b4096\b"):
        ChunkDecoder(spec).check(data, 0, len(data), 40)


def test_a_chunk_too_large_for_its_block_offsets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepwell.buffers.storage.chunk_codec._MAX_BLOCKS_BYTES", 4096 * 40 - 1)
    spec = spec_of(Field("info/x", "uint8", (64, 64), "zstd"))
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64), np.uint8)
    encoded(spec, {"info/x": noise[:39]})
    with pytest.raises(ValueError, match=r"\b163840\b.*\b163839\b"):
        encoded(spec, {"info/x": noise})


def test_a_chunk_holds_several_fields_and_metadata() -> None:
    chunk = chunk_of(3, 0, 50)
    data = b"".join(ChunkEncoder(SPEC).encode(chunk))
    assert len(data) % 8 == 0
    assert ChunkDecoder(SPEC).metadata(data, 0) == {"seed": 3}
    for place, field in enumerate(SPEC.fields):
        out = decoded(SPEC, data, 50, place)
        assert out.tobytes() == chunk.fields[field.name].tobytes()


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_metadata_is_restored(metadata: dict[str, object]) -> None:
    spec = spec_of(Field("info/x", "uint8", (), "raw"))
    chunk = Chunk(0, 0, 0, End.NONE, {"info/x": np.zeros(3, np.uint8)}, metadata)
    data = b"".join(ChunkEncoder(spec).encode(chunk))
    assert ChunkDecoder(spec).metadata(data, 0) == metadata
    assert decoded(spec, data, 3, 0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_metadata_that_could_not_be_read_are_not_stored(kind: type[Any]) -> None:
    deep: list[object] = []
    for _ in range(150):
        deep = [deep]
    chunk = Chunk(0, 0, 0, End.NONE, {"reward": np.zeros(3)}, kind({"key": deep}))
    with pytest.raises(ValueError, match="100 levels"):
        ChunkEncoder(spec_of(Field("reward", "float64", (), "raw"))).encode(chunk)


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (np.zeros((3, 2), np.int16), r"int16 \(3, 2\)"),
        (np.zeros((3, 3), np.int32), r"int32 \(3, 3\)"),
        (None, "nothing"),
    ],
)
def test_rows_that_differ_from_the_spec_are_refused(array: np.ndarray | None, got: str) -> None:
    first, other = Field("info/a", "uint8", (), "raw"), Field("info/b", "int32", (2,), "narrow")
    fields = {"info/a": np.zeros(3, np.uint8), "info/b": array}
    message = rf"'info/b'.* int32 \(3, 2\), .*{got}$"
    with pytest.raises(SpecMismatch, match=message):
        encoded(spec_of(first, other), cast("dict[str, np.ndarray]", fields))
