"""Fills the page of the command line with the help texts of all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sphinx.application import Sphinx

from stepwell.collectors.cli.app import every_command

PAGE = "reference/command-line"
MARK = "<!-- commands -->"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the mark on the page with a section for each command."""
    if page == PAGE:
        before, _, after = source[0].partition(MARK)
        source[0] = before + "\n".join(sections()) + after


def sections() -> Iterator[str]:
    """Markdown of all commands, in the order of `stepwell --help`."""
    for words, command, context in islice(every_command(), 1, None):
        yield f"## {words}\n"
        yield from described(command.help)
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield f"```text\n{' '.join(usage.split())}\n```\n"
        yield from tables(command, context)


def described(text: str) -> Iterator[str]:
    """A help text as Markdown: paragraphs, and its examples as blocks of code."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip().splitlines()
        if lines[0].startswith("stepwell "):
            yield "```bash\n" + "\n".join(lines) + "\n```\n"
        else:
            yield "\n".join(map(prose, lines)) + "\n"


def tables(command: Any, context: Any) -> Iterator[str]:
    """One table for the arguments, and one for each group of options."""
    groups: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:  # hidden
            continue
        kind = parameter.param_type_name
        title = parameter.rich_help_panel or f"{kind.capitalize()}s"
        names, text = record
        names = names.replace("|", "\\|")  # GitHub's rule for code in tables
        row = f"| `{names}` | {prose(text)} |"
        groups.setdefault(title, []).append(row)
        kinds[title] = kind
    for title, rows in groups.items():
        yield f"### {title}\n\n| {kinds[title]} | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def prose(text: str) -> str:
    """Plain text as Markdown that shows it unchanged; options are shown as code."""
    plain = re.sub(r"([\\`*_<>\[\]|{}])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*[a-z]", r"`\g<0>`", plain)
