"""The calls of an object store, on a folder and on a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.buffers import StoreCorrupt
from stepwell.buffers.exchange.publish.objects import Objects
from stepwell.buffers.storage.disk.folder import url_of


@pytest.fixture
def objects(url: str) -> Objects:
    return Objects(url, is_writer=True)


def test_a_folder_that_another_writer_makes_meanwhile_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    folder, is_dir = tmp_path / "new", Path.is_dir

    def is_dir_and_then_there(path: Path) -> bool:
        found = is_dir(path)
        if path == folder:
            os.makedirs(path, exist_ok=True)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir_and_then_there)
    assert Objects(folder.as_uri(), is_writer=True).create("one", b"1")


def test_an_object_is_read_whole(objects: Objects, tmp_path: Path) -> None:
    data, told = bytes(range(256)) * 10_000, list[int]()
    for content in (data, b""):
        objects.put("a/b.bin", content)
        assert objects.get("a/b.bin", len(data)) == content
        objects.download("a/b.bin", tmp_path / "b", len(content), told.append)
        assert (tmp_path / "b").read_bytes() == content
    assert told == sorted(told)
    assert told[-1] == len(data)
    objects.put("a/b.bin", b"0123456789")
    with pytest.raises(StoreCorrupt, match=r"/b\.bin has 10 bytes, expected at most 9"):
        objects.get("a/b.bin", 9)
    objects.put("c", memoryview(bytes(12_000_000)))  # of an array, in several parts
    assert objects.get("c", 12_000_000) == bytes(12_000_000)


def test_of_an_object_that_is_longer_than_it_should_be_little_is_fetched(
    objects: Objects, tmp_path: Path
) -> None:
    objects.put("a", bytes(20 << 20))
    objects.download("a", tmp_path / "a", 5)
    assert 5 < (tmp_path / "a").stat().st_size < 16 << 20


def test_create_writes_only_what_is_not_there(objects: Objects) -> None:
    assert objects.create("m/1", b"first")
    assert not objects.create("m/1", b"second")
    assert not objects.create("m/1", b"first and more")
    assert objects.create("m/1", b"first")  # an answer may have been lost
    assert objects.get("m/1", 99) == b"first"


def test_a_list_has_what_is_in_a_folder_in_order(objects: Objects) -> None:
    for name in ("m/2", "m/10", "m/1", "n/3", "m2/4", "m/x/5"):
        objects.put(name, b"123")
    assert [each.name for each in objects.listing("m")] == ["m/1", "m/10", "m/2", "m/x/5"]
    assert [each.name for each in objects.listing("m", after="m/10")] == ["m/2", "m/x/5"]
    assert objects.listing("nothing") == []
    assert {each.nbytes for each in objects.listing("m")} == {3}
    for _ in range(2):
        objects.delete("n/3")
        assert objects.listing("n") == []


@pytest.mark.proof
def test_a_long_list_is_complete(objects: Objects) -> None:
    for number in range(1_050):  # more than a page
        objects.put(f"m/{number:04}", b"")
    assert len(objects.listing("m")) == 1_050


def test_what_is_not_there_is_an_error_with_its_url(objects: Objects, tmp_path: Path) -> None:
    missing = pytest.raises(FileNotFoundError, match=f"{objects.url}/m/9 is missing")
    with missing:
        objects.get("m/9", 5)
    with missing:
        objects.download("m/9", tmp_path / "9", 5)


def test_a_server_that_is_not_there_is_an_error_that_says_what_to_check(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match=rf"{s3_url}/a: .*AWS_ENDPOINT_URL"):
        Objects(s3_url).get("a", 1)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("gs://bucket/run//", "gs://bucket/run"),
        (Path("s3://bucket/run/a"), "s3://bucket/run/a"),
        (Path("file:///tmp/run"), "file:///tmp/run"),
        ("runs/a", None),
        (Path("/runs/s3"), None),
        ("s3", None),
        ("c:/runs", None),
        (None, None),
    ],
)
def test_a_url_is_told_from_a_folder(path: object, url: str | None) -> None:
    assert url_of(path) == url
    with pytest.raises(ValueError, match=r"ftp://x/y: expected .* s3, .* file, got another"):
        url_of("ftp://x/y")


@pytest.mark.proof
def test_stores_in_folders_do_not_load_the_library() -> None:
    code = "import stepwell as sw, sys; sw.SequenceReplayBuffer; print('obstore' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
