"""What is pulled is what the Hub lists, byte by byte; hostile repositories write nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import StoreCorrupt, StoreLocked
from stepwell.buffers.bridges.publish import pull, push
from stepwell.buffers.bridges.publish import pull as pull_function
from stepwell.buffers.exchange.publish.remote import check_path, check_paths
from stepwell.buffers.view.summary import digest_of
from support.hub import Hub, Repo, entry_of
from support.served import Played, write_store

# huggingface_hub's own call of its transport.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

FILES = {
    "a.txt": b"small",
    "data/one.bin": bytes(range(256)) * 40,
    "data/two.bin": bytes(range(255, -1, -1)) * 40,
    "empty.txt": b"",
    "deep/er/x.json": b"{}",
}
PULL = sys.modules[pull_function.__module__]


@pytest.fixture
def repo(hub: Hub) -> Repo:
    hub.repos["user/data"] = made = Repo.new()
    hidden = dict.fromkeys([".gitattributes", ".git/config", "data/.x", ".downloads/a"], b"")
    made.commit("main", {**hidden, **FILES}, "data")
    return made


@pytest.fixture(params=["threads", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small files are fetched in threads, large ones one by one."""
    if request.param == "one by one":
        monkeypatch.setattr(PULL, "_LARGE_BYTES", -1)
    return str(request.param)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_all_files_come_and_nothing_else(hub: Hub, repo: Repo, tmp_path: Path, way: str) -> None:
    told: list[tuple[int, int]] = []
    report = pull("user/data", tmp_path / "out", progress=lambda done, of: told.append((done, of)))
    assert contents(tmp_path / "out") == FILES
    assert report.hidden == 4
    assert not report.is_store
    assert report.nbytes == report.fetched_bytes == sum(map(len, FILES.values()))
    assert os.listdir(tmp_path) == ["out"]
    assert told[0] == (0, report.nbytes)
    assert told[-1] == (report.nbytes, report.nbytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_commit_is_pulled_though_the_branch_moves(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    first = repo.branches["main"]
    repo.commit("main", {"a.txt": b"new"}, "later")
    pull("user/data", tmp_path / "out", revision=first)
    assert contents(tmp_path / "out") == FILES
    for revision in ("nothing", "0" * 40):
        with pytest.raises(OSError, match=revision):
            pull("user/data", tmp_path / "other", revision=revision)
    with pytest.raises(OSError, match="user/other"):
        pull("user/other", tmp_path / "other")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("downloads", [0, 2, 3])
def test_a_broken_pull_goes_on(
    hub: Hub, repo: Repo, tmp_path: Path, way: str, downloads: int
) -> None:
    hub.faults.cut_downloads = downloads
    with pytest.raises(OSError, match=r"user/data|Consistency") as caught:
        pull("user/data", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    kept = contents(tmp_path / "out.part" / ".new")
    whole = {path for path in FILES if kept.get(path) == FILES[path]}
    notes = getattr(caught.value, "__notes__", [])
    assert sum("kept: " in note for note in notes) <= 1
    hub.faults.cut_downloads = None
    hub.downloads.clear()
    report = pull("user/data", tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    assert not whole & set(hub.downloads)
    assert report.fetched_bytes == sum(len(FILES[path]) for path in set(FILES) - whole)
    assert os.listdir(tmp_path) == ["out"]


def test_a_flipped_bit_is_fetched_again(hub: Hub, repo: Repo, tmp_path: Path, way: str) -> None:
    for path in ("a.txt", "data/one.bin"):
        hub.faults.flips[path] = 1
    pull("user/data", tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    assert sorted(hub.downloads).count("a.txt") == 2


def test_bytes_that_stay_wrong_are_an_error(hub: Hub, repo: Repo, tmp_path: Path, way: str) -> None:
    hub.faults.flips["data/one.bin"] = 2
    with pytest.raises(OSError, match=r"data/one\.bin.*checksum"):
        pull("user/data", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    pull("user/data", tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


def test_what_changed_on_the_disk_meanwhile_is_fetched_again(
    hub: Hub, repo: Repo, tmp_path: Path
) -> None:
    hub.faults.cut_downloads = 3
    with pytest.raises(OSError, match=r"user/data|Consistency"):
        pull("user/data", tmp_path / "out")
    new = tmp_path / "out.part" / ".new"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(FILES["a.txt"])  # a link to the right bytes is no file
    shutil.rmtree(new / "data", ignore_errors=True)
    (new / "data").symlink_to(outside)
    (new / "garbage").write_text("garbage")
    (new / "a.txt").unlink(missing_ok=True)
    (new / "a.txt").symlink_to(outside / "mine")
    hub.faults.cut_downloads = None
    pull("user/data", tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert contents(outside) == {"mine": FILES["a.txt"]}


def test_a_killed_pull_goes_on(
    hub: Hub, repo: Repo, tmp_path: Path, environment: dict[str, str]
) -> None:
    arguments = [sys.executable, "-m", "stepwell.collectors.cli", "pull", "user/data"]
    running: list[Any] = []
    hub.faults.cut_downloads = 3
    hub.faults.at_cut = lambda: running[0].send_signal(signal.SIGKILL)
    running.append(subprocess.Popen([*arguments, tmp_path / "out"], env=environment))
    assert running[0].wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    kept = {
        path
        for path, data in contents(tmp_path / "out.part" / ".new").items()
        if FILES.get(path) == data
    }
    hub.faults.cut_downloads = None
    hub.downloads.clear()
    subprocess.run([*arguments, tmp_path / "out", "-q"], env=environment, check=True)
    assert contents(tmp_path / "out") == FILES
    assert not kept & set(hub.downloads)
    assert not (tmp_path / "out.part").exists()


def test_a_body_without_end_is_stopped(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.buffers.exchange.publish.hub._SPARE_BYTES", 4 << 20)
    hub.faults.endless = "a.txt"
    with pytest.raises(OSError, match=r"a\.txt.*5 B"):
        pull("user/data", tmp_path / "out")
    assert sum(map(len, contents(tmp_path / "out.part").values())) < 32 << 20


def with_path(path: Any) -> Callable[[list[dict[str, Any]]], list[Any]]:
    return lambda entries: [*entries, {**entry_of("x", b"x"), "path": path}]


def changed(**facts: Any) -> Callable[[list[dict[str, Any]]], list[Any]]:
    return lambda entries: [*entries, {**entry_of("x", b"x"), **facts}]


LARGE = {"oid": "0" * 64, "size": 1, "pointerSize": 130}


HOSTILE = [
    *map(with_path, ["../x", "/etc/x", "a/../../x", "a/./x", "a//x", "", ".", "..", "x/"]),
    *map(with_path, ["..\\x", "a\nb", "a\0b", "\x1b[2J", "\ud800", "x" * 256, "a/" * 40 + "x"]),
    *map(with_path, ["é" * 130, 7, None, "a.txt", "A.TXT", "DATA/x", "a.txt/x", "data"]),
    *(changed(size=size) for size in (-1, True, 1.5, "1", 1 << 60, None)),
    *(changed(oid=oid) for oid in ("", "x" * 40, "0" * 39, None, 7)),
    *(changed(lfs={**LARGE, **lfs}) for lfs in ({"size": 2}, {"oid": "x" * 64}, {"oid": None})),
    changed(lfs={}),
    changed(lfs=[]),
    lambda entries: [*entries, {}],
    lambda entries: [*entries, {"type": "file"}],
    lambda entries: [*entries, "x"],
    lambda entries: [*entries, None],
]


@pytest.mark.parametrize("listing", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_a_hostile_listing_is_refused_before_anything_is_fetched(
    hub: Hub, repo: Repo, tmp_path: Path, listing: Callable[[list[dict[str, Any]]], list[Any]]
) -> None:
    hub.faults.listing = listing
    with pytest.raises(ValueError, match="user/data"):
        pull("user/data", tmp_path / "out")
    assert hub.downloads == []
    assert os.listdir(tmp_path) == []


def test_too_many_files_and_more_than_the_disk_holds_are_refused(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stepwell.buffers.exchange.publish.hub._MOST_FILES", 3)
        with pytest.raises(ValueError, match=r"user/data.*at most 3"):
            pull("user/data", tmp_path / "out")
    hub.faults.listing = changed(lfs={**LARGE, "size": 1 << 49}, size=1 << 49)
    with pytest.raises(OSError, match=r"user/data.*free"):
        pull("user/data", tmp_path / "out")
    assert hub.downloads == []


def test_a_damaged_store_is_refused(hub: Hub, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [Played([0, 1.0, 2.0])])
    push(store, "user/store")
    repo = hub.repos["user/store"]
    whole = dict(repo.files())
    name = "segment-00000000.bin"
    middle = len(whole[name]) - 3_000
    data = whole[name][:middle] + bytes([whole[name][middle] ^ 1]) + whole[name][middle + 1 :]
    for files in (
        {**whole, name: data},
        {**whole, "manifest.json": b"{}"},
        {path: data for path, data in whole.items() if path != name},
    ):
        repo.commit("main", files, "damaged")
        with pytest.raises(StoreCorrupt):
            pull("user/store", tmp_path / "out")
        assert os.listdir(tmp_path) == ["store"]
    repo.commit("main", whole, "whole")
    pull("user/store", tmp_path / "out")
    assert digest_of(tmp_path / "out") == digest_of(store)


def test_a_folder_in_use_is_refused(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        pull("user/data", tmp_path / "out")
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "mine").write_text("mine")
    with pytest.raises(ValueError, match=r"new\.part.*mine"):
        pull("user/data", tmp_path / "new")
    assert hub.downloads == []
    assert contents(tmp_path) == {"out/mine": b"mine", "new.part/mine": b"mine"}


def test_two_pulls_into_one_folder_are_refused(hub: Hub, repo: Repo, tmp_path: Path) -> None:
    def second(done: int, of: int) -> None:
        with pytest.raises(StoreLocked, match="pull"):
            pull("user/data", tmp_path / "out")

    pull("user/data", tmp_path / "out", progress=second)
    assert contents(tmp_path / "out") == FILES


def test_ctrl_c_keeps_whole_files(hub: Hub, repo: Repo, tmp_path: Path, way: str) -> None:
    def stop(done: int, of: int) -> None:
        if done > 5_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        pull("user/data", tmp_path / "out", progress=stop)
    assert caught.value.__notes__[-1].startswith("kept: ")
    hub.downloads.clear()
    pull("user/data", tmp_path / "out")
    assert len(hub.downloads) < len(FILES)
    assert contents(tmp_path / "out") == FILES


@given(
    st.lists(
        st.text(st.sampled_from("aAb./\\ ~\n\u0130\u0307"), max_size=8), min_size=1, max_size=4
    )
)
def test_accepted_paths_stay_in_the_folder_and_apart(paths: list[str]) -> None:
    """The model asks the operating system where each path leads."""
    try:
        check_paths([check_path(path) for path in paths])
    except ValueError:
        return
    places = [os.path.normpath(os.path.join("/base/of/it", path)) for path in paths]
    assert all(place.startswith("/base/of/it/") for place in places)
    lower = [place.lower() for place in dict.fromkeys(places)]
    assert len(set(lower)) == len(lower)
    assert not any(a != b and b.startswith(f"{a}/") for a in lower for b in lower)
