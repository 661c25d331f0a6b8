"""Deltas restore the rows of a block, alike in numpy and in the compiled core."""

from __future__ import annotations

import random
import struct
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.base import native
from stepwell.buffers.storage.patches import apply_deltas
from support.old_chunks import slow_deltas

needs_core = pytest.mark.skipif(native.core is None, reason="without the compiled core")


def restored(deltas: bytes, rows: int, row_bytes: int, start: int, count: int) -> bytes | None:
    """The rows as numpy and the compiled core restore them; None if both refuse to."""
    found = list[bytes | None]()
    for core in [None] if native.core is None else [None, native.core]:
        out = bytearray(b"\xaa" * (count * row_bytes + 16))
        with patch.object(native, "core", core), memoryview(out) as view:
            try:
                apply_deltas(deltas, rows, row_bytes, start, view[8:-8])
            except ValueError:
                found.append(None)
            else:
                found.append(bytes(view[8:-8]))
        assert out[:8] == out[-8:] == b"\xaa" * 8
    assert found[1:] in ([], found[:1])
    return found[0]


@st.composite
def blocks(draw: st.DrawFn) -> np.ndarray:
    """Rows with few changes, with many, and with some far from each other."""
    rows, row_bytes = draw(st.integers(1, 9)), draw(st.integers(1, 1200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    block = np.repeat(rng.integers(0, 256, (1, row_bytes), np.uint8), rows, axis=0)
    for row in range(1, rows):
        block[row] = block[row - 1]
        changes = draw(st.sampled_from([0, 1, 2, 5, row_bytes]))
        block[row, rng.integers(0, row_bytes, changes)] = rng.integers(0, 256, changes)
    return block


@given(blocks(), st.data())
def test_rows_are_restored_from_the_documented_bytes(
    block: np.ndarray, data: st.DataObject
) -> None:
    rows, row_bytes = block.shape
    deltas = slow_deltas(block)
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - start))
    expected = block[start : start + count].tobytes()
    assert restored(deltas, rows, row_bytes, start, count) == expected


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
        restored(changed(slow_deltas(block), rows, rng), rows, row_bytes, start, count)


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
    assert restored(u32(1, 0) + b"\x45\x01" + ROW, 3, 70, 1, 2) == 2 * (ROW[:-1] + b"\x01")
    assert restored(deltas, 3, 70, 1, 2) is None


@needs_core
def test_counts_that_the_rows_overwrite_are_not_believed() -> None:
    """The memory of the deltas and of the rows is the same: 3 changes become 100."""
    core = native.core
    assert core is not None
    deltas = u32(3, 0) + bytes(6) + u32(100) + bytes(66)
    memory = bytearray(deltas + bytes(300))
    with memoryview(memory) as view, pytest.raises(ValueError, match=r"\b84 bytes\b"):
        core.apply_deltas(view[:84], 3, 70, 1, view[:140])
    assert not any(memory[140:])
