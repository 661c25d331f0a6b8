"""One process writes a store at a time; the error for a second writer names the first."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from stepwell.buffers import DiskStorage, SequenceReplayBuffer, StoreCorrupt, StoreLocked
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.testing import assert_holds, chunk_of
from support.crash.disk_faults import NoSyncFiles
from support.crash.other_processes import attempt, in_fork
from support.disk_stores import contents, create, filled, reopen
from support.rows.labelled_rows import SPEC


def refusal(path: Path, pid: int) -> str:
    """A pattern of the error for a second writer."""
    return (
        rf"^{re.escape(str(path))} .*\bpid {pid} on {re.escape(socket.gethostname())} "
        r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\b.*read_only=True\b"
    )


def is_being_written(path: Path) -> bool:
    return StoreFolder(path, Files()).is_being_written


def test_a_second_writer_is_refused_in_the_same_process_and_in_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with create(path) as storage:
        error = in_fork(lambda: reopen(path))
        assert re.search(refusal(path, os.getpid()), error.removeprefix("StoreLocked: "))
        with pytest.raises(StoreLocked, match=refusal(path, os.getpid())):
            reopen(path)
        storage.add([chunk_of(0)])
    with reopen(path) as storage:
        assert_holds(storage, [chunk_of(0)])


def test_a_forked_child_may_read_but_not_write(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with create(path) as storage:
        storage.add([chunk_of(0)])
        before = contents(path)

        def use() -> str:
            assert_holds(storage, [chunk_of(0)])
            errors = [
                attempt(lambda: storage.add([chunk_of(1)])),
                attempt(lambda: storage.append_session({})),
            ]
            storage.close()
            assert errors[0] == errors[1]
            return errors[0]

        message = (
            rf"^StoreLocked: {re.escape(str(path))} .*\bpid {os.getpid()}\b.*\bfork \d+\b"
            r".*read_only=True\b"
        )
        assert re.search(message, in_fork(use))
        assert contents(path) == before
        with pytest.raises(StoreLocked):  # the child's close did not free the lock
            reopen(path)
        storage.add([chunk_of(1)])
    with reopen(path, read_only=True) as reader:
        assert_holds(reader, [chunk_of(0), chunk_of(1)])


def test_an_open_that_fails_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    filled(path)
    manifest = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(manifest[:-9])
    with pytest.raises(StoreCorrupt):
        reopen(path)
    (path / "manifest.json").write_bytes(manifest)
    reopen(path).close()


# --- is_being_written -----------------------------------------------------------------------------


def test_a_copy_of_a_store_is_not_being_written(tmp_path: Path) -> None:
    with create(tmp_path / "a"):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        shutil.copytree(tmp_path / "a", tmp_path / "c", ignore=lambda *_: {"LOCK"})
        assert not is_being_written(tmp_path / "b")
        assert not is_being_written(tmp_path / "c")
        assert not (tmp_path / "c" / "LOCK").exists()


def test_a_test_of_the_lock_does_not_make_an_opening_writer_fail(tmp_path: Path) -> None:
    path = tmp_path / "a"
    filled(path)

    class TestedLock(NoSyncFiles):
        """A reader tests the lock when it is tried for the first time."""

        tries: list[bool]

        def lock(self, file: io.FileIO) -> bool:
            with self.open(path / "LOCK") as tested:
                if not self.tries:
                    assert not self.is_locked(tested)
                self.tries.append(super().lock(file))
            return self.tries[-1]

    files = TestedLock()
    files.tries = []
    with DiskStorage.open(path, files=files):
        assert files.tries == [False, True]
        assert is_being_written(path)


def test_a_new_folder_that_another_process_writes_is_refused_with_its_pid(tmp_path: Path) -> None:
    first, second = (SequenceReplayBuffer(tmp_path / "a") for _ in range(2))
    first.bind(SPEC, {})
    with pytest.raises(StoreLocked, match=rf"{tmp_path}/a .*\bpid {os.getpid()} on "):
        second.bind(SPEC, {})
    first.close()
    with pytest.raises(ValueError, match=rf"{tmp_path}/a .*--resume\b"):
        second.bind(SPEC, {})
    with SequenceReplayBuffer(tmp_path / "a") as third:
        third.bind(SPEC, {})
        assert len(third.sessions) == 2


def test_a_folder_in_which_a_store_is_being_made_is_refused_with_the_pid(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "a", Files())
    folder.make()
    with folder.lock():
        with pytest.raises(StoreLocked, match=rf"{tmp_path}/a .*\bpid {os.getpid()} on "):
            SequenceReplayBuffer(tmp_path / "a").bind(SPEC, {})
    with SequenceReplayBuffer(tmp_path / "a") as replay:
        replay.bind(SPEC, {})
