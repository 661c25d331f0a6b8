"""Small pieces of HTML and SVG: whatever the text and the numbers, the markup is harmless."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.buffers.pictures.markup import (
    Markup,
    escape,
    image,
    number,
    paragraph,
    section,
    sparkline,
    table,
)
from support.html_parts import text_of

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></svg><b>",
    "'&amp;<!--",
    "\ud800\x00\x1b[31m\u202e",
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text())
cells = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.lists(texts))


@given(rows=st.lists(st.lists(cells, max_size=6), max_size=5), heading=st.lists(texts, max_size=6))
@example([[text] for text in HOSTILE], HOSTILE)
def test_no_text_becomes_markup(rows: list[list[object]], heading: list[str]) -> None:
    drawn = section(HOSTILE[0], table(rows, heading), paragraph(HOSTILE[1]))
    shown = text_of(drawn)
    for text in [*heading, *(cell for row in rows for cell in row if isinstance(cell, str))]:
        if len(text) < 200 and text.isascii() and text.isprintable():
            assert text in shown
    text_of(image(b"", "png", "".join(heading) or "-"))
    text_of(sparkline([1, 2], "".join(heading)))


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\x1b", "\u202e", "\u2066", "\x85"])
def test_characters_that_cannot_be_seen_are_named(text: str) -> None:
    assert escape(f"a{text}b") == f"a{ascii(text)[1:-1]}b"


def test_long_texts_and_tables_are_shortened() -> None:
    assert len(escape("x" * 1_000_000)) == 200
    assert len(escape({str(key): "x" * 1_000 for key in range(10_000)})) < 2_000
    shown = text_of(table([[row] * 50 for row in range(1_000)], ["x"] * 50))
    assert "960 more rows, 10 more columns" in shown
    assert " 39 " in shown
    assert " 40 " not in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1_234, "-1,234"),
        (1.5, "1.5"),
        (123_456.78, "123,456.8"),
        (1e20, "1e+20"),
        (-(10**400), "-1e400"),
        (float("-inf"), "-inf"),
        (np.float32(0.25), "0.25"),
        (np.uint8(255), "255"),
        (np.int8(-128), "-128"),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@given(st.one_of(st.integers(), st.floats()))
def test_a_number_is_shown_to_six_digits(value: float) -> None:
    shown = number(value)
    assert len(shown) <= 24
    if abs(value) < 1e300:
        assert float(shown.replace(",", "")) == pytest.approx(float(value), rel=1e-5)


def points_of(drawn: str) -> list[tuple[float, float]]:
    path = re.search(r'<path d="([^"]*)"', drawn)
    assert path is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+?) ([-\d.]+)", path[1])]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(arrays.arrays(np.float64, st.integers(1, 40), elements=finite))
def test_each_of_few_numbers_is_a_point(values: np.ndarray) -> None:
    points = points_of(sparkline(values, width=100, height=40))
    assert len(points) == len(values)
    assert all(2 <= x <= 98 and 3 <= y <= 37 for x, y in points)
    span = values.max() / 2 - values.min() / 2
    if span > 0:
        wanted = 37 - 34 * ((values / 2 - values.min() / 2) / span)
        np.testing.assert_allclose([y for _, y in points], wanted, atol=0.06)


@given(st.integers(97, 5_000), st.data())
def test_a_spike_among_many_numbers_is_drawn(count: int, data: st.DataObject) -> None:
    values = np.zeros(count)
    high, low = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    values[high], values[low] = 1, -1
    drawn = sparkline(values, width=100, height=40)
    heights = {y: x for x, y in points_of(drawn)}
    assert {3, 20, 37} <= set(heights)
    # A bin is a pixel wide, and its bounds are whole numbers of values.
    assert heights[3] == pytest.approx(2 + 95 * high / count, abs=2)
    assert heights[37] == pytest.approx(2 + 95 * low / count, abs=2)
    assert len(drawn) < 5_000


def test_numbers_that_are_not_finite_are_gaps() -> None:
    drawn = sparkline([1, np.nan, 3, np.inf, 2], "x")
    assert "x: 1 to 3, the last is 2, 2 are not finite" in drawn
    assert drawn.count("M") == 3
    assert "nan" not in drawn
    assert sparkline([np.nan, np.inf]) == sparkline([]) == ""
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        sparkline(np.zeros((2, 2)))


def test_markup_stays_as_it_is() -> None:
    assert escape(Markup("<b>")) == "<b>"
    with pytest.raises(ValueError, match="svg"):
        image(b"", "svg", "x")  # type: ignore[arg-type]
