"""Small pieces of HTML and SVG: tables, sparklines and images.

They stand alone in any page, light or dark: colours follow the text around them, styles are inline,
and there are no scripts, no classes and no ids. All text is escaped and bounded in length.
"""

from __future__ import annotations

import base64
import html
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

ImageKind = Literal["png", "webp", "gif"]
"""A format of images that browsers show."""

_MOST_TEXT = 200  # characters
_MOST_ROWS = 40
_MOST_COLUMNS = 40
# Control characters, lone surrogates, and characters that reverse the text around them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NESTED = reprlib.Repr()
_NESTED.maxdict = _NESTED.maxlist = _NESTED.maxtuple = 12
_NESTED.maxstring = _NESTED.maxother = _MOST_TEXT
_CELL = "padding:2px 10px 2px 0;vertical-align:top;border:0;"
_LONG_TEXT = 24  # characters that may be broken anywhere; words and names are not


class Markup(str):
    """HTML that is ready to be shown; any other text is escaped where it goes into a page."""

    __slots__ = ()


def escape(value: object, most: int = _MOST_TEXT) -> Markup:
    """The text of a value for HTML, at most ``most`` characters of it; markup as it is."""
    if isinstance(value, Markup):
        return value
    is_nested = isinstance(value, Mapping | list | tuple | set | frozenset)
    text = _NESTED.repr(value) if is_nested else str(value)
    if len(text) > most:
        text = text[: most - 1] + "…"
    shown = _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)
    return Markup(html.escape(shown))


def number(value: float) -> str:
    """A number in a few characters: whole ones with their thousands, others with six digits."""
    if isinstance(value, np.generic):
        value = value.item()  # the least int8 has no positive one
    size = abs(value)
    if size < 1e15 and value == int(value):
        return f"{int(value):,}"
    if isinstance(value, int) and size >= 1e300:  # perhaps more than a float can be
        return f"{'-' * (value < 0)}1e{int(math.log10(size))}"
    return f"{float(value):,.1f}" if 1e5 <= size < 1e15 else f"{float(value):.6g}"


def table(rows: Iterable[Sequence[object]], heading: Sequence[object] = ()) -> Markup:
    """A table; missing values (None) are empty cells, and other cells than `Markup` are escaped."""
    # Rows after the 40th are counted, not shown, and so are columns. Below a heading numbers are
    # aligned to the right; without one the first cell of each row is its name.
    listed = list(rows)
    width = max((len(row) for row in [heading, *listed]), default=0)
    lines = [_row(row, has_name=not heading) for row in listed[:_MOST_ROWS]]
    left_out = [
        f"{there - most:,} more {name}{'s' if there - most > 1 else ''}"
        for name, there, most in (
            ("row", len(listed), _MOST_ROWS),
            ("column", width, _MOST_COLUMNS),
        )
        if there > most
    ]
    head = ""
    if heading:
        numbers = {
            place
            for row in listed[:_MOST_ROWS]
            for place, cell in enumerate(row[:_MOST_COLUMNS])
            if _is_number(cell)
        }
        cells = "".join(
            f'<th scope="col" style="{_CELL}text-align:{_side(place in numbers)};'
            f'font-weight:600">{escape(name)}</th>'
            for place, name in enumerate(heading[:_MOST_COLUMNS])
        )
        head = f"<thead><tr>{cells}</tr></thead>"
    rest = paragraph(f"… {', '.join(left_out)}") if left_out else ""
    return Markup(
        f'<table style="border-collapse:collapse;border:0;margin:4px 0;width:auto;'
        f'text-align:left">{head}<tbody>{"".join(lines)}</tbody></table>{rest}'
    )


def paragraph(text: object, most: int = 1_000) -> Markup:
    """A line of `Markup`, or of the escaped text of a value."""
    return Markup(f'<div style="margin:4px 0">{escape(text, most)}</div>')


def section(heading: object, *parts: Markup) -> Markup:
    """A heading, and what belongs to it; empty parts are left out."""
    content = "".join(part for part in parts if part)
    return Markup(
        f'<div style="margin:4px 0;line-height:1.4">'
        f'<div style="font-weight:600">{escape(heading)}</div>{content}</div>'
    )


def sparkline(
    values: npt.ArrayLike,
    name: str = "values",
    *,
    width: int = 240,
    height: int = 40,
    has_caption: bool = False,
) -> Markup:
    """A small curve of numbers [n] in their order; empty without finite ones."""
    # More numbers than pixels are drawn as the range of each pixel, so that no spike is lost.
    # Numbers that are not finite are gaps.
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1:
        raise ValueError(f"values: expected numbers [n], got the shape {numbers.shape}")
    finite = np.isfinite(numbers)
    if not finite.any():
        return Markup()
    low, high = float(numbers[finite].min()), float(numbers[finite].max())
    title = f"{name}: {number(low)} to {number(high)}, the last is {number(float(numbers[-1]))}"
    if not finite.all():
        title += f", {np.count_nonzero(~finite):,} are not finite"
    heights = _between(numbers, low, high)
    bins = max(1, width - 4)
    x = 2 + np.arange(len(numbers)) * ((bins - 1) / max(1, len(numbers) - 1))
    if len(numbers) > bins:
        x, heights = _ranges(heights, bins)
    y = np.where(np.isfinite(heights), 3 + (1 - heights) * (height - 6), np.nan)
    last = ""
    if np.isfinite(y[-1]):
        last = f'<circle cx="{_short(x[-1])}" cy="{_short(y[-1])}" r="2" fill="currentColor"/>'
    # The name comes from the title: aria-labelledby would need an id.
    drawn = Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%;vertical-align:middle">'
        f"<title>{escape(title)}</title>"
        f'<path d="{_path(x, y)}" fill="none" stroke="currentColor" stroke-width="1.25" '
        f'stroke-linejoin="round" stroke-linecap="round"/>{last}</svg>'
    )
    if not has_caption:
        return drawn
    # A screen reader has read it as the curve's name.
    return Markup(
        f'<div style="margin:4px 0">{drawn} <span aria-hidden="true">{escape(title)}</span></div>'
    )


def image(
    data: bytes, kind: ImageKind, alt: str, *, width: int | None = None, height: int | None = None
) -> Markup:
    """An image whose bytes are part of the page; pixels stay sharp when it is enlarged."""
    # The text `alt` stands in its place for those who do not see it.
    if kind not in get_args(ImageKind):
        raise ValueError(f"kind: expected one of {', '.join(get_args(ImageKind))}, got {kind!r}")
    sizes = "".join(
        f' {side}="{int(size)}"'
        for side, size in (("width", width), ("height", height))
        if size is not None
    )
    return Markup(
        f'<img src="data:image/{kind};base64,{base64.b64encode(data).decode()}" '
        f'alt="{escape(alt)}"{sizes} style="image-rendering:pixelated;max-width:100%;margin:2px">'
    )


def _row(cells: Sequence[object], *, has_name: bool) -> str:
    shown = [
        f'<th scope="row" style="{_CELL}text-align:left;font-weight:400;opacity:.8;'
        f'overflow-wrap:break-word">'
        f"{escape(cell)}</th>"
        if has_name and place == 0
        else _cell(cell, not has_name)
        for place, cell in enumerate(cells[:_MOST_COLUMNS])
    ]
    return f'<tr style="background:none">{"".join(shown)}</tr>'


def _cell(cell: object, is_aligned: bool) -> str:
    """A cell; numbers are aligned to the right below the name of a column."""
    has_number = _is_number(cell)
    shown = escape(number(cast("float", cell)) if has_number else "" if cell is None else cell)
    breaks = ";overflow-wrap:anywhere" if len(shown) > _LONG_TEXT else ""
    side = _side(has_number and is_aligned)
    return f'<td style="{_CELL}text-align:{side}{breaks}">{shown}</td>'


def _is_number(cell: object) -> bool:
    """True for a number, which `number` writes; a bool is none."""
    return isinstance(cell, int | float | np.integer | np.floating) and not isinstance(cell, bool)


def _side(to_the_right: bool) -> str:
    return "right" if to_the_right else "left"


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Shares [n] of the way from low to high, NaN for numbers that are not finite."""
    with np.errstate(all="ignore"):  # halves: the span of two floats may be infinite
        shares = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else values * 0 + 0.5
    return np.where(np.isfinite(values), shares, np.nan)


def _ranges(heights: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest height of each bin and the last height, with their places."""
    starts = np.arange(bins) * len(heights) // bins
    low, high = np.fmin.reduceat(heights, starts), np.fmax.reduceat(heights, starts)
    # In turns, so that neighbouring strokes are joined at their near ends.
    falls = np.arange(bins) % 2 == 1
    ends = np.stack([np.where(falls, high, low), np.where(falls, low, high)], 1)
    x = 2 + np.repeat(np.arange(bins), 2).astype(np.float64)
    return np.append(x, x[-1]), np.append(ends, heights[-1])


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """An SVG path through points, with gaps where y is NaN."""
    parts: list[str] = []
    pen = "M"
    for left, top in zip(x.tolist(), y.tolist(), strict=True):
        if math.isnan(top):
            pen = "M"
            continue
        # A line of no length makes a point of a single number between gaps.
        parts.append(f"{pen}{_short(left)} {_short(top)}{'h0' if pen == 'M' else ''}")
        pen = "L"
    return "".join(parts)


def _short(coordinate: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{coordinate:.1f}".removesuffix(".0")
