"""Data sets are pushed as one commit, only what changed is sent, and nothing private goes along."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    End,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreLocked,
)
from stepwell.buffers.bridges.publish import pull, push
from stepwell.buffers.exchange.formats.exporting import export_episodes
from stepwell.buffers.view.summary import digest_of
from support.hub import Hub, Repo
from support.served import Played, rows_of, write_store

# huggingface_hub's own call of its transport.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

EPISODES = [Played([0.0, *map(float, range(length))]) for length in (30, 60, 90)]
CARD = "README.md"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", EPISODES)


def test_a_pushed_store_is_pulled_as_it_was(hub: Hub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, "user/data", license="cc-by-4.0")
    assert hub.repos["user/data"].private
    assert pushed.is_new
    assert pushed.has_new_card
    assert hub.repos["user/data"].messages == ["initial", "Push of a store"]
    pulled = pull("user/data", tmp_path / "again")
    assert pulled.commit == pushed.commit
    assert pulled.is_store
    assert (pulled.files, pulled.nbytes) == (pushed.files, pushed.nbytes)
    assert digest_of(tmp_path / "again") == digest_of(store)
    assert sorted(os.listdir(tmp_path)) == ["again", "store"]
    for name in ("manifest.json", "segment-00000000.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (store / name).read_bytes()
    front = (tmp_path / "again" / CARD).read_text().split("---\n")[1]
    assert yaml.safe_load(front)["license"] == "cc-by-4.0"


def test_only_files_of_the_store_are_published(hub: Hub, store: Path) -> None:
    for name in ("notes.txt", ".secret", "model.zip", "checkpoint-x.bin"):
        (store / name).write_text("mine")
    (store / "damaged").mkdir()
    (store / "damaged" / "segment-00000000.bin").write_text("mine")
    pushed = push(store, "user/data")
    assert set(hub.repos["user/data"].files()) == {
        *(".gitattributes", "README.md", "picture.webp"),
        *("manifest.json", "segment-00000000.bin"),
    }
    assert set(pushed.left_out) == {
        *("notes.txt", ".secret", "model.zip", "checkpoint-x.bin"),
        *("damaged/segment-00000000.bin", *({"LOCK"} if (store / "LOCK").exists() else ())),
    }


def test_what_is_there_is_not_sent_again(hub: Hub, store: Path) -> None:
    first = push(store, "user/data")
    hub.uploads.clear()
    second = push(store, "user/data")
    assert second.sent == ()
    assert second.commit == first.commit
    assert hub.uploads == []
    with pytest.raises(ValueError, match=r"license.*user/data has a card.*'mit'"):
        push(store, "user/data", license="mit")
    hub.repos["user/data"].commit(
        "main", {**hub.repos["user/data"].files(), CARD: b"mine"}, "edited in the browser"
    )
    with DiskStorage.open(store) as storage:
        storage.add([Chunk(200, 0, 0, End.TERMINATED, rows_of(200, [0, 1.0]))])
    grown = push(store, "user/data")
    assert set(grown.sent) == {"manifest.json", "segment-00000001.bin"}
    assert hub.repos["user/data"].files()[CARD] == b"mine"


def test_a_card_of_the_folder_is_published_as_it_is(hub: Hub, store: Path) -> None:
    (store / CARD).write_text("---\nlicense: mit\n---\nmine\n")
    pushed = push(store, "user/data")
    assert not pushed.has_new_card
    assert hub.repos["user/data"].files()[CARD] == (store / CARD).read_bytes()
    with pytest.raises(ValueError, match=r"license.*'mit'.*README\.md"):
        push(store, "user/data", license="mit")


@pytest.mark.parametrize("uploads", [0, 1, 3])
def test_a_broken_push_shows_nothing_and_goes_on(hub: Hub, store: Path, uploads: int) -> None:
    hub.faults.cut_uploads = uploads
    with pytest.raises(OSError, match=r"user/data.*does not answer"):
        push(store, "user/data")
    assert set(hub.repos["user/data"].files()) == {".gitattributes"}
    assert len(hub.uploads) == uploads
    sent = set(hub.large)
    hub.uploads.clear()
    hub.faults.cut_uploads = None
    push(store, "user/data")
    assert not sent & set(hub.uploads)
    assert "manifest.json" in hub.repos["user/data"].files()


def test_other_files_are_removed_only_if_asked(hub: Hub, store: Path) -> None:
    hub.repos["user/data"] = repo = Repo.new()
    repo.commit("main", {".gitattributes": b"", "other.txt": b"x", CARD: b"mine"}, "other")
    with pytest.raises(ValueError, match=r"user/data.*other\.txt.*--replace"):
        push(store, "user/data")
    assert set(repo.files()) == {".gitattributes", "other.txt", CARD}
    assert push(store, "user/data", replace=True).removed == ("other.txt",)
    assert "other.txt" not in repo.files()
    assert repo.files()[CARD] == b"mine"


def test_a_push_of_another_in_between_is_an_error(hub: Hub, store: Path) -> None:
    push(store, "user/data")
    repo = hub.repos["user/data"]

    def other() -> None:
        repo.commit("main", {**repo.files(), "other.txt": b"x"}, "other")
        hub.faults.before_commit = lambda: None

    hub.faults.before_commit = other
    (store / CARD).write_text("---\nlicense: mit\n---\nmine\n")
    with pytest.raises(OSError, match=r"user/data.*another push"):
        push(store, "user/data")
    assert "other.txt" in repo.files()
    assert repo.messages[-1] == "other"


def test_a_dry_run_changes_nothing(hub: Hub, store: Path) -> None:
    planned = push(store, "user/data", dry_run=True)
    assert hub.repos == {}
    pushed = push(store, "user/data")
    assert planned.sent == pushed.sent
    assert planned.commit == ""
    assert push(store, "user/data", dry_run=True).sent == ()


def test_a_branch_is_made_and_main_stays(hub: Hub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, "user/data", revision="v1", public=True)
    repo = hub.repos["user/data"]
    assert not repo.private
    assert set(repo.files()) == {".gitattributes"}
    assert "manifest.json" in repo.files("v1")
    assert pull("user/data", tmp_path / "v1", revision="v1").commit == pushed.commit
    with pytest.raises(ValueError, match=r"user/data.*without files"):
        pull("user/data", tmp_path / "main")


def test_exports_and_files_are_published(hub: Hub, store: Path, tmp_path: Path) -> None:
    with SequenceReplayBuffer.open(store, read_only=True) as replay:
        export_episodes(replay, "npz", tmp_path / "npz", card=True, license="mit")
    (tmp_path / "npz" / ".cache").mkdir()
    (tmp_path / "npz" / ".cache" / "x").write_text("mine")
    pushed = push(tmp_path / "npz", "user/npz")
    files = {path: data for path, data in hub.repos["user/npz"].files().items() if path[0] != "."}
    assert files == {
        path.relative_to(tmp_path / "npz").as_posix(): path.read_bytes()
        for path in (tmp_path / "npz").rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    assert pushed.left_out == (".cache",)
    archive = tmp_path / "data.swa"
    archive.write_bytes(bytes(range(256)) * 300)
    push(archive, "user/archive")
    assert hub.repos["user/archive"].files()["data.swa"] == archive.read_bytes()


def test_an_unfit_data_set_is_refused_before_the_hub_hears_of_it(
    hub: Hub, store: Path, tmp_path: Path
) -> None:
    with DiskStorage.open(store), pytest.raises(StoreLocked, match="being written"):
        push(store, "user/data")
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "passwords").symlink_to("/etc/passwd")
    (tmp_path / "new.part").mkdir()
    for path, words in (("none", "got nothing"), ("empty", "without files"), ("linked", "link")):
        with pytest.raises(ValueError, match=words):
            push(tmp_path / path, "user/data")
    with pytest.raises(ValueError, match="'CC BY'"):
        push(store, "user/data", license="CC BY")
    segment = store / "segment-00000000.bin"
    data = bytearray(segment.read_bytes())
    data[-5_000] ^= 1
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"damaged.*stepwell repair"):
        push(store, "user/data")
    assert hub.repos == {}
    assert [one for one in hub.asked if "/datasets/" in one] == []


@pytest.mark.parametrize(
    "name", ["", "data", "a/b/c", "../data", "user/..", "user/a--b", "user/a.git", "user/ä", "-/a"]
)
def test_a_wrong_name_is_refused(hub: Hub, store: Path, name: str, tmp_path: Path) -> None:
    for call in (lambda: push(store, name), lambda: pull(name, tmp_path / "out")):
        with pytest.raises(ValueError, match="OWNER/NAME"):
            call()
    assert hub.asked == []


def test_a_wrong_token_is_told(hub: Hub, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(OSError, match=r"401.*hf auth login"):
        push(store, "user/data")
