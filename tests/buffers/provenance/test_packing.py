"""Numbers and rows come back as they were packed, and nothing else is unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.buffers.provenance.packing import (
    Cursor,
    pack_numbers,
    pack_rows,
    unpack_numbers,
    unpack_rows,
)
from stepwell.buffers.spec import field_of

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
DTYPES = st.sampled_from(
    [
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    ]
)


@given(st.lists(INTEGERS | st.integers(0, 9), max_size=50), st.booleans(), st.integers(0, 9))
def test_numbers_come_back(values: list[int], has_order: bool, seed: int) -> None:
    numbers = np.array(values, np.int64)
    order = np.random.default_rng(seed).permutation(len(numbers)) if has_order else None
    cursor = Cursor(pack_numbers(numbers, order))
    assert unpack_numbers(cursor, len(numbers), order).tolist() == values
    cursor.finish()


@given(st.data(), DTYPES, st.sampled_from([(), (1,), (3,), (2, 2), (0,), (65,)]), st.booleans())
def test_rows_come_back(data: Any, dtype: str, shape: tuple[int, ...], is_narrow: bool) -> None:
    count = data.draw(st.integers(0, 40))
    kind = np.dtype(dtype)
    elements = None
    if is_narrow and kind.kind in "iu":
        low = data.draw(st.integers(np.iinfo(kind).min, np.iinfo(kind).max - 20))
        elements = st.integers(low, low + data.draw(st.integers(0, 20)))
    rows = data.draw(arrays.arrays(kind, (count, *shape), elements=elements))
    has_value = data.draw(arrays.arrays(np.bool_, count))
    if data.draw(st.booleans()):
        rows[~has_value] = 0
    packed = pack_rows(rows, has_value)
    back = unpack_rows(packed, field_of("action", kind, shape), has_value)
    assert (back.dtype, back.shape, back.tobytes()) == (rows.dtype, rows.shape, rows.tobytes())


@pytest.mark.parametrize("base", [1, 2, 3, 6, 18, 255, 256])
@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 5003])
def test_random_digits_take_few_bytes(base: int, count: int) -> None:
    rows = np.random.default_rng(base).integers(0, base, count) - 7
    has_value = np.ones(count, np.bool_)
    packed = pack_rows(rows, has_value)
    back = unpack_rows(packed, field_of("action", rows.dtype, ()), has_value)
    assert back.tobytes() == rows.tobytes()
    assert len(packed) <= count * np.log2(base) / 8 * 1.01 + 20


@given(st.binary(max_size=60), DTYPES, st.sampled_from([(), (2,)]), st.integers(0, 30))
def test_other_bytes_are_refused_or_are_rows(
    data: bytes, dtype: str, shape: tuple[int, ...], count: int
) -> None:
    field = field_of("action", np.dtype(dtype), shape)
    try:
        rows = unpack_rows(data, field, np.ones(count, np.bool_))
    except ValueError:
        return
    assert (rows.dtype, rows.shape) == (np.dtype(dtype), (count, *shape))


def test_numbers_that_are_too_large_for_their_digits_are_refused() -> None:
    rows = np.random.default_rng(0).integers(0, 6, 1000)
    has_value = np.ones(1000, np.bool_)
    packed = pack_rows(rows, has_value)
    assert packed[0] == 2  # big-endian numbers
    forged = packed[:11] + b"\xff" * (len(packed) - 11)
    with pytest.raises(ValueError, match="base 6"):
        unpack_rows(forged, field_of("action", rows.dtype, ()), has_value)
