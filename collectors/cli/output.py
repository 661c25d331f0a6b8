"""Output of the commands: summaries, tables and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO, TypeVar

import rich.box
import rich.console
import rich.table
import rich.text

from ...buffers.base.progress import GAP, Status, joined
from ...buffers.base.progress import LiveLine as LiveLine
from ...buffers.base.progress import Part as Part
from ...buffers.base.row_guard import InterruptGuard

_Report = TypeVar("_Report")


@contextmanager
def reporting(
    status: Callable[[_Report], Status], sources: object, *, is_silent: bool
) -> Generator[Callable[[_Report], None]]:
    """An argument ``progress`` that shows reports in a live line, and at which Ctrl-C acts."""
    # ``sources`` is what is read, for the line until the first report.
    with LiveLine(is_silent=is_silent) as line, InterruptGuard() as guard:
        line.say(f"looking at {sources} ...")
        show = line.reporter(status)

        def progress(report: _Report) -> None:
            show(report)
            guard.check()

        yield progress
        guard.finish()


def packed(parts: Sequence[Part], width: int) -> list[rich.text.Text]:
    """Join all parts into as few lines of at most ``width`` characters as possible."""
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


_json_outputs: list[TextIO] = []


@contextmanager
def only_json() -> Generator[None]:
    """Keep standard output for `print_json`: what envs print, here and in workers, is an error's.

    Levels of minigrid, for instance, print what they reject.
    """
    with ExitStack() as stack:
        kept: TextIO = sys.stdout
        if (
            sys.stdout is sys.__stdout__
        ):  # else it is not the process's own, as in tests and notebooks
            kept.flush()
            number, other = kept.fileno(), sys.stderr.fileno()
            kept = stack.enter_context(os.fdopen(os.dup(number), "w"))
            stack.callback(os.dup2, kept.fileno(), number)
            os.dup2(other, number)
        stack.enter_context(redirect_stdout(sys.stderr))
        _json_outputs.append(kept)
        stack.callback(_json_outputs.remove, kept)
        yield


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON object in one line."""
    print(json.dumps(value), file=_json_outputs[-1] if _json_outputs else None, flush=True)


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
    """A count with its noun: "1 episode", "1,200 steps"; ``nouns`` is a plural that is unusual."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or f'{noun}s'}"


def _text_console() -> rich.console.Console:
    return rich.console.Console(emoji=False, highlight=False, soft_wrap=True)


def _length(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts) + len(GAP) * (len(parts) - 1)
