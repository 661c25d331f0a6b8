"""`publish` creates a complete folder or file or none, and removes only its own files."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers.base.errors import StoreLocked, StoreNotFound
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.publish import Kind, check_complete, publish
from support.crash.other_processes import line_of, python

KINDS: tuple[Kind, ...] = ("folder", "file")


def tree() -> dict[str, bytes | str | None]:
    """Everything in the working folder, and what it holds; None stands for a folder."""
    found = dict[str, bytes | str | None]()
    for path in sorted(Path().rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        else:
            found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


def fill(part: Path) -> None:
    """Write something that a crash could leave in part."""
    if part.is_dir():
        (part / "inner").mkdir()
        (part / "inner" / "a").write_text("A")
        (part / "b").write_text("B")
    else:
        part.write_text("AB")


def make(target: str | Path, kind: Kind = "folder") -> None:
    with publish(Path(target), "a test", kind=kind) as part:
        fill(part)


def whole(kind: Kind, name: str) -> dict[str, bytes | str | None]:
    if kind == "file":
        return {name: b"AB"}
    return {name: None, f"{name}/b": b"B", f"{name}/inner": None, f"{name}/inner/a": b"A"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_appears_when_the_block_has_succeeded(kind: Kind) -> None:
    with publish(Path("x"), "a test", kind=kind) as part:
        fill(part)
        assert not Path("x").exists()
        assert part.parent == Path("x.part")
    assert tree() == whole(kind, "x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nothing_is_left(kind: Kind, error: type[BaseException]) -> None:
    with (  # noqa: PT012  # the order matters
        pytest.raises(error) as caught,
        publish(Path("a/b/x"), "a test", kind=kind) as part,
    ):
        fill(part)
        raise error
    assert caught.value.__notes__ == ["kept: nothing"]
    assert tree() == {}


def test_the_folder_that_a_link_names_is_replaced_and_the_link_stays() -> None:
    Path("there").mkdir(mode=0o750)
    Path("x").symlink_to("there")
    make("x")
    assert tree() == {**whole("folder", "there"), "x": "there"}
    assert stat.S_IMODE(Path("there").stat().st_mode) == 0o750
    with pytest.raises(ZeroDivisionError), publish(Path("y"), "a test"):
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", "a/new"])
def test_links_in_a_circle_are_refused(name: str, kind: Kind) -> None:
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    before = tree()
    with (
        pytest.raises(ValueError, match=r"^a\b.* expected a new|^a: expected a folder"),
        publish(Path(name), "a test", kind=kind, outside=Path("elsewhere")),
    ):
        raise AssertionError
    assert tree() == before


def test_the_root_of_a_filesystem_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "disk")
    with pytest.raises(ValueError, match=r"\bdisk: .*root.* disk/new\b"):
        make("disk")
    assert tree() == {"disk": None}


def text(path: str, contents: str = "") -> Callable[[], object]:
    return lambda: Path(path).write_text(contents)


def folder(path: str) -> Callable[[], object]:
    return lambda: Path(path).mkdir()


DEAD = "pid 1 on host since then\na test\n"
LEFT: dict[str, list[Callable[[], object]]] = {
    "before the lock": [],
    "while the lock is signed": [text("x.part/UNFINISHED", DEAD[:2])],
    "by a loss of power": [text("x.part/UNFINISHED", "\0" * len(DEAD))],
    "a folder": [
        text("x.part/UNFINISHED", DEAD),
        folder("x.part/.new"),
        text("x.part/.new/data", "old"),
    ],
    "a file": [text("x.part/UNFINISHED", DEAD), text("x.part/.new", "old")],
}


@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite", "fsync"])
def test_a_failure_before_the_block_leaves_nothing(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    does: Callable[..., Any] = getattr(os, call)

    def fails(first: object, *more: Any, **options: Any) -> Any:
        if call == "open" and first != "UNFINISHED":
            return does(first, *more, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENOSPC}\]"):
        make("new/x")
    assert tree() == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", LEFT)
def test_the_remains_of_a_killed_process_are_replaced(left: str, kind: Kind) -> None:
    for step in (folder("x.part"), *LEFT[left]):
        step()
    make("x", kind)
    assert tree() == whole(kind, "x")


def linked(path: str, to: str) -> Callable[[], object]:
    return lambda: Path(path).symlink_to(to)


PRECIOUS = {"own": None, "own/notes": b"precious", "own/pid": b"pid 7 is precious"}
FOREIGN: dict[str, tuple[list[Callable[[], object]], str]] = {
    "a file": ([text("x.part", "precious")], "file or a link"),
    "a folder in use": ([folder("x.part"), text("x.part/notes", "precious")], "notes"),
    "remains with a foreign file": (
        [
            folder("x.part"),
            text("x.part/UNFINISHED", DEAD),
            text("x.part/.new", "old"),
            text("x.part/notes", "precious"),
        ],
        "notes",
    ),
    "a lock that is a link": (
        [folder("x.part"), linked("x.part/UNFINISHED", "../own/pid")],
        "another UNFINISHED",
    ),
    "a lock file of the user": (
        [folder("x.part"), text("x.part/UNFINISHED", "precious")],
        "another UNFINISHED",
    ),
    "a lock that is a pipe": (
        [folder("x.part"), lambda: os.mkfifo("x.part/UNFINISHED")],
        "another UNFINISHED",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_never_touched(name: str, kind: Kind) -> None:
    steps, got = FOREIGN[name]
    for step in (
        folder("own"),
        text("own/notes", "precious"),
        text("own/pid", "pid 7 is precious"),
    ):
        step()
    for step in steps:
        step()
    before = tree()
    with pytest.raises(ValueError, match=rf"\bx\.part\b.*{re.escape(got)}\b"):
        make("x", kind)
    assert tree() == before
    assert {path: before[path] for path in PRECIOUS} == PRECIOUS


def test_a_link_in_the_remains_is_removed_and_not_followed() -> None:
    for step in (folder("own"), text("own/notes", "precious"), folder("x.part")):
        step()
    text("x.part/UNFINISHED", DEAD)()
    linked("x.part/.new", "../own")()
    make("x")
    assert tree() == {**whole("folder", "x"), "own": None, "own/notes": b"precious"}


def test_files_that_others_add_meanwhile_stay() -> None:
    with publish(Path("x"), "a test") as part:
        fill(part)
        Path("x.part/notes").write_text("precious")
    assert tree() == {**whole("folder", "x"), "x.part": None, "x.part/notes": b"precious"}


HOLDER = """
import sys
from pathlib import Path
from stepwell.buffers.storage.disk.publish import publish
with publish(Path(sys.argv[1]), "a test") as part:
    (part / "data").write_text("half")
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.mark.proof
def test_a_running_process_is_named_and_a_killed_one_replaced() -> None:
    with python(HOLDER, "x") as process:
        assert line_of(process) == "begun"
        before = tree()
        with pytest.raises(StoreLocked, match=rf"\bx .*\bpid {process.pid} on .* since \d"):
            make("x")
        with pytest.raises(StoreNotFound, match=rf"x\.part/\.new .*\bpid {process.pid} on "):
            check_complete(Path("x.part/.new"))
        assert tree() == before
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(StoreNotFound, match=r"x\.part .*killed.*/x\b"):
            check_complete(Path("x.part"))
        make("x")
    assert tree() == whole("folder", "x")


@pytest.mark.parametrize("what", ["the lock", "the folder"])
def test_a_lock_that_another_process_has_removed_is_taken_again(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = Files.lock, [0]

    def removed(self: Files, file: io.FileIO) -> bool:
        calls[0] += 1
        if calls[0] == 1:  # its owner ends between opening and locking
            Path("x.part/UNFINISHED").unlink()
            if what == "the folder":
                Path("x.part").rmdir()
        return lock(self, file)

    monkeypatch.setattr(Files, "lock", removed)
    with publish(Path("x"), "a test") as part:
        fill(part)
        with pytest.raises(StoreLocked, match=rf"\bx .*\bpid {os.getpid()} on"):
            make("x")
    assert tree() == whole("folder", "x")


def test_a_target_that_another_process_creates_meanwhile_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = Files.lock

    def made(self: Files, file: io.FileIO) -> bool:
        Path("x").mkdir(exist_ok=True)
        Path("x/data").write_text("of another")
        return lock(self, file)

    monkeypatch.setattr(Files, "lock", made)
    with pytest.raises(ValueError, match=r"\bx\b.*empty"), publish(Path("x"), "a test"):
        pytest.fail("too late")
    assert tree() == {"x": None, "x/data": b"of another"}


@pytest.mark.parametrize("is_left", [False, True])
def test_remains_are_not_replaced_where_files_cannot_be_locked(
    is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    if not is_left:
        make("x")
        assert tree() == whole("folder", "x")
        return
    Path("x.part").mkdir()
    text("x.part/UNFINISHED", DEAD)()
    before = tree()
    with pytest.raises(ValueError, match=r"\bx\.part\b.*locked.*\ba test\b"):
        make("x")
    assert tree() == before


def test_an_interrupt_after_the_rename_reports_a_complete_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rename = os.rename

    def interrupted(*names: Any) -> None:
        rename(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        make("x")
    (note,) = caught.value.__notes__
    assert re.search(r"^kept: .*\bx$", note)
    assert tree() == whole("folder", "x")


def test_remains_next_to_a_complete_target_are_reported_as_removable() -> None:
    make("x")
    folder("x.part")()
    text("x.part/UNFINISHED", DEAD)()
    with pytest.raises(StoreNotFound, match=r"\bx\.part .*\bx,.*remove"):
        check_complete(Path("x.part"))


def test_a_store_may_have_a_name_with_the_suffix_part() -> None:
    for step in (folder("x.part"), text("x.part/manifest.json"), text("x.part/LOCK", DEAD)):
        step()
    check_complete(Path("x.part"))
    check_complete(Path("x"))
    check_complete(Path("nowhere.part"))
