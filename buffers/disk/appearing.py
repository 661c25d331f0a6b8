"""Files and folders that appear under their name when they are complete, and else not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Literal

from stepwell.buffers.disk.files import Files, check_platform
from stepwell.buffers.errors import StoreFailed

__all__ = ["Kind", "appearing", "check_unused", "disk_bytes"]

Kind = Literal["folder", "file"]


@contextlib.contextmanager
def appearing(
    target: Path, doing: str, *, kind: Kind = "folder", outside: Path | None = None
) -> Generator[Path]:
    """A new folder or file that gets the target's name when all went well, and else is taken away.

    Until then it is called ``<target>.part``; what was written into it is on the medium before it
    gets its name.

    Args:
        target: A path where nothing is, or an empty folder where a folder is to appear.
        doing: What is going on, as in "what a conversion has left".
        kind: What appears.
        outside: A folder in which the target must not lie.

    Raises:
        ValueError: The target is in use, or in ``outside``, or somebody else is writing it.
    """
    check_platform()
    is_inside = outside is not None and target.absolute().resolve().is_relative_to(
        outside.resolve()
    )
    if target.name in ("", "..") or is_inside:
        where = "" if outside is None else f", outside of {outside}"
        raise ValueError(
            f"{target}: expected a {kind} with a name of its own{where}, got another path; choose "
            f"another {kind}"
        )
    check_unused(target, kind)
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.mkdir() if kind == "folder" else part.open("x").close()
    except FileExistsError:
        raise ValueError(
            f"{part} is there already: expected none, got what {doing} has left that was killed or "
            f"is running still; remove it if none is running"
        ) from None
    try:
        yield part
        _settle(part)
        check_unused(target, kind)
        os.rename(part, target)  # in place of an empty folder, but never of another one
        Files().fsync_folder(target.parent)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True) if kind == "folder" else part.unlink(True)
        if isinstance(error, StoreFailed):  # its words are of a store that is still there
            why = error.__cause__ or error
            raise StoreFailed(
                f"{target} was not made ({getattr(why, 'strerror', None) or why}), and nothing of "
                f"it is left; cure the cause, then begin anew"
            ) from error
        raise


def check_unused(target: Path, kind: Kind = "folder") -> None:
    """Refuse a path at which something is.

    Raises:
        ValueError: There is something; an empty folder is fine where a folder is to appear.
    """
    if target.is_dir() and not target.is_symlink():
        if kind == "folder" and not any(target.iterdir()):
            return
        got = "is not empty" if kind == "folder" else "is a folder"
    elif target.exists() or target.is_symlink():
        got = "is a file or a link" if kind == "folder" else "is there already"
    else:
        return
    expected = "a new or an empty folder" if kind == "folder" else "a new file"
    raise ValueError(f"{target} {got}: expected {expected}; choose another {kind}")


def disk_bytes(path: Path) -> int:
    """Bytes of the disk that a file, or all files in a folder, take."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(getattr(file.stat(), "st_blocks", 0) * 512 for file in files)


def _settle(part: Path) -> None:
    """Wait until all that was written is on the medium."""
    files = Files()
    paths = [part, *part.rglob("*")] if part.is_dir() else [part]
    for path in paths:
        if path.is_dir():
            files.fsync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
