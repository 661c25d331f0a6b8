"""What a collect looks like in the terminal, while it runs and at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import rich.console
import rich.live
import rich.text

from stepwell.collectors.report import CollectReport, format_bytes

__all__ = ["Goal", "LiveLine", "Part", "fitted", "packed", "progress_parts", "summary"]

_GAP = "  "


class Goal(NamedTuple):
    """What was asked for: a number of steps, or of episodes."""

    steps: int | None
    episodes: int | None

    def fraction(self, report: CollectReport) -> float:
        """The part of it that is done, 0 to 1."""
        if self.steps is not None:
            return min(1.0, report.steps / self.steps)
        return min(1.0, report.episodes / (self.episodes or 1))


class Part(NamedTuple):
    """A chunk of a line, which must not be torn.

    Args:
        text: What it says.
        rank: When the line is too long, parts of high rank go first.
        style: Of rich.
    """

    text: str
    rank: int = 0
    style: str = ""


class LiveLine:
    """One live line at the bottom of a terminal; nothing at all where there is no terminal.

    Args:
        console: The terminal.
    """

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        # Drawn when there is something to tell, so no thread is needed.
        self._live = rich.live.Live(console=console, auto_refresh=False, transient=True)

    @property
    def is_shown(self) -> bool:
        """There is a terminal to draw on."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def say(self, text: str) -> None:
        """Show what is being done before there is something to report."""
        self._draw(rich.text.Text(text, style="dim", no_wrap=True, overflow="ellipsis"))

    def show(self, parts: Sequence[Part]) -> None:
        """Show as many of the parts as there is room for."""
        self._draw(fitted(parts, self._console.width - 1))

    def __enter__(self) -> Self:
        if self.is_shown:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def _draw(self, line: rich.text.Text) -> None:
        if self.is_shown:
            self._live.update(line, refresh=True)


def progress_parts(report: CollectReport, goal: Goal) -> list[Part]:
    """The live line: how far, how fast, how good, how large, how long still."""
    fraction = goal.fraction(report)
    parts = [Part(f"{fraction:4.0%}", 3, "bold"), *_count_parts(report, goal), *_rate_parts(report)]
    if goal.episodes is None:
        parts.append(Part(f"{report.episodes:,} episodes", 4))
    if report.returns:
        parts.append(Part(f"return {_mean(report.returns)}", 2, "cyan"))
    parts += _size_parts(report)
    if 0 < fraction < 1:
        left = _clock(report.seconds * (1 - fraction) / fraction)
        parts.append(Part(f"{left} left", 1, "bold"))
    return parts


def summary(report: CollectReport, seed: int, size: Sequence[str]) -> list[list[Part]]:
    """The lines at the end.

    Args:
        report: What was done.
        seed: What to give to ``--seed`` to get the same data again.
        size: How large the store is now.
    """
    total = max(report.seconds, 1e-9)
    first = [Part(f"{report.steps:,} steps", style="bold"), *_rate_parts(report)]
    first.append(Part(_plural(report.episodes, "episode")))
    if report.returns:
        first.append(Part(f"return {_mean(report.returns)} ± {np.std(report.returns):.1f}"))
    first += [Part(f"{report.cut} cut", style="yellow")] if report.cut else []
    first += [Part(f"{report.restarts} restarted", style="yellow")] if report.restarts else []
    second = [
        Part(f"env {report.env_seconds / total:.0%}"),
        Part(f"policy {report.policy_seconds / total:.0%}"),
        Part(f"write {report.write_seconds / total:.0%}"),
        Part(f"of {_clock(report.seconds)}"),
    ]
    third = [*map(Part, size), Part(f"in {report.path}", style="bold")]
    fourth = [Part(f"digest {report.digest}"), Part(f"seed {seed}")]
    return [[*first, *second], [*third, *fourth]]


def fitted(parts: Sequence[Part], width: int) -> rich.text.Text:
    """One line of at most ``width`` characters: what matters least is left out.

    Example:
        >>> fitted([Part("12 steps"), Part("80/s", rank=2), Part("return 1", rank=1)], 18).plain
        '12 steps  return 1'
    """
    kept = list(parts)
    while len(kept) > 1 and _length(kept) > width:
        kept.remove(max(reversed(kept), key=lambda part: part.rank))
    line = _joined(kept)
    line.truncate(max(1, width))
    return line


def packed(parts: Sequence[Part], width: int) -> list[rich.text.Text]:
    """All parts, in as many lines of at most ``width`` characters as it takes.

    Example:
        >>> [line.plain for line in packed([Part("12 steps"), Part("80/s"), Part("return 1")], 16)]
        ['12 steps  80/s', 'return 1']
    """
    lines: list[list[Part]] = [[]]
    for part in parts:
        if lines[-1] and _length([*lines[-1], part]) > width:
            lines.append([])
        lines[-1].append(part)
    return [_joined(line) for line in lines]


def _count_parts(report: CollectReport, goal: Goal) -> list[Part]:
    if goal.steps is not None:
        return [Part(f"{report.steps:,} / {goal.steps:,} steps")]
    return [
        Part(f"{report.episodes:,} / {goal.episodes:,} episodes"),
        Part(f"{report.steps:,} steps", 4),
    ]


def _rate_parts(report: CollectReport) -> list[Part]:
    rate = report.steps_per_second
    parts = [Part(f"{_rate(rate)} steps/s")]
    if report.frames > report.steps > 0:
        parts.append(Part(f"{_rate(rate * report.frames / report.steps)} frames/s", 6))
    return parts


def _size_parts(report: CollectReport) -> list[Part]:
    if not report.stored_bytes:
        return []
    smaller = f" {_rate(report.compression)}x smaller" if report.compression >= 1.5 else ""
    return [Part(f"rows of {format_bytes(report.stored_bytes)}{smaller}", 4)]


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _mean(numbers: Sequence[float]) -> str:
    return f"{float(np.mean(numbers)):,.1f}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _length(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts) + len(_GAP) * (len(parts) - 1)


def _joined(parts: Sequence[Part]) -> rich.text.Text:
    pairs = [(part.text, part.style) for part in parts]
    line = rich.text.Text(_GAP).join(rich.text.Text(text, style=style) for text, style in pairs)
    line.no_wrap = True
    return line
