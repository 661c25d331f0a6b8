"""Stores that come, grow, break and go while they are served."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from stepwell.buffers import Chunk, DiskStorage, StoreNotFound
from stepwell.buffers.rows.episode import End
from stepwell.buffers.view.server import stores as served
from stepwell.buffers.view.server.stores import Stores
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import spoil
from support.served import SPEC, Played, Viewer, rows_of, write_store


def wait_for(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_REFRESH_SECONDS", 0.02)


def chunk(episode: int, first_row: int, count: int, end: End = End.NONE) -> Chunk:
    rows = {
        name: each[first_row:]
        for name, each in rows_of(episode, [1.0] * (first_row + count)).items()
    }
    return Chunk(episode, 0, first_row, end, rows)


def test_a_store_that_is_written_grows_on_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    with Viewer(folder) as viewer:
        viewer.stores.start()
        (facts,) = viewer.get("/api/stores")["stores"]
        assert str(folder) in facts["error"]
        assert viewer.get("/api/episodes")["rows"] == []
        assert viewer.ask("/api/episodes/0/0").status == 409
        with DiskStorage.create(folder, SPEC, files=NoSyncFiles()) as storage:
            storage.add([chunk(0, 0, 5)])
            wait_for(lambda: viewer.stores.stores[0].now is not None)
            wait_for(lambda: viewer.get("/api/stores")["stores"][0]["episodes"] == 1)
            (facts,) = viewer.get("/api/stores")["stores"]
            assert (facts["error"], facts["steps"], facts["is_being_written"]) == (None, 4, True)
            episode = viewer.get("/api/episodes/0/0")
            assert (episode["rows"], episode["is_open"]) == (5, True)
            version = viewer.stores.version
            storage.add([chunk(0, 5, 70, End.TERMINATED), chunk(1, 0, 3)])
            wait_for(lambda: viewer.get("/api/stores")["stores"][0]["episodes"] == 2)
            wait_for(lambda: viewer.stores.version > version)
            grown = viewer.get("/api/episodes/0/0")
            assert (grown["rows"], grown["is_open"], grown["return"]) == (75, False, 75.0)
            # The old address still shows the rows that it named, the new one the others.
            tag = episode["images"][0]["tag"]
            assert grown["images"][0]["tag"] == tag
            old = viewer.ask(f"/frames/0/0/0/0.webp?tag={tag}&rows=5")
            new = viewer.ask(f"/frames/0/0/0/0.webp?tag={tag}&rows=75")
            assert (old.status, new.status) == (200, 200)
            assert old.body != new.body
        wait_for(lambda: not viewer.get("/api/stores")["stores"][0]["is_being_written"])
        wait_for(lambda: viewer.get("/api/stores")["stores"][0]["returns_known"] == 2)


def test_a_store_that_is_deleted_and_replaced(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store", [Played([0, 1])] * 3)
    with Viewer(folder) as viewer:
        viewer.stores.start()
        tag = viewer.get("/api/episodes/0/0")["images"][0]["tag"]
        shutil.rmtree(folder)
        wait_for(lambda: viewer.get("/api/stores")["stores"][0]["error"] is not None)
        assert viewer.get("/api/episodes")["rows"] == []
        reply = viewer.ask("/api/episodes/0/0")
        assert (reply.status, str(folder) in reply.json["error"]) == (409, True)
        write_store(folder, [Played([0, 2])])
        wait_for(lambda: viewer.get("/api/stores")["stores"][0]["episodes"] == 1)
        assert viewer.get("/api/stores")["stores"][0]["error"] is None
        assert viewer.get("/api/episodes/0/0")["return"] == 2.0
        assert viewer.ask(f"/frames/0/0/0/0.webp?tag={tag}").status == 404


@pytest.mark.parametrize("name", ["manifest.json", "segment-00000000.bin"])
def test_a_store_whose_files_are_no_store(tmp_path: Path, name: str) -> None:
    folder = write_store(tmp_path / "store", [Played([0, 1])])
    (folder / name).write_bytes(b"{" * 5_000)
    with Viewer(folder, write_store(tmp_path / "good", [Played([0, 1])])) as viewer:
        broken, good = viewer.get("/api/stores")["stores"]
        assert good["error"] is None
        assert broken["error"] or broken["lost_chunks"]
        assert viewer.get("/api/episodes")["matching"] == 1


def damaged_store(path: Path) -> Path:
    """Two episodes; rows 7 to 13 of the first one cannot be read."""
    folder = write_store(path, [Played([0.0] + [1.5] * 20), Played([0, 1])])
    with DiskStorage.open(folder, read_only=True) as storage:
        spoil(storage, 1)
    return folder


def test_damaged_chunks_are_left_out_and_counted(tmp_path: Path) -> None:
    with Viewer(damaged_store(tmp_path / "store")) as viewer:
        viewer.stores.start()
        wait_for(lambda: viewer.get("/api/stores")["stores"][0]["episodes"] == 3)
        assert viewer.get("/api/stores")["stores"][0]["lost_chunks"] == 1
        rows = viewer.get("/api/episodes")["rows"]
        assert [row[1:3] for row in rows] == [[0, 0], [0, 14], [1, 0]]
        part = viewer.get("/api/episodes/0/0?first_row=14")
        assert (part["first_row"], part["starts_late"]) == (14, True)
        assert viewer.ask("/frames/0/0/0/0.webp?first_row=14").status == 200


@pytest.mark.parametrize("path", ["/frames/1/0/0/0.webp", "/api/values/1/0/8"])
def test_a_request_that_finds_damage_says_so_once(tmp_path: Path, path: str) -> None:
    good = write_store(tmp_path / "good", [Played([0.0] + [1.5] * 20)])
    with Viewer(good, damaged_store(tmp_path / "bad")) as viewer:
        reply = viewer.ask(path)
        assert (reply.status, "7 to 13 of episode 0" in reply.json["error"]) == (409, True)
        for store in viewer.stores.stores:
            store.refresh()
        facts = viewer.get("/api/stores")["stores"]
        assert [store["lost_chunks"] for store in facts] == [0, 1]
        assert viewer.ask(path.replace("/8", "/3")).status == 200


@pytest.mark.proof
def test_requests_go_on_while_a_store_is_opened_again_and_again(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store", [Played([0, 1])] * 5)
    with Viewer(folder) as viewer:
        is_done = threading.Event()

        def reopen() -> None:
            while not is_done.is_set():
                viewer.stores.stores[0].close()
                viewer.stores.stores[0].refresh()

        thread = threading.Thread(target=reopen)
        thread.start()
        try:
            statuses = {
                viewer.ask(path).status
                for _ in range(30)
                for path in ("/api/episodes", "/api/episodes/0/0", "/frames/0/0/0/0.webp")
            }
        finally:
            is_done.set()
            thread.join()
        assert statuses <= {200, 409}
        assert 200 in statuses


def test_a_store_that_was_closed_is_not_read(tmp_path: Path) -> None:
    with Viewer(write_store(tmp_path / "store", [Played([0, 1])])) as viewer:
        (store,) = viewer.stores.stores
        opened = store.opened
        store.close()
        with pytest.raises(StoreNotFound, match="store"), opened.reading():
            raise AssertionError
        with pytest.raises(StoreNotFound, match="store"):
            assert store.opened


def test_names_are_short_and_different(tmp_path: Path) -> None:
    names = ("a/run", "b/run", "other", "other")
    paths = [tmp_path / name for name in names]
    bugs: list[Exception] = []
    found = Stores(paths, bugs.append)
    assert [each.name for each in found.stores] == ["a/run", "b/run", "other", "other (2)"]
    found.close()
