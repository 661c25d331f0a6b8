"""Spaces as JSON: a space that is written and read again is equal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stepwell as sw
from stepwell.buffers.spec.space_json import space_from_json, space_to_json

SHAPES = st.sampled_from([(), (1,), (3,), (2, 3)])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = np.dtype(draw(st.sampled_from(["uint8", "int64", "float16", "float32", "float64"])))
    shape = draw(SHAPES)
    numbers: dict[str, Any] = {"allow_nan": False} if dtype.kind == "f" else {}
    one = hnp.from_dtype(dtype, **numbers)
    low = draw(
        st.one_of(hnp.arrays(dtype, shape, elements=one), one.map(lambda x: np.full(shape, x)))
    )
    high = np.maximum(low, draw(hnp.arrays(dtype, shape, elements=one)))
    return spaces.Box(low, high, shape, dtype.type)


def leaves() -> st.SearchStrategy[spaces.Space[Any]]:
    nvec = hnp.arrays(np.int64, SHAPES.filter(bool), elements=st.integers(1, 9))
    return st.one_of(
        boxes(),
        st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-3, 3)),
        nvec.map(lambda n: spaces.MultiDiscrete(n, start=np.ones_like(n))),
        st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 5), SHAPES.filter(bool))),
    )


@given(
    st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda two: spaces.Dict(dict(zip("ab", two, strict=True)))),
            st.tuples(inner, inner).map(spaces.Tuple),
        ),
        max_leaves=4,
    )
)
@pytest.mark.filterwarnings("ignore:.*Box.*:UserWarning")
def test_a_space_is_restored_from_strict_json(space: spaces.Space[Any]) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    found = space_from_json(json.loads(text))
    assert found == space
    assert found.dtype == space.dtype
    if isinstance(found, spaces.Discrete):
        assert type(found.start) is type(space.start)  # type: ignore[attr-defined]


def test_other_spaces_are_refused() -> None:
    with pytest.raises(TypeError, match=r"\bSpace\b"):
        space_to_json(spaces.Space())
    with pytest.raises(ValueError, match=r"^space: .*'Strange'$"):
        space_from_json({"type": "Strange"})
    for dtype, n in (("float32", 3), ("int8", 300)):
        with pytest.raises(ValueError, match=r"^space: .*(float32|300)"):
            space_from_json({"type": "Discrete", "dtype": dtype, "n": n, "start": 0})


def test_spaces_larger_than_the_rows_are_left_out() -> None:
    low, row = -np.arange(1, 20_001, dtype=np.float64), np.zeros(20_000)
    wide = spaces.Box(low, np.ones(20_000), dtype=np.float64)
    replay = sw.SequenceReplayBuffer()
    with replay.writer((wide, spaces.Discrete(2))) as writer:
        writer.add(row, 0, 0.0, row, False, False)
    assert "spaces" not in replay.sessions[0]
