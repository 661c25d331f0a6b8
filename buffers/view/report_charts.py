"""The charts of a report, as SVG with the classes of `report.css`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from stepwell.buffers.pictures.markup import Markup, escape, number

__all__ = ["bars", "columns", "legend", "returns_in_order"]

_WIDTH, _HEIGHT = 420, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 30
_SERIES = 6  # colours
_MOST_DOTS = 400
_BINS = 200
_MOST_BARS = 24
_FINEST = 1 << 20  # steps of a float between two ticks, at least
_LETTER = 6.2  # width of a character of 11 px, about


def columns(labels: Sequence[str], counts: np.ndarray, title: str, unit: str) -> Markup:
    """A histogram with upright bars.

    Args:
        labels: A text for each range.
        counts: Numbers ``[series, ranges]``; several series stand side by side, each in percent.
        title: Name for those who do not see it.
        unit: What is counted.
    """
    values, unit = _shares(counts, unit)
    ticks = _ticks(0.0, float(values.max(initial=0)) or 1.0, least=1.0)
    wide = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    thick = min(56.0, wide * 0.86) / max(1, len(values))
    parts = list(_rows(ticks, unit))
    for place, label in enumerate(labels):
        middle = _LEFT + (place + 0.5) * wide
        for series, row in enumerate(values):
            top = _height(float(row[place]), ticks)
            if row[place] <= 0:
                continue
            left = middle + (series - len(values) / 2) * thick
            parts.append(
                f'<rect class="bar series-{series % _SERIES}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{max(0.5, thick - 0.6):.1f}" height="{_HEIGHT - _BOTTOM - top:.1f}">'
                f"<title>{escape(label)}: {_text(row[place])} {escape(unit)}</title></rect>"
            )
    longest = max((len(label) for label in labels), default=1)
    step = max(1, math.ceil((longest + 2) * _LETTER / wide))
    for place in range(0, len(labels), step):
        parts.append(_below(_LEFT + (place + 0.5) * wide, labels[place]))
    return _svg(title, parts)


def bars(labels: Sequence[str], counts: np.ndarray, title: str) -> Markup:
    """Bars from left to right, one for each label and series, in percent; the most frequent ones.

    Args:
        labels: A name for each bar.
        counts: Numbers ``[series, labels]``.
        title: Name for those who do not see it.
    """
    values, _ = _shares(np.asarray(counts), "", always=True)
    most = np.argsort(-values.sum(0), kind="stable")[:_MOST_BARS]
    shown = np.sort(most).tolist()
    left = 12 + min(20, max((len(labels[place]) for place in shown), default=1)) * _LETTER * 1.1
    wide = _WIDTH - left - 52
    thick = 16 if len(values) == 1 else 13
    top, parts = 4.0, list[str]()
    longest = float(values[:, shown].max(initial=0)) or 1.0
    for place in shown:
        middle = top + thick * len(values) / 2 + 4
        parts.append(
            f'<text x="{left - 8:.1f}" y="{middle:.1f}" text-anchor="end">'
            f"{escape(labels[place], 20)}</text>"
        )
        for series, value in enumerate(values[:, place].tolist()):
            y = top + series * thick
            long = value / longest * wide
            parts.append(
                f'<rect class="bar series-{series % _SERIES}" x="{left:.1f}" y="{y:.1f}" '
                f'width="{long:.1f}" height="{thick - 1}"/>'
                f'<text x="{left + long + 5:.1f}" y="{y + thick / 2 + 3.5:.1f}">'
                f"{number(round(value, 1))}%</text>"
            )
        top += thick * len(values) + 6
    return _svg(title, parts, height=max(40, math.ceil(top)))


def returns_in_order(
    returns: Sequence[np.ndarray], is_whole: Sequence[np.ndarray], title: str
) -> Markup:
    """The returns of episodes in their order: a dot each, or ranges of many, with a moving mean.

    Args:
        returns: The returns ``[n]`` of each store; those that are not finite are left out.
        is_whole: [n] bool of each store: the episode is stored from its reset to its end; others
            are drawn as rings.
        title: Name for those who do not see it.
    """
    finite = [each[np.isfinite(each)] for each in returns]
    every = np.concatenate(finite) if finite else np.zeros(0)
    if not len(every):
        return Markup()
    ticks = _ticks(float(every.min()), float(every.max()))
    most = max(map(len, returns))
    wide = _WIDTH - _LEFT - _RIGHT
    parts = list(_rows(ticks, "return"))
    for series, (values, whole) in enumerate(zip(returns, is_whole, strict=True)):
        x = _LEFT + 4 + (np.arange(len(values)) + 0.5) / most * (wide - 8)
        color = f"series-{series % _SERIES}"
        if len(values) <= _MOST_DOTS:
            size = 3.2 if len(values) <= 80 else 2.0
            parts += [
                f'<circle class="dot {color}{"" if filled else " ring"}" cx="{at:.1f}" '
                f'cy="{_height(value, ticks):.1f}" r="{size}"/>'
                for at, value, filled in zip(
                    x.tolist(), values.tolist(), whole.tolist(), strict=True
                )
                if math.isfinite(value)
            ]
        else:
            starts = np.arange(_BINS) * len(values) // _BINS
            known = np.where(np.isfinite(values), values, np.nan)
            low, high = np.fmin.reduceat(known, starts), np.fmax.reduceat(known, starts)
            wide_bin = (wide - 8) * len(values) / most / _BINS
            parts += [
                f'<rect class="dot {color}" x="{at:.1f}" y="{_height(b, ticks):.1f}" '
                f'width="{wide_bin:.1f}" '
                f'height="{max(1.0, _height(a, ticks) - _height(b, ticks)):.1f}"/>'
                for at, a, b in zip(x[starts].tolist(), low.tolist(), high.tolist(), strict=True)
                if not math.isnan(a)
            ]
        parts.append(_mean_line(x[whole], values[whole], ticks, color))
    # The last number is that of the last episode, not of a tick above it.
    for place in {0, most - 1, *range(0, most, max(1, round(most / 4)))}:
        if place in (0, most - 1) or place < most * 0.9:
            at = _LEFT + 4 + (place + 0.5) / most * (wide - 8)
            parts.append(_below(at, f"{place + 1:,}"))
    return _svg(title, parts)


def legend(names: Sequence[str]) -> Markup:
    """The names of the series with their colours; empty for a single one."""
    if len(names) < 2:
        return Markup()
    items = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="bar series-{series % _SERIES}" width="10" height="10"/></svg>'
        f"{escape(name)}</li>"
        for series, name in enumerate(names)
    )
    return Markup(f'<ul class="legend">{items}</ul>')


def _mean_line(x: np.ndarray, values: np.ndarray, ticks: Sequence[float], color: str) -> str:
    """The mean of neighbouring episodes; empty for few of them."""
    is_known = np.isfinite(values)
    x, values = x[is_known], values[is_known]
    window = max(5, len(values) // 20)
    if len(values) < 2 * window:
        return ""
    # Of halves, as a sum of large numbers may overflow.
    means = np.convolve(values / window, np.ones(window), "valid")
    at = np.convolve(x / window, np.ones(window), "valid")
    step = max(1, len(means) // _BINS)
    points = " ".join(
        f"{a:.1f},{_height(value, ticks):.1f}"
        for a, value in zip(at[::step].tolist(), means[::step].tolist(), strict=True)
        if math.isfinite(value)
    )
    return f'<polyline class="mean {color}" points="{points}"/>'


def _shares(counts: np.ndarray, unit: str, *, always: bool = False) -> tuple[np.ndarray, str]:
    """The counts as floats, in percent of each series if there are several."""
    values = np.asarray(counts, np.float64)
    if len(values) < 2 and not always:
        return values, unit
    return 100 * values / np.maximum(1, values.sum(1, keepdims=True)), f"% of {unit}"


def _ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Two to seven round numbers from at most ``low`` to at least ``high``, ``least`` apart."""
    # Places that are nearer than that are the same to a float, a step apart or not.
    near = math.ulp(max(abs(low), abs(high))) * _FINEST
    span = max(least, near, high / 4 - low / 4)  # not of their difference: it may be infinite
    if low == high:
        low, high = max(low - 1, -sys.float_info.max), min(high + 1, sys.float_info.max)
        span = max(0.5, near)
    size = 10.0 ** math.floor(math.log10(max(span, 5e-300)))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * place for place in range(first, max(first + 1, last) + 1)]


def _height(value: float, ticks: Sequence[float]) -> float:
    part = (value / 2 - ticks[0] / 2) / (ticks[-1] / 2 - ticks[0] / 2)
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)


def _rows(ticks: Sequence[float], unit: str) -> Iterator[str]:
    """Lines across with their numbers."""
    for tick in ticks:
        y = _height(tick, ticks)
        yield f'<path class="axis" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(tick)}</text>'
    yield f"<desc>{escape(unit)}</desc>"


def _below(x: float, text: str) -> str:
    half = len(text) * _LETTER / 2
    at = min(max(x, half), _WIDTH - half)
    return f'<text x="{at:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(text)}</text>'


def _text(value: float) -> str:
    """A number of at most about six characters."""
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.1e}"
    return number(round(float(value), 1 if size >= 10 else 3))


def _svg(title: str, parts: Sequence[str], height: int = _HEIGHT) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title, 300)}">'
        f"{''.join(parts)}</svg>"
    )
