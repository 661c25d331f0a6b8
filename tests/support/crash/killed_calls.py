"""Runs something in a process of its own that is killed at one of its changing system calls."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

CALLS = (
    *("mkdir", "rename", "replace", "unlink", "rmdir", "link", "chmod"),
    *("fsync", "fdatasync", "ftruncate", "pwrite", "posix_fallocate"),
)
"""System calls that change something, but for those that open a file."""


def killed_at(number: int | None, work: Callable[[], object], seed: int = 0) -> int:
    """Run something until its n-th changing call, where SIGKILL ends it: before, within or after.

    Args:
        number: Of the call, from 0 on; None runs it to its end.
        work: What to run.
        seed: Of what is done of the last call.

    Returns:
        The number of calls when it came to its end; -1 where it was killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _be_child(writing, number, work, seed)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return -1
    assert text.isdecimal(), f"the child failed: {text}"
    return int(text)


def _be_child(pipe: int, number: int | None, work: Callable[[], object], seed: int) -> NoReturn:
    """Never return into the test that was forked."""
    text = ""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        count = [0]
        rng = random.Random(f"{seed}-{number}")
        for name in CALLS:
            setattr(os, name, _deadly(name, getattr(os, name), number, count, rng))
        work()
        text = str(count[0])
    except BaseException:
        text = traceback.format_exc()
    finally:
        os.write(pipe, text.encode())
        os._exit(1)


def _deadly(
    name: str, real: Callable[..., Any], number: int | None, count: list[int], rng: random.Random
) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if number is None or count[0] <= number:
            return real(*arguments, **options)
        if rng.random() < 0.5:
            if name == "pwrite":
                file, data, offset = arguments
                arguments = file, bytes(data)[: rng.randint(0, len(data))], offset
            real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("survived SIGKILL")

    return call


def tree(folder: Path = Path()) -> dict[str, bytes | str | None]:
    """Everything in a folder, and what it holds; None stands for a folder."""
    return {str(path.relative_to(folder)): _contents(path) for path in sorted(folder.rglob("*"))}


def _contents(path: Path) -> bytes | str | None:
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else None
