"""Output of the commands: summaries, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import rich.box
import rich.console
import rich.table
import rich.text

from stepwell.buffers.progress import GAP, LiveLine, Part, joined

__all__ = [
    "LiveLine",
    "Part",
    "packed",
    "plural",
    "print_json",
    "print_lines",
    "print_parts",
    "table",
    "table_console",
]


def packed(parts: Sequence[Part], width: int) -> list[rich.text.Text]:
    """Join all parts into as few lines of at most ``width`` characters as possible.

    Example:
        >>> [line.plain for line in packed([Part("12 steps"), Part("80/s"), Part("return 1")], 16)]
        ['12 steps  80/s', 'return 1']
    """
    lines: list[list[Part]] = [[]]
    for part in parts:
        if lines[-1] and _length([*lines[-1], part]) > width:
            lines.append([])
        lines[-1].append(part)
    return [joined(line) for line in lines]


def print_parts(*lines: Sequence[Part]) -> None:
    """Print lines of parts; a terminal gets more lines where they do not fit."""
    console = _text_console()
    width = console.width if console.is_terminal else 1000
    for parts in lines:
        for line in packed(parts, width):
            console.print(line)


def print_lines(lines: Sequence[str]) -> None:
    """Print text without changes."""
    console = _text_console()
    for line in lines:
        console.print(line, markup=False)


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON object in one line."""
    rich.console.Console(soft_wrap=True).out(json.dumps(value), highlight=False)


def table_console() -> rich.console.Console:
    """Return a console for tables: 120 columns wide where there is no terminal."""
    console = rich.console.Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 120
    return console


def table(*columns: str) -> rich.table.Table:
    """Return an empty table with these columns."""
    made = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun, whose plural is given where it is not the usual one.

    Example:
        >>> plural(1, "episode"), plural(1200, "step"), plural(2, "process", "processes")
        ('1 episode', '1,200 steps', '2 processes')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or f'{noun}s'}"


def _text_console() -> rich.console.Console:
    return rich.console.Console(emoji=False, highlight=False, soft_wrap=True)


def _length(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts) + len(GAP) * (len(parts) - 1)
