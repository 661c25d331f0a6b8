"""A field of many chunks is read at once as one by one; what is known of places is bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    End,
    Field,
    MemoryStorage,
    NotEnoughData,
    Spec,
    Storage,
    testing,
)
from stepwell.buffers.storage import field_locator
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.field_locator import RowCopier, read_chunks
from support.disk_stores import create
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


def test_few_segments_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.13 each mapped file holds a descriptor."""
    monkeypatch.setattr(field_locator, "_MAX_SEGMENTS", 3)
    with create(tmp_path / "a", segment_bytes=4_000) as made:
        for episode in range(40):
            made.add([testing.chunk_of(episode, 0, 20, End.TERMINATED)])
        assert len(set(made.index.records["segment"].tolist())) > 8
        copier = RowCopier(made)
        copier.follow()
        rewards = np.empty(20)
        for position in (*range(40), *range(39, -1, -3)):
            copier.copy(position, made.index.record(position), 0, 20, [(2, rewards)])
            expected = testing.chunk_of(position, 0, 20, End.TERMINATED).fields["reward"]
            assert rewards.tolist() == expected.tolist()
            assert len(copier._buffers) <= 3


@pytest.mark.proof
def test_evicted_chunks_are_dropped_and_refused(tmp_path: Path) -> None:
    with create(tmp_path / "a", capacity=160, segment_bytes=4_000) as made:
        copier, rewards = RowCopier(made), np.empty(9)
        for episode in range(60):
            made.add([testing.chunk_of(episode, 0, 9, End.TERMINATED)])
            copier.follow()
            index = made.index
            for position in range(index.base, index.base + len(index)):
                copier.copy(position, index.record(position), 0, 9, [(2, rewards)])
                assert (
                    rewards.tolist() == testing.chunk_of(position, 0, 9).fields["reward"].tolist()
                )
            assert len(copier.is_known) >= len(index)
        assert len(copier.is_known) < 120
        base = made.index.base
        with pytest.raises(NotEnoughData, match=rf"chunk {base - 1} .*\b{base}\b"):
            copier.copy(base - 1, made.index.record(base), 0, 9, [(2, rewards)])
