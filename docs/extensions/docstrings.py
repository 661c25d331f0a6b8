"""Prepares docstrings and signatures for Sphinx: docstrings are written to be read as plain text.

Tables are those of Markdown, asterisks are no markup, and the text of a Returns section has no type
before a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sphinx.application import Sphinx

CODE = re.compile(r"(``.*?``|`.*?`)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension; Napoleon comes later."""
    app.connect("autodoc-process-docstring", prepare, priority=400)
    app.connect("autodoc-process-signature", readable)
    return {"parallel_read_safe": True}


def prepare(
    app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Change the lines of a docstring in place."""
    if lines and re.fullmatch(r"Alias for field number \d+", lines[0]):  # of a named tuple
        lines.clear()
    prepared = list(escaped(with_tables(without_types(lines))))
    if kind in ("attribute", "property", "data") and prepared and ":" in prepared[0]:
        prepared[0] = f": {prepared[0]}"
    lines[:] = prepared


def readable(
    app: Sphinx, kind: str, name: str, value: object, options: object, arguments: str, result: str
) -> tuple[str, str] | None:
    """A signature whose defaults are Python: that of a dataclass may have ``<factory>``."""
    return (re.sub(r"=\s*<[^<>]*>", "=...", arguments), result) if arguments else None


def without_types(lines: list[str]) -> Iterator[str]:
    """Returns and Yields with an empty type."""
    begins = False
    for line in lines:
        yield re.sub(r"^(\s*)(?=\S)", r"\1: ", line) if begins else line
        begins = line in ("Returns:", "Yields:")


def with_tables(lines: Iterator[str]) -> Iterator[str]:
    """Tables of Markdown as lists of rows."""
    rows: list[str] = []
    for line in lines:
        if line.lstrip().startswith("|"):
            rows.append(line)
            continue
        yield from table(rows)
        rows = []
        yield line
    yield from table(rows)


def table(rows: list[str]) -> Iterator[str]:
    """The directive for the rows of a table, of which the first is the head."""
    if not rows:
        return
    indent = " " * (len(rows[0]) - len(rows[0].lstrip()))
    yield from ("", f"{indent}.. list-table::", f"{indent}   :header-rows: 1", "")
    for row in rows[:1] + rows[2:]:
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        yield f"{indent}   * - {cells[0]}"
        yield from (f"{indent}     - {cell}" for cell in cells[1:])
    yield ""


def escaped(lines: Iterator[str]) -> Iterator[str]:
    """Asterisks that stand neither in code nor before an item of a list."""
    for line in lines:
        item = re.match(r"\s*(>>>|\.\.\.|\*) ", line)
        begin = len(line) if item and ">" in item[0] else item.end() if item else 0
        parts = CODE.split(line[begin:])
        parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
        yield line[:begin] + "".join(parts)
