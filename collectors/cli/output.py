"""Output of the commands: the options about it, summaries, tables and JSON."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Annotated, TextIO, TypeVar

import rich.box
import rich.console
import rich.table
import rich.text
import typer

from ...buffers.base.progress import GAP, Status, joined
from ...buffers.base.progress import LiveLine as LiveLine
from ...buffers.base.progress import Part as Part
from ...buffers.base.row_guard import InterruptGuard
from ...buffers.base.untrusted_json import text_for_all
from .errors import exit_on_error
from .options import OUTPUT, Debug, spliced

_Report = TypeVar("_Report")
_json_outputs: list[TextIO] = []


@contextmanager
def _only_json() -> Generator[None]:
    """Keep standard output for `print_json`: what envs and workers print goes to errors."""
    # Levels of minigrid, for instance, print what they reject.
    with ExitStack() as stack:
        kept: TextIO = sys.stdout
        if sys.stdout is None:  # closed
            kept = stack.enter_context(open(os.devnull, "w"))
        elif sys.stdout is sys.__stdout__:  # else it is of a test or a notebook
            kept.flush()
            number, other = kept.fileno(), sys.stderr.fileno()
            kept = stack.enter_context(os.fdopen(os.dup(number), "w"))
            stack.callback(os.dup2, kept.fileno(), number)
            os.dup2(other, number)
        stack.enter_context(redirect_stdout(sys.stderr))
        _json_outputs.append(kept)
        stack.callback(_json_outputs.remove, kept)
        yield


_Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT),
]
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command: text, or with ``--json`` one object; if quiet, errors alone."""

    as_json: bool = False
    quiet: bool = False
    debug: bool = False

    @property
    def is_silent(self) -> bool:
        """True if there are no lines of text."""
        return self.quiet or self.as_json

    @contextmanager
    def line(self, text: str = "") -> Generator[LiveLine]:
        """A live line, which says this until there is progress to show."""
        with LiveLine(is_silent=self.is_silent) as line:
            if text:
                line.say(text)
            yield line

    @contextmanager
    def reporting(
        self, status: Callable[[_Report], Status], sources: object
    ) -> Generator[Callable[[_Report], None]]:
        """An argument ``progress`` that shows reports in a live line, and at which Ctrl-C acts."""
        # ``sources`` is what is read, for the line until the first report.
        with self.line(f"looking at {sources} ...") as line, InterruptGuard() as guard:
            show = line.reporter(status)

            def progress(report: _Report) -> None:
                show(report)
                guard.check()

            yield progress
            guard.finish()

    def show(
        self, facts: Mapping[str, object], *lines: Sequence[Part] | str, always: bool = False
    ) -> None:
        """Print the facts as JSON, or the lines."""
        if self.as_json:
            print_json(facts)
        elif always or not self.quiet:
            print_lines(*lines)


def with_output(
    after_interrupt: str = "--resume goes on",
    *,
    has_quiet: bool = True,
    codes: Mapping[type[Exception], int] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a command in `exit_on_error`, and give it options about its output as an `Output`."""
    options = {"as_json": _Json, "quiet": _Quiet, "debug": Debug}
    if not has_quiet:
        del options["quiet"]
    parameters = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option
        )
        for name, option in options.items()
    }

    @contextmanager
    def ending(output: Output) -> Generator[None]:
        standard = _only_json() if output.as_json else nullcontext()
        with standard, exit_on_error(output.debug, after_interrupt, codes):
            yield

    return lambda command: spliced(
        command, "output", parameters, lambda values: Output(**values), ending
    )


def packed(parts: Sequence[Part], width: int) -> list[rich.text.Text]:
    """Join all parts into as few lines of at most ``width`` characters as possible."""
    lines: list[list[Part]] = [[]]
    for part in parts:
        if lines[-1] and _length([*lines[-1], part]) > width:
            lines.append([])
        lines[-1].append(part)
    return [joined(line) for line in lines]


def print_lines(*lines: Sequence[Part] | str) -> None:
    """Print lines of text, or of parts: a terminal gets more lines where these do not fit."""
    console = rich.console.Console(emoji=False, highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else 1000
    for line in lines:
        if isinstance(line, str):
            console.print(line, markup=False)
            continue
        for text in packed(line, width):
            console.print(text)


def print_json(value: Mapping[str, object]) -> None:
    """Print a JSON object in one line."""
    print(text_for_all(value), file=_json_outputs[-1] if _json_outputs else None, flush=True)


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


def _length(parts: Sequence[Part]) -> int:
    return sum(len(part.text) for part in parts) + len(GAP) * (len(parts) - 1)
