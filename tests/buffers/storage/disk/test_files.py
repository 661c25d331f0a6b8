"""The system calls: locks, complete writes, replaced files."""

from __future__ import annotations

import errno
import io
import os
import signal
from pathlib import Path

import pytest

from stepwell.buffers.storage.disk.files import Files, replace_file, write_at
from support.crash.other_processes import line_of, python


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class Short(Files):
        def pwrite(self, file: io.FileIO, data: memoryview, offset: int) -> int:
            return super().pwrite(file, data[:3], offset)

    with Files().open_to_write(tmp_path / "a") as file:
        write_at(Short(), file, b"abcdefgh", 2)
    assert (tmp_path / "a").read_bytes() == b"\0\0abcdefgh"


def test_what_a_crash_left_is_replaced_and_not_emptied(tmp_path: Path) -> None:
    """It may have a second name elsewhere."""
    (tmp_path / "own").write_bytes(b"mine")
    os.link(tmp_path / "own", tmp_path / "a.tmp")
    replace_file(Files(), tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "own").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a", "own"]


def test_mapped_bytes_are_read_only_and_stay_after_their_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    with Files().open(tmp_path / "a") as file:
        memory = Files().map(file)
    Files().unlink(tmp_path / "a")
    assert bytes(memory) == b"abcdef"
    assert not memory.flags.writeable


def test_allocated_bytes_are_reserved_on_the_disk(tmp_path: Path) -> None:
    with Files().open_to_write(tmp_path / "a") as file:
        Files().allocate(file, 1 << 20)
        assert Files().size(file) == 1 << 20
        if hasattr(os, "posix_fallocate"):
            assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20


def test_without_fallocate_the_free_disk_space_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    with Files().open_to_write(tmp_path / "a") as file:
        Files().allocate(file, 5_000)
        Files().fdatasync(file)
        assert Files().size(file) == 5_000
        with pytest.raises(OSError, match=rf"\[Errno {errno.ENOSPC}\]"):
            Files().allocate(file, 1 << 60)


HOLDER = """
import os, sys, time
from pathlib import Path
from stepwell.buffers.storage.disk.files import Files
file = Files().open_to_write(Path(sys.argv[1]))
assert Files().lock(file)
if os.fork() == 0:
    print(os.getpid(), flush=True)  # the child has closed its copy of the lock by now
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.proof
def test_forked_workers_of_a_killed_writer_do_not_keep_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    with python(HOLDER, path) as holder:
        worker = int(line_of(holder))
        try:
            with Files().open_to_write(path) as file:
                assert not Files().lock(file)
                holder.kill()
                holder.wait()
                os.kill(worker, 0)  # it is still running
                assert Files().lock(file)
        finally:
            os.kill(worker, signal.SIGKILL)
