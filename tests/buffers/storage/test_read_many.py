"""One field of many chunks is read at once as chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Chunk, DiskStorage, End, Field, MemoryStorage, Spec, Storage
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.field_locator import read_chunks
from support.old_chunks import writing_deltas

FIELDS = (
    Field("reward", "float64", (), "narrow"),
    Field("action", "int64", (3,), "narrow"),
    Field("extra/raw", "float32", (2, 2), "raw"),
    Field("extra/packed", "uint8", (100,), "zstd"),
    Field("extra/changes", "uint8", (16, 16), "delta"),
    Field("extra/none", "int16", (0,), "raw"),
)
SPEC = Spec(FIELDS, {}, "action")
SIZES = [0, 1, -1, 200, 40_000, 2**40, 0.5]


def chunk_of(count: int, size: float, seed: int) -> Chunk:
    rng = np.random.default_rng(seed)
    fields = {
        "reward": np.full(count, float(size)),
        "action": np.full((count, 3), int(size)),
        "extra/raw": rng.random((count, 2, 2), np.float32),
        "extra/packed": np.full((count, 100), seed % 256, np.uint8),
        "extra/changes": rng.integers(0, 1 + seed % 3, (count, 16, 16), np.uint8),
        "extra/none": np.zeros((count, 0), np.int16),
    }
    return Chunk(seed, 0, 0, End.NONE, fields, {"name": "x" * (seed % 7)})


def check(chunks: list[tuple[int, float, int, int]]) -> None:
    """Compare with `read` of each chunk.

    Args:
        chunks: Rows, size of the numbers, bytes before it, and rows that are not read, of each.
    """
    decoder, memory, origins = ChunkDecoder(SPEC), bytearray(), list[int]()
    for seed, (count, size, before, _) in enumerate(chunks):
        memory += b"\xff" * before
        origins.append(len(memory))
        with writing_deltas():
            memory += b"".join(ChunkEncoder(SPEC).encode(chunk_of(count, size, seed)))
    stored = np.array([count for count, *_ in chunks])
    rows = np.array([max(1, count - less) for count, *_, less in chunks])
    for number, field in enumerate(FIELDS):
        out = np.empty((rows.sum(), *field.shape), field.numpy_dtype)
        decoder.read_many(memory, np.array(origins), stored, rows, number, out)
        stop = 0
        for k, count in enumerate(rows.tolist()):
            true = np.empty((count, *field.shape), field.numpy_dtype)
            decoder.read(memory, origins[k], int(stored[k]), number, 0, true)
            assert np.array_equal(out[stop : stop + count], true)
            stop += count


CHUNKS = st.tuples(
    st.integers(1, 40), st.sampled_from(SIZES), st.sampled_from([0, 8, 3]), st.integers(0, 3)
)


@given(st.lists(CHUNKS, min_size=1, max_size=12))
def test_many_chunks_are_read_as_one_by_one(chunks: list[tuple[int, float, int, int]]) -> None:
    check(chunks)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_chunks_in_several_memories_are_read_in_order(is_on_disk: bool) -> None:
    storage: Storage = MemoryStorage(SPEC)
    if is_on_disk:
        storage = DiskStorage.create("a", SPEC, segment_bytes=4096)
    for number in range(30):
        storage.add([chunk_of(20, SIZES[number % len(SIZES)], number)])
    assert len(set(storage.index.records["segment"].tolist())) > 1 or not is_on_disk
    order = np.array([3, 1, 29, 28, 0, 17])
    for field in FIELDS:
        found = read_chunks(storage, ChunkDecoder(SPEC), order, field.name)
        true = [chunk_of(20, SIZES[k % len(SIZES)], k).fields[field.name] for k in order.tolist()]
        assert np.array_equal(found, np.concatenate(true))
    empty = read_chunks(storage, ChunkDecoder(SPEC), order[:0], "action")
    assert empty.shape == (0, 3)
    storage.close()
