"""Patches and deltas: the documented bytes, the same by both paths; how patches are kept."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.base import native
from stepwell.buffers.storage.patches import apply_deltas, apply_patches, patches_of
from support.examples import by_tier
from support.old_chunks import slow_deltas

CORES = [None] if native.core is None else [None, native.core]


@st.composite
def blocks(draw: st.DrawFn) -> np.ndarray:
    """Rows [n, bytes of a row], of which some bytes change."""
    count = draw(st.sampled_from([1, 2, 16, 17, 40, 70]))
    row_bytes = draw(st.integers(64, 150) | st.integers(600, 1200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0, 0.005, 0.05, 0.5]))
    flickers = draw(st.booleans())
    rows = np.repeat(rng.integers(0, 256, (1, row_bytes), np.uint8), count, 0)
    for row in range(1, count):
        rows[row] = rows[0 if flickers else row - 1]
        of = rng.random(row_bytes) < share
        rows[row, of] = rng.integers(0, 256, of.sum())
    return rows


def by_core(core: native.Core | None, rows: np.ndarray, most: int) -> bytes | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", core)
        found = patches_of(rows, most)
    return None if found is None else found.tobytes()


def restored(block: bytes, count: int, row_bytes: int) -> np.ndarray:
    """The rows as docs/disk-format.md describes their patches, word by word."""
    ends = struct.unpack_from(f"<{count - 1}I", block)
    total = ends[-1] if ends else 0
    steps = struct.unpack_from(f"<{total}H", block, 4 * (count - 1))
    at = 4 * (count - 1) + 2 * total
    words = [block[at + 8 * k : at + 8 * k + 8] for k in range(total)]
    rows = [bytearray(block[at + 8 * total :])]
    for number in range(1, count):
        row = bytearray(rows[number - 1 if number % 16 else 0])
        place = 0
        for k in range(ends[number - 2] if number > 1 else 0, ends[number - 1]):
            place += steps[k]
            room = min(8, row_bytes - 8 * place)
            row[8 * place : 8 * place + room] = words[k][:room]
        rows.append(row)
    return np.array([list(row) for row in rows], np.uint8)


@given(blocks())
def test_both_paths_find_the_same_patches(rows: np.ndarray) -> None:
    count, row_bytes = rows.shape
    most = 4 * count + row_bytes + 10 * count * (row_bytes // 8 + 1)
    blocks_ = {by_core(core, rows, most) for core in CORES}
    assert len(blocks_) == 1
    block = blocks_.pop()
    assert block is not None
    assert (restored(block, count, row_bytes) == rows).all()
    for core in CORES:
        assert by_core(core, rows, len(block)) == block
        assert by_core(core, rows, len(block) - 1) is None


@given(blocks(), st.data())
@settings(max_examples=by_tier(100, 100, 400))
def test_both_paths_restore_any_rows(rows: np.ndarray, data: st.DataObject) -> None:
    count, row_bytes = rows.shape
    block = by_core(None, rows, 1 << 20)
    assert block is not None
    start = data.draw(st.integers(0, count - 1))
    wanted = data.draw(st.integers(1, count - start))
    for begin, stop in ((start, start + wanted), (0, count)):
        out = np.empty((stop - begin, row_bytes), np.uint8)
        apply_patches(block, count, row_bytes, begin, out)
        assert (out == rows[begin:stop]).all()
    if native.core is None:
        return
    field = memoryview(struct.pack("<I", len(block)) + block)
    # Two items at once, the second one time first: row b * T + t goes to row t * B + b.
    flat = np.zeros(2 * wanted * row_bytes, np.uint8)
    where = np.array([(0, 0), (count, count), (start, start), (wanted, wanted), (0, wanted)])
    assert native.core.apply_patches(flat, [field] * 2, where, 256, row_bytes, wanted) == []
    both = flat.reshape(wanted, 2, row_bytes)
    assert (both == rows[start : start + wanted, None]).all()


@pytest.mark.skipif(native.core is None, reason="the compiled core alone has two ways")
@pytest.mark.parametrize("is_time_first", [False, True])
@pytest.mark.parametrize("row_bytes", [7_056, 3_001, 64, 17])
def test_rows_of_large_batches_are_the_same(row_bytes: int, is_time_first: bool) -> None:
    """They go past the cache, whatever the places where they begin."""
    assert native.core is not None
    rng = np.random.default_rng(row_bytes)
    rows = np.repeat(rng.integers(0, 256, (1, row_bytes), np.uint8), 256, axis=0)
    rows[np.arange(256), rng.integers(0, row_bytes, 256)] = 7
    rows[np.arange(16) * 16, -1] = 9
    block = by_core(None, rows, 1 << 20)
    assert block is not None
    field = memoryview(struct.pack("<I", len(block)) + block)
    wanted, count = 64, (7 << 20) // (64 * row_bytes)
    begins = rng.integers(0, 256 - wanted, count)
    whole = np.zeros(count * wanted * row_bytes + 9, np.uint8)
    for shift in (0, 1, 8):
        out = whole[shift : shift + count * wanted * row_bytes]
        out[:] = 0
        places = np.zeros((5, count), np.int64)
        places[1], places[2], places[3] = 256, begins, wanted
        places[4] = np.arange(count) * wanted
        columns = wanted if is_time_first else 0
        fields = [field] * count
        assert native.core.apply_patches(out, fields, places, 256, row_bytes, columns) == []
        shape = (wanted, count) if is_time_first else (count, wanted)
        found = out.reshape(*shape, row_bytes)
        found = found.swapaxes(0, 1) if is_time_first else found
        assert all((found[k] == rows[b : b + wanted]).all() for k, b in enumerate(begins))
    assert (whole[-1:] == 0).all()


def test_the_documented_bytes() -> None:
    rows = np.zeros((3, 70), np.uint8)
    rows[1:, 9] = 7
    rows[2, 69] = 5
    expected = (
        struct.pack("<2I2H", 1, 2, 1, 8)
        + (b"\0\x07" + bytes(6))
        + (b"\0\0\0\0\0\x05" + bytes(2))
        + bytes(70)
    )
    assert {by_core(core, rows, 200) for core in CORES} == {expected}


@pytest.mark.skipif(native.core is None, reason="needs the compiled core")
def test_items_out_of_their_memory_are_refused() -> None:
    core = native.core
    assert core is not None
    block = by_core(None, np.zeros((4, 64), np.uint8), 1000)
    assert block is not None
    field, out = memoryview(struct.pack("<I", len(block)) + block), np.full(256, 9, np.uint8)
    for place in [
        (0, 4, 2, 3, 0),  # rows that the chunk does not have
        (0, 4, 0, 4, 1),  # rows behind the output
        (-1, 4, 0, 1, 0),
        (1 << 40, 4, 0, 1, 0),
        (0, 0, 0, 1, 0),
        (0, 4, 0, -1, 0),
        (0, 1 << 60, 0, 1, 0),  # as many blocks as the field has no room for
        (8, 4, 0, 4, 0),
    ]:
        with pytest.raises(ValueError, match=r"place:|^0$"):
            core.apply_patches(out, [field], np.array(place), 256, 64, 0)
        assert (out == 9).all()
    places = np.array([(0, 0), (4, 4), (0, 0), (1, 1), (0, 1)])
    with pytest.raises(ValueError, match=r"^1$"):
        core.apply_patches(out[:128], [field, field[:-1]], places, 256, 64, 0)


def test_a_storage_keeps_patches_in_its_own_form(tmp_path: Path) -> None:
    """Plain in RAM, compressed in a folder, whichever way a chunk comes; drawn the same."""
    fields = (
        Field("observation", "uint8", (64, 64), "patch", stack=2),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "raw"),
    )
    shown = np.zeros((300, 64, 64), np.uint8)
    shown[np.arange(300), np.arange(300) % 64] = np.arange(64, dtype=np.uint8)
    values: dict[str, np.ndarray] = {
        "observation": shown,
        "action": np.arange(300),
        "reward": np.arange(300) / 4,
    }
    spec = Spec(fields, "observation", "action")
    ram, folder, back = (
        SequenceReplayBuffer(path, seed=1) for path in (None, tmp_path / "store", None)
    )
    for replay in (ram, folder, back):
        replay.bind(spec, {})
    ram.add([Chunk(0, 0, 0, End.TERMINATED, values)])
    folder.add_encoded([ram.storage.encoded(0)])
    back.add_encoded([folder.storage.encoded(0)])
    sizes = [replay.storage.encoded(0).nbytes for replay in (ram, folder, back)]
    assert sizes[1] < sizes[0] / 3
    assert sizes[2] == sizes[0]
    for _ in range(3):  # the first draw from the folder fills a cache
        drawn = [replay.sample_transitions(20).observation for replay in (ram, folder, back)]
        assert drawn[0].tobytes() == drawn[1].tobytes() == drawn[2].tobytes()
    folder.close()


# --- deltas, which older versions wrote ---


def undone(deltas: bytes, rows: int, row_bytes: int, start: int, count: int) -> bytes | None:
    """The rows as numpy and the compiled core restore them; None if both refuse to."""
    found = list[bytes | None]()
    for core in CORES:
        out = bytearray(b"\xaa" * (count * row_bytes + 16))
        with mock.patch.object(native, "core", core), memoryview(out) as view:
            try:
                apply_deltas(deltas, rows, row_bytes, start, view[8:-8])
            except ValueError:
                found.append(None)
            else:
                found.append(bytes(view[8:-8]))
        assert out[:8] == out[-8:] == b"\xaa" * 8
    assert found[1:] in ([], found[:1])
    return found[0]


@given(blocks(), st.data())
def test_rows_are_restored_from_the_documented_bytes(
    block: np.ndarray, data: st.DataObject
) -> None:
    rows, row_bytes = block.shape
    deltas = slow_deltas(block)
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - start))
    expected = block[start : start + count].tobytes()
    assert undone(deltas, rows, row_bytes, start, count) == expected


def changed(deltas: bytes, rows: int, rng: random.Random) -> bytes:
    """Deltas that are wrong, mostly."""
    data = bytearray(deltas)
    kind = rng.choice(("byte", "count", "two counts", "cut", "longer", "noise"))
    counts = range(0, 4 * (rows - 1), 4)
    if kind == "byte" or not counts:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
    elif kind == "count":
        value = rng.choice((0, 1, 1 << 31, (1 << 32) - 1, rng.randrange(9)))
        struct.pack_into("<I", data, rng.choice(counts), value)
    elif kind == "two counts":  # with the same sum
        one, other = (rng.choice(counts) for _ in range(2))
        before = [struct.unpack_from("<I", data, at)[0] for at in (one, other)]
        by = rng.choice((1, before[0], 1 << 31))
        struct.pack_into("<I", data, one, (before[0] - by) % (1 << 32))
        struct.pack_into("<I", data, other, (before[1] + by) % (1 << 32))
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "longer":
        data += bytes(rng.randrange(1, 5))
    else:
        data[:] = rng.randbytes(len(data))
    return bytes(data)


@given(blocks(), st.randoms(use_true_random=False), st.data())
def test_both_paths_refuse_the_same_deltas_or_restore_the_same_rows(
    block: np.ndarray, rng: random.Random, data: st.DataObject
) -> None:
    rows, row_bytes = block.shape
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - start))
    for _ in range(5):
        undone(changed(slow_deltas(block), rows, rng), rows, row_bytes, start, count)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


ROW = bytes(range(70))


@pytest.mark.parametrize(
    "deltas",
    [
        b"",
        ROW,
        u32(0, 0) + ROW[1:],
        u32(0, 0) + ROW + b"x",
        u32(0, 1) + ROW,
        u32(1, 0) + bytes(4) + ROW,
        u32(1 << 31, 1 << 31) + ROW,  # the sum is 0 in 32 bits
        u32(1, 0) + b"\x46\x01" + ROW,  # byte 70
        u32(2, 0) + b"\xff\xff\x01\x01" + ROW,
    ],
)
def test_deltas_that_do_not_fit_are_refused(deltas: bytes) -> None:
    assert undone(u32(1, 0) + b"\x45\x01" + ROW, 3, 70, 1, 2) == 2 * (ROW[:-1] + b"\x01")
    assert undone(deltas, 3, 70, 1, 2) is None


@pytest.mark.skipif(native.core is None, reason="needs the compiled core")
def test_counts_that_the_rows_overwrite_are_not_believed() -> None:
    """The memory of the deltas and of the rows is the same: 3 changes become 100."""
    core = native.core
    assert core is not None
    deltas = u32(3, 0) + bytes(6) + u32(100) + bytes(66)
    memory = bytearray(deltas + bytes(300))
    with memoryview(memory) as view, pytest.raises(ValueError, match=r"\b84 bytes\b"):
        core.apply_deltas(view[:84], 3, 70, 1, view[:140])
    assert not any(memory[140:])
