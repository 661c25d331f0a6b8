"""Run code in another process: a fork of this one, or a new Python."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path


def in_fork(action: Callable[[], object]) -> str:
    """Run an action in a forked child, and return its result or its error as text."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = attempt(action)
            with open(target, "w") as pipe:
                pipe.write(text)
        finally:
            os._exit(0)
    os.close(target)
    with open(source) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def attempt(action: Callable[[], object]) -> str:
    """Run an action, and return its result or its error as text."""
    try:
        return str(action())
    except BaseException as error:  # whatever it is: the caller compares the text
        return f"{type(error).__name__}: {error}"


def as_other_user(action: Callable[[], object]) -> str:
    """Run an action in a fork without the rights of root, who can write every file."""

    def without_rights() -> object:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return action()

    return in_fork(without_rights)


@contextlib.contextmanager
def python(code: str, *arguments: str | Path) -> Generator[subprocess.Popen[str]]:
    """Run code in a new process, which is killed at the end of the block if it still runs."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints; empty when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
