"""Output of the commands: summaries, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text

from stepwell.buffers.progress import GAP, LiveLine, Part, format_bytes, joined

__all__ = [
    "LiveLine",
    "Part",
    "describe_size",
    "packed",
    "plural",
    "print_json",
    "print_lines",
    "print_parts",
    "statistics_of",
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


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> plural(1, "episode"), plural(1200, "step")
        ('1 episode', '1,200 steps')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def statistics_of(numbers: np.ndarray) -> dict[str, float] | None:
    """Return mean, standard deviation, minimum and maximum; None for an empty array."""
    if not len(numbers):
        return None
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std()),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def describe_size(disk_bytes: int, raw_bytes: int, stored_bytes: int | None = None) -> list[str]:
    """Describe the size of a store, as parts of a line.

    Args:
        disk_bytes: Bytes of its files.
        raw_bytes: Bytes of its rows uncompressed, each frame counted once.
        stored_bytes: Bytes of its rows within the files; None where that is unknown.

    Example:
        >>> describe_size(2_500_000, 352_800_000, 2_400_000)
        ['2.5 MB on disk', 'rows 2.4 MB of it', 'raw 352.8 MB', '141x smaller']
        >>> describe_size(91_757, 16_900, 13_500)[-1]
        '5.43x larger: files reserve space in advance'
    """
    parts = [f"{format_bytes(disk_bytes)} on disk"]
    if stored_bytes is not None:
        parts.append(f"rows {format_bytes(stored_bytes)} of it")
    parts.append(f"raw {format_bytes(raw_bytes)}")
    if 0 < raw_bytes < disk_bytes:
        parts.append(f"{_times(disk_bytes / raw_bytes)} larger: files reserve space in advance")
    elif disk_bytes and raw_bytes / disk_bytes >= 1.05:
        parts.append(f"{_times(raw_bytes / disk_bytes)} smaller")
    return parts


def _text_console() -> rich.console.Console:
    return rich.console.Console(emoji=False, highlight=False, soft_wrap=True)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def _length(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts) + len(GAP) * (len(parts) - 1)
