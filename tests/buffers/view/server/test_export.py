"""New stores that the page writes: below one folder, whole or not at all, never over another."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from stepwell.buffers import SequenceReplayBuffer, verify
from stepwell.buffers.curation.copy import CopyReport, copy_episodes
from stepwell.buffers.view.server import export
from support.served import HOST, Played, Reply, Viewer, write_store

HEADERS = [
    ("origin", f"http://{HOST}"),
    ("sec-fetch-site", "same-origin"),
    ("content-type", "application/json; charset=utf-8"),
]


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    episodes = [Played([0.0, *[1.0] * number], metadata={"n": number}) for number in range(1, 9)]
    store = write_store(tmp_path / "store", episodes)
    with Viewer(store, exports=tmp_path / "exports") as viewer:
        yield viewer


def post(viewer: Viewer, wish: Any) -> Reply:
    body = wish if isinstance(wish, bytes) else json.dumps(wish).encode()
    return viewer.ask("/api/exports", "POST", HEADERS, body)


def finished(viewer: Viewer) -> list[dict[str, Any]]:
    stop = time.monotonic() + 20
    while True:
        jobs: list[dict[str, Any]] = viewer.get("/api/exports")["exports"]
        if all(job["state"] not in ("waiting", "running") for job in jobs):
            return jobs
        assert time.monotonic() < stop
        time.sleep(0.01)


def test_the_episodes_of_a_filter_become_a_store(viewer: Viewer, tmp_path: Path) -> None:
    assert viewer.get("/api/stores")["exports"] == str(tmp_path / "exports")
    reply = post(viewer, {"name": "best", "store": 0, "filter": {"min_return": "6", "where": []}})
    assert reply.status == 202
    (job,) = finished(viewer)
    target = tmp_path / "exports" / "best"
    assert (job["state"], job["error"], job["path"]) == ("done", None, str(target))
    assert (job["episodes"], job["chosen_episodes"], job["steps"]) == (3, 3, 21)
    assert verify(target).is_whole
    with SequenceReplayBuffer.open(target, read_only=True) as replay:
        assert [episode.total_reward for episode in replay.iter_episodes()] == [6.0, 7.0, 8.0]
        facts = replay.storage.sessions[-1]
    assert facts["command"] == "filter"
    assert facts["conditions"] == {"min_return": 6.0}
    post(viewer, {"name": "top", "filter": {"top": "2", "rank": "n"}})  # as the table shows
    assert {job["state"] for job in finished(viewer)} == {"done"}
    with SequenceReplayBuffer.open(tmp_path / "exports" / "top", read_only=True) as replay:
        assert sorted(episode.steps for episode in replay.iter_episodes()) == [7, 8]


@pytest.mark.parametrize("kind", ["empty", "file", "dangling", "store"])
def test_what_is_there_is_never_overwritten(viewer: Viewer, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "exports" / "taken"
    target.parent.mkdir()
    if kind == "file":
        target.write_text("mine")
    elif kind == "dangling":
        target.symlink_to(tmp_path / "nothing")
    elif kind == "store":
        write_store(target, [Played([0, 1])])
    else:
        target.mkdir()
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    reply = post(viewer, {"name": "taken"})
    assert (reply.status, str(target) in reply.json["error"]) == (400, True)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


NAMES = ["", "..", ".hidden", "-rf", "a/b", "/tmp/out", "a b", "\u0430", "best.part", None, 7]
BODIES = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"name": "best", "store": "0"}',
    b'{"name": "best", "store": 1e400}',
    b'{"name": "best", "out": "/tmp"}',
    b'{"name": "best", "filter": []}',
    b'{"name": "best", "filter": {"where": {"a": 1}}}',
    b'{"name": "best", "filter": {"ids": "99"}}',
    b'{"name": "best", "filter": {"min_return": "nan"}}',
    b'{"name": "best", "x": "' + b"y" * 20_000 + b'"}',
    b'{"name": "best", "store": ' + b"9" * 5_000 + b"}",
]


@pytest.mark.parametrize(
    ("wish", "status", "said"),
    [
        *((body, 400, "") for body in BODIES),
        *(({"name": name, "store": 0}, 400, "name: ") for name in NAMES),
        *(({"name": "best", "store": store}, 404, "") for store in (1, -1)),
    ],
)
def test_what_is_no_wish_is_refused(
    viewer: Viewer, tmp_path: Path, wish: Any, status: int, said: str
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    reply = post(viewer, wish)
    assert reply.status == status, reply.body
    assert reply.json["error"].startswith(said)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert viewer.get("/api/exports") == {"exports": []}


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    with Viewer(write_store(tmp_path / "store", [Played([0, 1])])) as viewer:
        assert viewer.get("/api/stores")["exports"] is None
        reply = post(viewer, {"name": "best"})
        assert (reply.status, "--exports" in reply.json["error"]) == (400, True)


def test_an_end_of_the_server_leaves_no_half_store(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_running, may_go_on = threading.Event(), threading.Event()
    copy = copy_episodes

    def slow(source: Any, target: Any, *, progress: Any, **more: Any) -> CopyReport:
        def wait(report: CopyReport) -> None:
            is_running.set()
            may_go_on.wait(20)
            progress(report)

        return copy(source, target, progress=wait, **more)

    monkeypatch.setattr(export, "copy_episodes", slow)
    post(viewer, {"name": "one"})
    post(viewer, {"name": "two"})
    assert is_running.wait(20)
    assert viewer.get("/api/exports")["exports"][1]["state"] == "running"
    assert post(viewer, {"name": "one"}).status == 400  # it is being written
    threads = [each for each in threading.enumerate() if "view-export" in each.name]
    assert {each.daemon for each in threads} == {True}  # a copy that hangs keeps no program
    closing = threading.Thread(target=viewer.exports.close)
    closing.start()
    while not viewer.exports._is_stopping:
        time.sleep(0.01)
    may_go_on.set()
    closing.join()
    assert [job["state"] for job in viewer.exports.jobs()] == ["cancelled", "cancelled"]
    assert not (tmp_path / "exports").exists() or os.listdir(tmp_path / "exports") == []
    assert post(viewer, {"name": "late"}).status == 400


def test_only_a_few_wait(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(export.Exports, "_copy", lambda self, job: may_go_on.wait(20) and None)
    statuses = [post(viewer, {"name": f"n{number}"}).status for number in range(12)]
    may_go_on.set()
    assert statuses.count(202) in (8, 9)  # one may be taken up already
    assert statuses[-1] == 400
    finished(viewer)


def test_a_store_that_was_replaced_is_not_copied(viewer: Viewer, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "old")
    write_store(tmp_path / "store", [Played([0, 1])])
    assert post(viewer, {"name": "best"}).status == 202
    (job,) = finished(viewer)
    assert (job["state"], "another store" in job["error"]) == ("failed", True)
    assert not (tmp_path / "exports").exists()
