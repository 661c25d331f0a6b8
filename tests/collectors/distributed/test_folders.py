"""Folders: where groups write, what is uploaded, which attempts count, and an object store down."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers import (
    DiskStorage,
    End,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreLocked,
    StoreNotFound,
)
from stepwell.buffers.bridges.publish import pull
from stepwell.buffers.exchange.publish.objects import Objects
from stepwell.buffers.exchange.publish.uploader import Uploader
from stepwell.buffers.testing import Recording, assert_holds, play
from stepwell.collectors.distributed import folders as folders_file
from stepwell.collectors.distributed.folders import Folders, GroupFolder, next_pause, sessions_in
from support.cloud.faulty_objects import Place
from support.disk_stores import create

pytest.importorskip("obstore")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"file://{tmp_path}/objects"


def folders(url: str, **more: float) -> Folders:
    return Folders(url, **{"seal_seconds": 1e-9, **more})  # type: ignore[arg-type]


def written(folder: GroupFolder, calls: int, seed: int = 0) -> str:
    """Write random rows as a group does, and return their digest."""
    with create(folder.path) as storage:
        rows = Recording()
        for _ in range(calls):
            storage.add([rows.chunk(0, 20, End.NONE)])
            folder.after_add(storage)
        replay = SequenceReplayBuffer.of(storage)
        return replay.digest()


def test_a_folder_has_a_store_for_each_group(tmp_path: Path) -> None:
    assert Folders(tmp_path / "runs").stores() == []
    for group in (3, 0, 12):
        folder = GroupFolder(str(tmp_path / "runs"), group, 0)
        assert folder.path == tmp_path / "runs" / f"group-{group:05}"
        written(folder, 3)
        folder.close()
    (tmp_path / "runs" / "group-00099").mkdir()  # no store
    (tmp_path / "runs" / "notes").mkdir()
    stores = Folders(tmp_path / "runs").stores()
    assert [Path(each).name for each in stores] == ["group-00000", "group-00003", "group-00012"]
    with SequenceReplayBuffer.open(stores, read_only=True) as replay:
        assert len(replay) > 0
    again = GroupFolder(Folders(tmp_path / "runs"), 3, 1)  # the same folder
    assert again.path == tmp_path / "runs" / "group-00003"


def test_groups_upload_their_stores_and_leave_nothing_behind(url: str, tmp_path: Path) -> None:
    digests: list[str] = []
    for group in range(2):
        folder = GroupFolder(folders(url), group, 0)
        digests.append(written(folder, 5, group))
        folder.close()
        assert not folder.path.exists()
    assert not [*(tmp_path / "cache").rglob("*.bin")]
    stores = Folders(url).stores()
    assert stores == [f"{url}/group-0000{group}/attempt-0" for group in range(2)]
    assert sessions_in(Folders(url)) == 0
    for number, (store, digest) in enumerate(zip(stores, digests, strict=True)):
        pull(store, tmp_path / f"{number}")
        with SequenceReplayBuffer.open(tmp_path / f"{number}", read_only=True) as replay:
            assert replay.digest() == digest
    with pytest.raises(StoreNotFound, match=re.escape(f"Folders({url!r}).stores()")):
        pull(url, tmp_path / "all")


def test_uploaded_rows_make_room_on_the_local_disk(url: str, tmp_path: Path) -> None:
    folder = GroupFolder(folders(url, most_local_bytes=60_000), 0, 0)
    with create(folder.path) as storage:
        rows = Recording()
        for _ in range(60):
            storage.add([rows.chunk(0, 20, End.NONE)])
            folder.after_add(storage)
            assert storage.nbytes <= 60_000
        total = storage.index.total_steps
        assert storage.index.steps < total
    folder.close()
    pull(Folders(url).stores()[0], tmp_path / "pulled")
    with SequenceReplayBuffer.open(tmp_path / "pulled", read_only=True) as replay:
        assert len(replay) == total
        assert replay.lost_chunks == 0


def test_an_attempt_that_began_is_not_begun_again(url: str) -> None:
    GroupFolder(folders(url), 5, 0).close()
    GroupFolder(folders(url), 6, 0).close()
    with pytest.raises(StoreLocked, match="attempt 0 of group 5"):
        GroupFolder(folders(url), 5, 0)
    GroupFolder(folders(url), 5, 2).close()
    with pytest.raises(StoreLocked, match="attempt 2 of group 5"):  # a zombie
        GroupFolder(folders(url), 5, 1)


def test_what_a_dead_attempt_has_not_uploaded_is_uploaded_by_the_next(
    url: str, tmp_path: Path
) -> None:
    dead = GroupFolder(folders(url, seal_seconds=1e9), 0, 0)
    with create(dead.path) as storage:
        chunks = play(storage, 4)
        dead.after_add(storage)  # nothing is sealed yet
        shutil.copytree(dead.path, tmp_path / "killed")
    assert dead._thread is not None
    dead._thread.stop()
    shutil.rmtree(dead.path)
    shutil.copytree(tmp_path / "killed", dead.path)
    assert Folders(url).stores() == []
    folder = GroupFolder(folders(url), 0, 1, supersedes=False)
    written(folder, 2)
    folder.close()
    assert not dead.path.exists()
    stores = Folders(url).stores()
    assert stores == [f"{url}/group-00000/attempt-{attempt}" for attempt in range(2)]
    pull(stores[0], tmp_path / "pulled")
    with DiskStorage.open(tmp_path / "pulled", read_only=True) as pulled:
        assert_holds(pulled, chunks)


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b"{}", b'{"group":0,"attempt":1,"supersedes":1}', b"9" * 100_000],
)
def test_a_damaged_record_is_told_with_its_name(record: bytes, url: str) -> None:
    GroupFolder(folders(url), 0, 0).close()
    Objects(url, is_writer=True).put("groups/group-00000-attempt-1.json", record)
    with pytest.raises(StoreCorrupt, match=r"groups/group-00000-attempt-1\.json"):
        Folders(url).stores()


def test_folders_refuse_what_makes_no_sense() -> None:
    nan = float("nan")
    options: list[dict[str, Any]] = [
        {"seal_seconds": 0},
        {"seal_seconds": nan},
        {"seal_seconds": "60"},
        {"most_local_bytes": 0},
    ]
    for wrong in options:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Folders("runs", **wrong)
    with pytest.raises(ValueError, match="path"):
        Folders("")
    with pytest.raises(TypeError, match="expected a folder or a URL, got 7"):
        Folders(7)  # type: ignore[arg-type]


# An object store that is down.


def test_pauses_grow_up_to_a_minute() -> None:
    pauses = [1.0]
    while len(pauses) < 9:
        pauses.append(next_pause(pauses[-1]))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_group_waits_while_too_much_is_not_uploaded(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    objects = place.connect()
    objects.is_down = True
    monkeypatch.setattr(folders_file, "Objects", lambda url, is_writer=False: objects)
    monkeypatch.setattr(folders_file, "_begin", lambda *arguments, **more: None)
    monkeypatch.setattr(folders_file, "_WAIT_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "stepwell")
    folder = GroupFolder(folders(url, most_local_bytes=30_000), 0, 0)
    with create(folder.path) as storage:
        written_steps: list[int] = []
        is_done = threading.Event()

        def write() -> None:
            rows = Recording()
            for _ in range(40):
                storage.add([rows.chunk(0, 20, End.NONE)])
                folder.after_add(storage)
                written_steps.append(storage.index.total_steps)
            is_done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while "group 0 waits" not in caplog.text:
            assert not is_done.wait(0.01)
        waiting = len(written_steps)
        assert not is_done.wait(0.3)
        assert len(written_steps) == waiting < 40
        assert storage.nbytes < 100_000
        objects.is_down = False
        assert is_done.wait(60)
        writer.join()
        assert storage.index.total_steps == written_steps[-1]
        assert folder._thread is not None
        assert folder._thread.trouble is None
    folder.close()
    assert "trying again" in caplog.text
    assert "work again" in caplog.text
    assert any(name.startswith("manifests/") for name in place.objects)


def test_rows_that_cannot_be_uploaded_stay_and_the_error_says_where(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Place().connect()
    monkeypatch.setattr(folders_file, "Objects", lambda url, is_writer=False: objects)
    folder = GroupFolder(folders(url), 0, 0)
    objects.is_down = True
    with create(folder.path) as storage:
        chunks = play(storage, 2)
        folder.after_add(storage)
    with pytest.raises(ConnectionError, match=rf"stepwell push {folder.path} {url}/group-00000"):
        folder.close(seconds=0.1)
    with DiskStorage.open(folder.path, read_only=True) as kept:
        assert_holds(kept, chunks)


def test_another_uploader_ends_the_group_at_its_next_call(url: str) -> None:
    folder = GroupFolder(folders(url), 0, 0)
    assert folder.url is not None
    with create(folder.path) as storage:
        play(storage, 1)
        folder.after_add(storage)
        thread = folder._thread
        assert thread is not None
        while not Folders(url).stores():
            thread.wait(0.01)
        Uploader(folder.path, Objects(folder.url)).upload()  # it takes over
        storage.append_session({"began": "now"})
        with pytest.raises(StoreLocked, match="was written by another process"):
            _write_until_refused(folder, storage)
    with pytest.raises(StoreLocked):
        folder.close()
    assert folder.path.exists()


def _write_until_refused(folder: GroupFolder, storage: DiskStorage) -> None:
    while True:
        folder.after_add(storage)
        assert folder._thread is not None
        folder._thread.wait(0.01)
