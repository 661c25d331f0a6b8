"""Summaries of arrays, frames and objects as HTML, for notebooks.

They are small and quick whatever the size of the data: few frames are shown, in a picture of at
most about 10 kB, and large arrays are not read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..spec.spec import Field, Spec
from .encode import webp
from .film_strip import FilmStrip
from .image_fields import ImageField, image_fields
from .markup import Markup, escape, image, number, section, table

_LOG = logging.getLogger("stepwell.buffers")

_MOST_FRAMES = 6
_MOST_FILMS = 2  # fields that are shown
_MOST_READ = 1 << 23  # bytes of the frames of a field
_SCALING = 8  # a scaled value takes as long as that many bytes
_MOST_PIXELS = 90_000  # of a picture: WebP takes 100 ns a pixel, of noise 500 ns
_MOST_BYTES = 7_000  # of a picture
_MOST_VALUES = 100_000  # of an array whose range is shown


def or_none(make: Callable[[], str]) -> str | None:
    """The HTML of an object; None after an error, which is logged."""
    # A notebook shows the text of the object then.
    try:
        return make()
    except Exception:
        _LOG.exception("an object cannot be shown as HTML; its text is shown")
        return None


def frames_to_show(field: ImageField, row_bytes: int) -> int:
    """Number of a field's frames that are shown; 0 where even one takes too long."""
    cost = max(1, row_bytes) * (1 if field.is_exact else _SCALING)
    pixels = field.height * field.width
    return min(_MOST_FRAMES, _MOST_READ // cost, max(1, _MOST_PIXELS // pixels))


def film_html(field: ImageField, rows: np.ndarray, what: str) -> Markup:
    """Frames of a field as one small picture, without loss, under a line that says which."""
    # Large frames are shown by every second pixel, or by fewer. No rows give no picture.
    if not len(rows):
        return Markup()
    frames = field.pixels(rows)
    step = max(1, math.ceil(math.sqrt(field.height * field.width / _MOST_PIXELS)))
    while True:
        strip = FilmStrip.of(frames[:, ::step, ::step], range(len(frames))).pixels
        data = webp(strip)
        if len(data) <= _MOST_BYTES or max(strip.shape[:2]) < 16:
            break
        bytes_each = len(data) / len(frames)
        if len(frames) > 2:
            frames = frames[:: math.ceil(len(frames) / 2)]
        if len(frames) * bytes_each > _MOST_BYTES:
            step = math.ceil(step * max(1.25, math.sqrt(len(frames) * bytes_each / _MOST_BYTES)))
    notes = [field.name, what if len(frames) == len(rows) else f"some of {what}"]
    if step > 1:
        notes.append(f"1 of {step} x {step} pixels")
    if not field.is_exact:
        notes.append(field.scale)
    text = "; ".join(notes)
    height, width = strip.shape[:2]
    enlarged = 2 if width <= 200 else 1
    picture = image(data, "webp", text, width=width * enlarged, height=height * enlarged)
    return Markup(f'<div style="margin:4px 0">{escape(text)}<br>{picture}</div>')


def films_html(spec: Spec, read: Callable[[ImageField, int], tuple[np.ndarray, str]]) -> Markup:
    """Frames of the first image fields of a Spec."""
    # `read` gets a field and a number of frames, and returns at most as many of its rows, and what
    # they are.
    parts: list[str] = []
    for field in image_fields(spec)[:_MOST_FILMS]:
        count = frames_to_show(field, spec[field.name].row_bytes)
        if count:
            parts.append(film_html(field, *read(field, count)))
        else:
            size = f"{field.height:,} x {field.width:,} pixels"
            parts.append(f"<div>{escape(field.name)}: {size}, too large to be shown here</div>")
    return Markup("".join(parts))


def spread_text(values: Sequence[float]) -> str:
    """Count, mean, standard deviation and range of some numbers."""
    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return "none"
    with np.errstate(all="ignore"):
        mean, spread = map(float, (numbers.mean(), numbers.std()))
        low, high = map(float, (numbers.min(), numbers.max()))
    return (
        f"{len(numbers):,}, mean {number(mean)} ± {number(spread)}, from {number(low)} to "
        f"{number(high)}"
    )


def arrays_html(name: str, counts: Mapping[str, int], leaves: Iterable[tuple[str, Any]]) -> Markup:
    """A batch: its numbers, its arrays with dtypes, shapes and values, and its first frames."""
    listed = list(leaves)
    numbers = ", ".join(f"{key} {count:,}" for key, count in counts.items())
    return section(
        f"{name}: {numbers}" if numbers else name,
        fields_table(listed),
        _first_frames(listed),
    )


def fields_table(leaves: Iterable[tuple[str, Any]]) -> Markup:
    """A table of arrays, or tensors: names, dtypes, shapes, and the range of the small ones."""
    rows = [
        (
            *(name, str(getattr(leaf, "dtype", type(leaf).__name__))),
            *(str(tuple(np.shape(leaf))), _values_of(leaf)),
        )
        for name, leaf in leaves
    ]
    return table(rows, ["field", "dtype", "shape", "values"])


def _first_frames(leaves: Sequence[tuple[str, Any]]) -> Markup:
    """The first frames of the first observations that are images."""
    by_name = dict(leaves)
    reward = by_name.get("reward")
    lead = 1 if reward is None else len(np.shape(reward))
    parts: list[str] = []
    for name, leaf in leaves:
        array = _array_of(leaf)
        if not name.startswith("observation") or array is None or array.ndim <= lead:
            continue
        shape = array.shape[lead:]
        row = Field("observation", array.dtype.name, shape, "raw")
        for field in image_fields(Spec((row,), "observation", {})):
            count = frames_to_show(field, row.row_bytes)
            places = _first_places(array.shape[:lead], count)
            if not places:
                continue
            what = "at " + " ".join(str(list(place)) for place in places)
            rows = np.stack([array[place] for place in places])
            parts.append(film_html(replace(field, name=name), rows, what))
        if len(parts) == _MOST_FILMS:
            break
    return Markup("".join(parts))


def _first_places(shape: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Indices of at most ``count`` rows: of two items, or of all if each is one row."""
    if math.prod(shape) == 0 or not count:
        return []
    if len(shape) == 1:
        return [(place,) for place in range(min(count, shape[0]))]
    items = min(2, shape[0], count)
    each = max(1, min(shape[1], count // items))
    rest = (0,) * (len(shape) - 2)
    return [(item, row, *rest) for item in range(items) for row in range(each)]


def _array_of(leaf: Any) -> np.ndarray | None:
    """The leaf as an array without a copy; None where it is no array in this machine's memory."""
    if isinstance(leaf, np.ndarray):
        return leaf
    device = getattr(leaf, "device", None)
    if getattr(device, "type", None) != "cpu" or not hasattr(leaf, "detach"):
        return None
    try:
        return np.asarray(leaf.detach().numpy())
    except TypeError:  # a dtype that numpy does not have, such as bfloat16
        return None


def _values_of(leaf: Any) -> str:
    """The range of an array, or how many of its flags are set."""
    array = _array_of(leaf)
    if array is None or not array.size or array.dtype.kind not in "biuf":
        return ""
    if array.dtype.kind == "b" and array.size <= 16 * _MOST_VALUES:
        return f"{np.count_nonzero(array):,} of {array.size:,} are True"
    if array.size > _MOST_VALUES:
        return ""
    low, high = array.min().item(), array.max().item()
    return f"all {number(low)}" if low == high else f"{number(low)} to {number(high)}"
