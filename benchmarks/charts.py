"""Charts of rows as SVG pictures: bars, their quartiles, and a line at the limit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Literal, NamedTuple, TypeAlias

from rounds import Row

__all__ = ["Bar", "Scale", "bars_of", "chart"]

Scale: TypeAlias = Literal["share", "times"]
"""Bars begin at 0, or at 1, to the left for the slower and to the right for the faster."""

_BARS, _RIGHT, _TOP = 360, 72, 56
_LETTER = 7  # the most that a letter takes, on average
_LINE, _HEAD, _FOOT = 21, 25, 52
_OTHERS = re.compile("bare|cpprb|gymnasium|limit|plain|SB3|sheeprl|Tianshou|TorchRL")  # not ours
# A background of its own: a page's theme need not be the one that the system prefers.
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e } .end { text-anchor: end } .mid { text-anchor: middle }
.head { font-weight: 600 } .title { font-size: 15px; font-weight: 600 }
.back { fill: #ffffff; stroke: #d1d9e0 } .grid { stroke: #d1d9e0 }
.limit { stroke: #1f2328; stroke-width: 1.5 }
.ours { fill: #1f6feb } .pure { fill: #8fb5e8 } .other { fill: #a3acb7 }
.range { stroke: #1f2328; stroke-width: 1.2; opacity: .7 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .back { fill: #0d1117; stroke: #3d444d }
.grid { stroke: #3d444d } .limit { stroke: #f0f6fc }
.ours { fill: #4493f8 } .pure { fill: #33598f } .other { fill: #59636e }
.range { stroke: #f0f6fc }
}"""


class Bar(NamedTuple):
    """A bar.

    Args:
        case: The group that it stands in.
        name: Words beside it.
        kind: ``"ours"``, ``"pure"`` (ours, numpy alone) or ``"other"``.
        ratio: Median and quartiles.
    """

    case: str
    name: str
    kind: str
    ratio: tuple[float, float, float]


class _Axis:
    """Pixels of ratios.

    Args:
        scale: Of the bars.
        numbers: What is shown.
        left: The pixel at which the axis begins.
    """

    def __init__(self, scale: Scale, numbers: Sequence[float], left: int) -> None:
        self.left = left
        self._is_log = scale == "times"
        if self._is_log:
            steps = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
            low = max([steps[0], *(step for step in steps[:5] if step <= min(numbers))])
            high = min([steps[-1], *(step for step in steps[6:] if step >= max(numbers))])
            self.ticks = [step for step in steps if low <= step <= high]
            self.base = 1.0
        else:
            step = next(step for step in (0.25, 0.5, 1.0, 2.0) if max(numbers) <= 6 * step)
            count = max(math.ceil(max(*numbers, 1.0) / step), 1)
            self.ticks = [step * number for number in range(count + 1)]
            self.base = 0.0
        self._low, self._high = self._of(self.ticks[0]), self._of(self.ticks[-1])

    def at(self, number: float) -> float:
        """The pixel of a ratio; those beyond the ends are at the ends."""
        share = (self._of(max(number, 1e-9)) - self._low) / (self._high - self._low)
        return round(self.left + min(max(share, 0.0), 1.0) * _BARS, 1)

    def _of(self, number: float) -> float:
        return math.log(number) if self._is_log else number


def bars_of(rows: Sequence[Row], pure: Mapping[tuple[str, str, str], Row]) -> list[Bar]:
    """Bars of all candidates but the limits, which cases name where they have several.

    Args:
        rows: What was measured.
        pure: Those without the compiled core, by topic, case and candidate; only ours are shown.
    """
    found: list[Bar] = []
    has_one_limit = len({row.limit for row in rows}) == 1
    for row in rows:
        if row.candidate == row.limit:
            continue
        is_ours = not _OTHERS.match(row.candidate)
        case = row.case if has_one_limit else f"{row.case} (1: {row.limit})"
        found.append(Bar(case, row.candidate, "ours" if is_ours else "other", row.ratio))
        other = pure.get((row.topic, row.case, row.candidate))
        if is_ours and other is not None:
            found.append(Bar(case, "numpy alone", "pure", other.ratio))
    return found


def chart(title: str, limit: str, source: str, bars: Sequence[Bar], scale: Scale) -> str:
    """An SVG picture.

    Args:
        title: Stands above, and is read aloud.
        limit: Words beside the line at 1.
        source: Stands below: what was measured, where and when.
        bars: In the order in which they are shown, those of a case together.
        scale: Of the bars.
    """
    cases = len(dict.fromkeys(bar.case for bar in bars))
    if cases == len(bars):  # a line for each, named after its case
        bars = [bar._replace(case="", name=bar.case) for bar in bars]
        cases = 0
    left = max(190, 30 + _LETTER * max(len(bar.name) for bar in bars))
    axis, width = _Axis(scale, [n for bar in bars for n in bar.ratio], left), left + _BARS + _RIGHT
    bottom = _TOP + _HEAD * cases + _LINE * len(bars) + 8
    height = bottom + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="14" y="26">{escape(title)}</text>',
    ]
    one = axis.at(1.0)
    for tick in axis.ticks:
        x = axis.at(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="small mid" x="{x}" y="{bottom + 15}">{tick:g}</text>')
    parts.append(f'<text class="small mid" x="{one}" y="{_TOP - 6}">{escape(limit)}</text>')
    parts += _groups(bars, axis)
    parts.append(f'<line class="limit" x1="{one}" x2="{one}" y1="{_TOP}" y2="{bottom}"/>')
    parts.append(f'<text class="small" x="14" y="{height - 14}">{escape(source)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _groups(bars: Sequence[Bar], axis: _Axis) -> Iterator[str]:
    """The cases, and the bars below each."""
    y, case = float(_TOP + 6), ""
    for bar in bars:
        if bar.case != case:
            case = bar.case
            yield f'<text class="head" x="14" y="{y + 18}">{escape(case)}</text>'
            y += _HEAD
        middle, low, high = bar.ratio
        begin, end = sorted((axis.at(axis.base), axis.at(middle)))
        line = y + (_LINE - 4) / 2
        yield f'<text class="end" x="{axis.left - 8}" y="{y + 13}">{escape(bar.name)}</text>'
        yield (
            f'<rect class="{bar.kind}" x="{begin}" y="{y}" width="{max(1.0, end - begin):.1f}" '
            f'height="{_LINE - 4}" rx="2"/>'
        )
        ends = f'x1="{axis.at(low)}" x2="{axis.at(high)}"'
        yield f'<line class="range" {ends} y1="{line}" y2="{line}"/>'
        right = axis.left + _BARS + _RIGHT - 14
        yield f'<text class="end" x="{right}" y="{y + 13}">{middle:.2f}</text>'
        y += _LINE
