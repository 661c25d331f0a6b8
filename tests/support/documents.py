"""Convert a Markdown document into the Python script that does what the document says.

The script has as many lines as the document, so that a traceback names the document's lines:
Python blocks stand where they stood, a `stepwell ...` line of a shell block becomes the call that
runs it, and everything else is an empty line, such as a block with a directive of the site:
```{toctree}.
"""

from __future__ import annotations

import re
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>\S*)")
MARK = re.compile(r"<!-- (?P<kind>not run|run by \.ci/run): (?P<reason>\S.*) -->")
SHELLS = {"bash", "console"}  # in a console block, commands begin with "$ "
SHOWN_ONLY = {"json", "mermaid", "text", "toml"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the number of its first line (from 1), its lines, and the mark above it."""

    first_line: int
    language: str
    lines: list[str]
    mark: re.Match[str] | None


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a document.

    Raises:
        ValueError: A block is indented, or never closed.
    """
    found: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence:
            if fence["indent"]:
                raise ValueError(f"line {number + 1}: an indented block cannot be run")
            end = end_of_block(lines, number)
            mark = MARK.fullmatch(lines[number - 1].strip()) if number else None
            found.append(Block(number + 2, fence["language"], lines[number + 1 : end], mark))
            number = end
        number += 1
    return found


def end_of_block(lines: list[str], start: int) -> int:
    """Index of the line that closes the block."""
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == "```":
            return number
    raise ValueError(f"line {start + 1}: the block is never closed")


def script(text: str) -> str:
    """The Python script that runs a document's blocks in order."""
    lines = [""] * len(text.splitlines())
    for block in blocks(text):
        if block.mark:
            continue
        start = block.first_line - 1
        lines[start : start + len(block.lines)] = runnable(block)
    return "\n".join(lines) + "\n"


def runnable(block: Block) -> list[str]:
    """A block's lines as Python, as many as there were.

    Raises:
        ValueError: The block's language is not known, or a line of a shell block cannot be run.
    """
    if block.language == "python":
        return block.lines
    if block.language in SHELLS:
        return shell_lines(block)
    if block.language in SHOWN_ONLY or block.language.startswith("{"):  # of the site
        return [""] * len(block.lines)
    known = ", ".join(sorted({"python", *SHELLS, *SHOWN_ONLY}))
    raise ValueError(
        f"line {block.first_line - 1}: the block's language is '{block.language}': expected one "
        f"of {known}"
    )


def shell_lines(block: Block) -> list[str]:
    """A shell block as calls of the installed command, one line for each."""
    found: list[str] = []
    begun = ""
    for number, line in enumerate(block.lines, block.first_line):
        written = prompted(block, line, goes_on=bool(begun))
        begun += written.removesuffix("\\")
        complete = bool(begun.strip()) and not written.endswith("\\")
        found.append(call(begun, number) if complete else "")
        begun = "" if complete else begun
    return found


def prompted(block: Block, line: str, goes_on: bool) -> str:
    """The part of a line that a reader would type: no comment and no output."""
    if goes_on or (block.language == "bash" and not line.startswith("#")):
        return line
    return line[2:] if line.startswith("$ ") else ""


def call(line: str, number: int) -> str:
    """The Python line that runs a shell line through the installed command."""
    words = shlex.split(line, comments=True)
    if words[0] != "stepwell" or {"|", "&&", ";", ">", "&"} & set(words):
        raise ValueError(
            f"line {number}: only a plain `stepwell ...` command can be run; mark the block with "
            "<!-- not run: reason --> on the line above it"
        )
    program = Path(sysconfig.get_path("scripts")) / "stepwell"
    return f"__import__('subprocess').run({[str(program), *words[1:]]!r}, check=True)"


if __name__ == "__main__":  # shows what would be run
    sys.stdout.write(script(Path(sys.argv[1]).read_text(encoding="utf-8")))
