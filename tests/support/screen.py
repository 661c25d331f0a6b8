"""A terminal: what its screen shows after a program wrote to it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

_CODE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b|[^\x1b]")


class Screen:
    """The few control codes that live lines need, one by one; any other one is an error."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0
        self.has_cursor = True
        self.frames: list[list[str]] = []

    def write(self, text: str) -> Screen:
        """Do what the text says."""
        for found in _CODE.finditer(text):
            if found[2]:
                self._control(found[1], found[2])
            elif found[0] == "\x1b":
                raise ValueError(f"not known: {text[found.start() : found.start() + 9]!r}")
            elif found[0] == "\r":
                self.column = 0
            elif found[0] == "\n":
                self._down()
            else:
                self._put(found[0])
        return self

    @property
    def text(self) -> list[str]:
        """The lines, less the empty ones at the end."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.column = 0
            self._down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _control(self, numbers: str, letter: str) -> None:
        if (numbers, letter) == ("2", "K"):
            self.frames.append(self.text)  # what was there before it goes
            self.lines[self.row] = ""
        elif letter == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif numbers == "?25":
            self.has_cursor = letter == "h"
        elif letter != "m":
            raise ValueError(f"not known: {numbers}{letter}")


@dataclass(frozen=True, slots=True)
class Shown:
    """The end of a program in a terminal."""

    code: int  # its exit code
    raw: str  # all that it wrote to the terminal
    screen: Screen  # the screen at the end
    output: str  # all that it wrote to standard output, where that is a pipe


def in_terminal(
    program: str,
    *,
    columns: int = 100,
    term: str = "xterm",
    is_output_piped: bool = False,
    folder: Path | None = None,
) -> Shown:
    """Run a Python program whose standard error, and output, are a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": term}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=slave,
        stdout=subprocess.PIPE if is_output_piped else slave,
        stderr=slave,
        env=environment,
        cwd=folder,
    )
    os.close(slave)
    raw = b""
    try:
        while data := os.read(master, 65536):
            raw += data
    except OSError:  # the terminal's other end was closed
        pass
    os.close(master)
    output = ""
    if process.stdout is not None:
        with process.stdout:
            output = process.stdout.read().decode()
    code = process.wait(timeout=60)
    return Shown(code, raw.decode(), Screen(columns).write(raw.decode()), output)
