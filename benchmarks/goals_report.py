"""Shows what goals.py measured: the table, its Markdown, and a chart.

    python benchmarks/goals_report.py goals.json                     # the table
    python benchmarks/goals_report.py goals.json --page docs/performance.md
    python benchmarks/goals_report.py goals.json --chart docs/pictures/goals.svg

A page has the table between two comments, ``<!-- goals -->`` and ``<!-- end of goals -->``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import rounds

__all__ = ["show"]

OURS = "stepwell"
PATHS = ("before", "pure", "core")


class Figure(NamedTuple):
    """The median of a row's rounds in a path, the lowest and the highest."""

    middle: float
    low: float
    high: float
    is_met: bool

    def __format__(self, spec: str) -> str:
        """``0.87 (0.80-0.93)``, or whole microseconds."""
        texts = [format(number, spec) for number in self[:3]]
        return f"{texts[0]} ({texts[1]}-{texts[2]})"


class Row(NamedTuple):
    """A row of the table.

    Args:
        name: What was measured, against what.
        goal: The least ratio, or the most microseconds.
        is_ratio: It is a ratio.
        figures: By path.
    """

    name: str
    goal: float
    is_ratio: bool
    figures: dict[str, Figure]

    @property
    def style(self) -> str:
        """The format of its numbers."""
        return ".2f" if self.is_ratio else ".0f"

    @property
    def goal_text(self) -> str:
        """The goal."""
        return f"{self.goal:.2f}" if self.is_ratio else f"{self.goal:.0f} us"

    @property
    def verdict(self) -> str:
        """Met by which paths."""
        ours = {path: figure for path, figure in self.figures.items() if path != "before"}
        met = [path for path, figure in ours.items() if figure.is_met]
        if not met:
            return "missed" if ours else ""
        return "met" if len(met) == len(ours) else f"met ({', '.join(met)})"


def rows(measured: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of the table."""
    for case in measured["cases"]:
        found: dict[str, Figure] = {}
        for path in PATHS:
            values = _values(case, path)
            if values is not None:
                middle = float(np.median(values))
                # As it is shown: what reads as the goal has reached it.
                shown = round(middle, 2 if case["limit"] else 0)
                is_met = shown >= round(case["goal"], 2) if case["limit"] else shown <= case["goal"]
                found[path] = Figure(middle, float(values.min()), float(values.max()), is_met)
        of = case["of"] or case["limit"]
        name = case["name"] + (f", of {of}" if of else "")
        yield Row(name, case["goal"], case["limit"] is not None, found)


def _values(case: Mapping[str, Any], path: str) -> np.ndarray | None:
    """Ratios to the limit, or microseconds, one a round."""
    clock, limit = case["clock"], case["limit"]
    ours, limits = (case["paths"].get(p) for p in (path, case["limit_path"] or path))
    if not ours or not limits:
        return None
    seconds = np.array([times[OURS][clock] for times in ours])
    if limit is None:
        return 1e6 * seconds
    found: np.ndarray = np.array([times[limit][clock] for times in limits]) / seconds
    return found


def show(measured: Mapping[str, Any]) -> None:
    """Print the table."""
    found = list(rows(measured))
    table = Table(title=None, caption=measured["machine"], caption_justify="left")
    table.add_column("goal row")
    table.add_column("goal", justify="right")
    shown = [path for path in PATHS if any(path in row.figures for row in found)]
    for path in shown:
        table.add_column(path, justify="right", no_wrap=True)
    table.add_column("")
    for row in found:
        cells = [Text("-")] * len(shown)
        for place, path in enumerate(shown):
            figure = row.figures.get(path)
            if figure is not None:
                cells[place] = Text(f"{figure:{row.style}}", "green" if figure.is_met else "red")
        table.add_row(row.name, row.goal_text, *cells, row.verdict)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(table)


# --- a page ---------------------------------------------------------------------------------------


def met_first(measured: Mapping[str, Any]) -> list[Row]:
    """The rows: those that are met, those that some path meets, the others."""
    return sorted(
        (row for row in rows(measured) if row.figures),
        key=lambda row: ("met" not in row.verdict, row.verdict != "met"),
    )


def markdown(measured: Mapping[str, Any]) -> str:
    """The table as Markdown, with a sentence before it and the machine behind it."""
    found = met_first(measured)
    shown = [path for path in PATHS if any(path in row.figures for row in found)]
    counts = [
        f"{sum(p in row.figures and row.figures[p].is_met for row in found)} of {len(found)} goals "
        f"are met {words}"
        for p, words in (("core", "with the compiled core"), ("pure", "by numpy alone"))
        if p in shown
    ]
    lines = [", ".join(counts) + ".", ""]
    lines.append("| " + " | ".join(["row", "goal", *map(_words, shown), ""]) + " |")
    lines.append("|" + "---|" * (len(shown) + 3))
    for row in found:
        cells = [
            f"{row.figures[path]:{row.style}}" if path in row.figures else "" for path in shown
        ]
        verdict = row.verdict if row.verdict == "met" else f"**{row.verdict}**"
        lines.append("| " + " | ".join([row.name, row.goal_text, *cells, verdict]) + " |")
    how = f"medians of {measured['rounds']} rounds, of {measured['seconds']:g} s where it collects"
    return "\n".join([*lines, "", f"({measured['machine']}; {how})"])


def _words(path: str) -> str:
    return {"pure": "numpy alone", "core": "with the compiled core"}.get(path, path)


# --- a chart --------------------------------------------------------------------------------------

_BARS, _TOP, _LINE, _RIGHT = 398, 52, 34, 118
_LETTER = 7  # the most that a letter takes, on average
_MOST = 1.5  # of the goal; longer bars end there, the numbers beside them do not
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e } .end { text-anchor: end } .mid { text-anchor: middle }
.grid { stroke: #d1d9e0 } .goal { stroke: #1f2328; stroke-width: 1.5 }
.pure { fill: #8fb5e8 } .core { fill: #1f6feb } .before { fill: #c4cbd3 }
.range { stroke: #1f2328; stroke-width: 1.2; opacity: .65 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .goal { stroke: #f0f6fc }
.pure { fill: #33598f } .core { fill: #4493f8 } .before { fill: #59636e }
.range { stroke: #f0f6fc }
}"""


def chart(measured: Mapping[str, Any]) -> str:
    """An SVG: a bar for each row and path, as long as its share of the goal."""
    found = met_first(measured)
    shown = [path for path in PATHS if any(path in row.figures for row in found)]
    left = 24 + _LETTER * max((len(row.name) for row in found), default=0)
    width, bottom = left + _BARS + _RIGHT, _TOP + _LINE * len(found)
    height = bottom + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'aria-label="Measured figures as shares of their goals">',
        f"<style>{_STYLE}</style>",
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5):
        x = left + _pixels(share)
        words = "goal" if share == 1 else f"{share:.0%}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom}"/>')
        parts.append(f'<text class="small mid" x="{x}" y="{bottom + 18}">{words}</text>')
    x = float(left)
    for path in shown:
        parts.append(f'<rect class="{path}" x="{x}" y="18" width="12" height="12" rx="2"/>')
        parts.append(f'<text x="{x + 18}" y="29">{_words(path)}</text>')
        x += 36 + 8 * len(_words(path))
    for number, row in enumerate(found):
        parts += _bars(row, left, _TOP + _LINE * number)
    x = left + _pixels(1.0)
    parts.append(f'<line class="goal" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{bottom}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _bars(row: Row, left: float, top: float) -> Iterator[str]:
    """The name, the bars and the figures of a row."""
    yield f'<text class="end" x="{left - 12}" y="{top + 20}">{escape(row.name)}</text>'
    thick = (_LINE - 8) / len(row.figures)
    for place, (path, figure) in enumerate(row.figures.items()):
        y = top + 3 + thick * place
        shares = [n / row.goal if row.is_ratio else row.goal / n for n in figure[:3]]
        middle, low, high = (_pixels(share) for share in shares)
        yield (
            f'<rect class="{path}" x="{left}" y="{y:.1f}" width="{max(1.0, middle)}" '
            f'height="{thick - 1:.1f}" rx="2"/>'
        )
        line = f"{y + (thick - 1) / 2:.1f}"
        ends = f'x1="{left + low:.1f}" x2="{left + high:.1f}"'
        yield f'<line class="range" {ends} y1="{line}" y2="{line}"/>'
    best = max if row.is_ratio else min
    ours = [figure.middle for path, figure in row.figures.items() if path != "before"]
    if ours:
        words = f"{best(ours):{row.style}} / {row.goal_text}"
        x = left + _BARS + _RIGHT - 10
        yield f'<text class="end" x="{x}" y="{top + 20}">{words}</text>'


def _pixels(share: float) -> float:
    """The length of a bar."""
    return round(min(share, _MOST) / _MOST * _BARS, 1)


def main() -> None:
    """Show a file of figures."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path, help="what goals.py --json wrote")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write an SVG")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table into a page")
    options = parser.parse_args()
    measured = json.loads(options.figures.read_text())
    if options.chart is not None:
        options.chart.parent.mkdir(parents=True, exist_ok=True)
        options.chart.write_text(chart(measured))
    if options.page is not None:
        page = options.page.read_text()
        options.page.write_text(rounds.into_page(page, "goals", markdown(measured)))
    if options.markdown:
        print(markdown(measured))
    elif options.chart is None and options.page is None:
        show(measured)


if __name__ == "__main__":
    main()
