"""Commands with planted bugs, each of which faults at system calls must find."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from stepwell.buffers.bridges.formats import exporting
from stepwell.buffers.storage.disk import folder, repair
from stepwell.buffers.storage.disk.files import Files
from stepwell.collectors.cli import app, errors

__all__ = ["BUGS", "planted"]


class Bug(NamedTuple):
    """A bug, and what finds it.

    Args:
        plant: Puts it into this process.
        scenario: Name of the command.
        fault: Name of the fault.
    """

    plant: Callable[[], None]
    scenario: str
    fault: str


BUGS: dict[str, Bug] = {}


def bug(name: str, scenario: str, fault: str) -> Callable[[Callable[[], None]], None]:
    def note(plant: Callable[[], None]) -> None:
        BUGS[name] = Bug(plant, scenario, fault)

    return note


def planted(name: str, *arguments: str) -> None:
    """Run a command with a bug."""
    BUGS[name].plant()
    module, _, function = arguments[0].partition(":")
    if function:
        getattr(importlib.import_module(module), function)(*arguments[1:])
    else:
        sys.exit(app.main(arguments))


@bug("failed-syncs-are-passed-over", "collect", "an I/O error")
def _() -> None:
    for name in ("fsync", "fdatasync", "fsync_folder"):
        put(Files, name, without_errors(getattr(Files, name)))


@bug("failed-writes-are-passed-over", "repair --yes", "no room once")
def _() -> None:
    def pwrite(self: Files, file: io.FileIO, data: memoryview, offset: int) -> int:
        with contextlib.suppress(OSError):
            return write(self, file, data, offset)
        return len(data)

    write = Files.pwrite
    put(Files, "pwrite", pwrite)


@bug("files-are-written-in-place", "checkpoints", "kill")
def _() -> None:
    def replace_file(files: Files, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    put(folder, "replace_file", replace_file)


@bug("exports-have-their-name-from-the-start", "export npz", "kill")
def _() -> None:
    @contextlib.contextmanager
    def publish(target: Path, *_: object, **__: object) -> Generator[Path]:
        target.mkdir(exist_ok=True)
        yield target

    put(exporting, "publish", publish)


@bug("imports-stay-after-an-error", "import npz", "an I/O error")
def _() -> None:
    put(shutil, "rmtree", lambda *arguments, **options: None)


@bug("more-is-said-to-be-kept-than-there-is", "collect", "Ctrl-C")
def _() -> None:
    def more(error: BaseException) -> str:
        return re.sub("[0-9]+", lambda steps: str(int(steps[0]) + 1), kept(error) or "", count=1)

    kept = errors._kept
    put(errors, "_kept", more)


@bug("damaged-files-are-not-kept", "repair --yes", "kill")
def _() -> None:
    put(repair._Repair, "_keep", lambda self, path: None)


@bug("errors-of-the-system-are-tracebacks", "import memmap-replay-buffer", "a full disk")
def _() -> None:
    put(errors, "sentence_of", lambda error: None)


def put(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def without_errors(method: Callable[..., None]) -> Callable[..., None]:
    def called(*arguments: object) -> None:
        with contextlib.suppress(OSError):
            method(*arguments)

    return called
