"""A store at a URL is pulled as it was pushed; damage, forgery and kills are told or overcome."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import (
    DiskStorage,
    End,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
    verify,
)
from stepwell.buffers.bridges.publish import pull, push
from stepwell.buffers.exchange.publish import uploader
from stepwell.buffers.exchange.publish.objects import Objects
from stepwell.buffers.exchange.publish.uploader import Uploader
from stepwell.buffers.testing import Recording, assert_holds
from support.cloud.faulty_objects import Place
from support.cloud.schedule import run_schedule
from support.disk_stores import create, filled

PULL = sys.modules[pull.__module__]
URL = "s3://bucket/run"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place in memory, which every URL leads to."""
    found = Place()
    monkeypatch.setattr(PULL, "Objects", lambda url: found.connect())
    return found


def upload(folder: Path, place: Place) -> None:
    Uploader(folder, place.connect()).upload()


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a store, but for the lock."""
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name != "LOCK"}


def test_a_store_comes_back_from_a_url_as_it_was(url: str, tmp_path: Path) -> None:
    chunks = filled(tmp_path / "store")
    Uploader(tmp_path / "store", Objects(url, is_writer=True)).upload(is_finished=True)
    told: list[tuple[int, int]] = []
    report = pull(url, tmp_path / "out", progress=lambda done, of: told.append((done, of)))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "store")
    assert report.is_store
    assert (report.source, report.commit) == (url, "manifest-00000000")
    nbytes = sum(map(len, files_of(tmp_path / "out").values()))
    assert report.nbytes == report.fetched_bytes == nbytes
    assert told[-1] == (nbytes, nbytes)
    with DiskStorage.open(tmp_path / "out", read_only=True) as storage:
        assert_holds(storage, chunks)
    with pytest.raises(ValueError, match=r"revision.*'v1'"):
        pull(url, tmp_path / "other", revision="v1")


def test_there_is_nothing_at_a_url(url: str, tmp_path: Path) -> None:
    with pytest.raises((StoreNotFound, FileNotFoundError), match=rf"{url}"):
        pull(url, tmp_path / "out")
    assert not (tmp_path / "out.part").exists()


READERS: dict[str, Callable[[str, Path], object]] = {
    "open": lambda url, folder: SequenceReplayBuffer.open(url),
    "open read-only": lambda url, folder: SequenceReplayBuffer.open(url, read_only=True),
    "open several": lambda url, folder: SequenceReplayBuffer.open([folder, url]),
    "a new replay": lambda url, folder: SequenceReplayBuffer(url),
    "a storage": lambda url, folder: DiskStorage.open(Path(url)),
    "verify": lambda url, folder: verify(url),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_url_is_not_opened_and_the_way_is_told(reader: str, tmp_path: Path) -> None:
    filled(tmp_path / "store", 1)
    with pytest.raises(ValueError, match=rf"{URL} is a URL.*stepwell pull {URL} FOLDER"):
        READERS[reader](URL, tmp_path / "store")


def test_a_pull_meets_an_eviction_and_goes_on_with_the_newer_rows(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PULL, "_LARGE_BYTES", -1)
    rows = Recording()
    with create(tmp_path / "store", capacity=200) as storage:
        uploader = Uploader(tmp_path / "store", place.connect())

        def go_on() -> None:
            for _ in range(30):
                storage.add([rows.chunk(0, 12, End.NONE)])
            storage.seal()
            uploader.upload()

        go_on()
        with pytest.raises(FileNotFoundError, match=rf"{URL}/segments/.* is missing"):
            pull(URL, tmp_path / "out", progress=lambda done, of: go_on())
        pull(URL, tmp_path / "out")
        with DiskStorage.open(tmp_path / "out", read_only=True) as pulled:
            assert pulled.index.base == storage.index.base
            assert len(pulled.index) == len(storage.index)


@pytest.mark.parametrize("change", ["missing", "short", "empty", "flipped"])
def test_an_object_that_is_not_whole_is_told(change: str, place: Place, tmp_path: Path) -> None:
    filled(tmp_path / "store", 6)
    upload(tmp_path / "store", place)
    for name in sorted(place.objects):
        data = place.objects.pop(name)
        if change != "missing":
            half = data[: len(data) // 2]
            other = bytes([data[len(half)] ^ 1]) + data[len(half) + 1 :]
            changed = {"short": half, "empty": b"", "flipped": half + other}
            place.objects[name] = changed[change]
        with pytest.raises((StoreCorrupt, StoreNotFound, OSError), match=URL):
            pull(URL, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        shutil.rmtree(tmp_path / "out.part", ignore_errors=True)
        place.objects[name] = data
    pull(URL, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "store")


def forged(place: Place, change: Callable[[dict[str, object]], None]) -> None:
    """Give the newest manifest another second line, whose checksum is right."""
    name = max(name for name in place.objects if name.startswith("manifests/"))
    first, second, _ = place.objects[name].split(b"\n")
    body = json.loads(second)["body"]
    change(body)
    packed = json.dumps(body, separators=(",", ":")).encode()
    line = b'{"body":%b,"crc":"%08x"}' % (packed, crc32(packed))
    place.objects[name] = b"\n".join([first, line, b""])


FORGERIES: dict[str, dict[str, object]] = {
    "a number that is not that of the name": {"number": 7},
    "a name out of the folder": {"segments": [["../../../etc/passwd", 4096]]},
    "a segment too few": {"segments": []},
    "a top without bytes": {"segments": [["0" * 32, 0]]},
    "a top of many bytes": {"segments": [["0" * 32, 1 << 60]]},
    "a text for a list": {"segments": "many"},
    "a number for a truth": {"is_finished": 1},
    "no writer": {"writer": None},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_manifest_that_no_uploader_has_written_is_refused(
    forgery: str, place: Place, tmp_path: Path
) -> None:
    filled(tmp_path / "store", 1)
    upload(tmp_path / "store", place)
    forged(place, lambda body: None)
    pull(URL, tmp_path / "out")
    forged(place, lambda body: body.update(FORGERIES[forgery]))
    with pytest.raises(StoreCorrupt, match=r"manifests/manifest-00000000\.json"):
        pull(URL, tmp_path / "other")
    forged(place, lambda body: body.update(least_reader=99))
    with pytest.raises(StoreTooNew, match="upgrade stepwell"):
        pull(URL, tmp_path / "other")


def test_a_folder_of_another_store_is_not_uploaded_to_the_same_place(
    place: Place, tmp_path: Path
) -> None:
    filled(tmp_path / "a", 1)
    filled(tmp_path / "b", 1)
    upload(tmp_path / "a", place)
    before = dict(place.objects)
    with pytest.raises(sw.StepwellError, match="holds the store"):
        upload(tmp_path / "b", place)
    assert place.objects == before


def test_what_is_there_is_not_sent_again(place: Place, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    upload(tmp_path / "store", place)
    again = place.connect()
    uploader = Uploader(tmp_path / "store", again)
    uploader.upload()
    assert not uploader.sent
    assert not any(call.startswith("put") for call in again.calls)
    name = next(name for name in sorted(place.objects) if name.endswith(".bin"))
    place.objects[name] = place.objects[name][:-1]  # no object store does so
    third = Uploader(tmp_path / "store", place.connect())
    third.upload()
    assert len(third.sent) == 1
    pull(URL, tmp_path / "out")


def test_a_store_that_an_earlier_version_has_uploaded_is_pulled(
    place: Place, tmp_path: Path
) -> None:
    # It wrote an object with the heads of the chunks beside each segment, and a ledger.
    filled(tmp_path / "store")
    upload(tmp_path / "store", place)
    forged(place, lambda body: body.update(ledger=["0" * 32, 5]))
    for name in [name for name in place.objects if name.endswith(".bin")]:
        place.objects[name.replace(".bin", ".heads")] = b"heads"
    pull(URL, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "store")


PUSH = sys.modules[push.__module__]


def test_a_segment_that_is_evicted_after_it_was_sent_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place()
    monkeypatch.setattr(PUSH, "Objects", lambda url, is_writer: place.connect())
    recording = Recording()
    with create(tmp_path / "store", capacity=100) as storage:
        for _ in range(12):
            storage.add([recording.chunk(0, 20, End.TERMINATED)])
        first, second, *_ = sorted((tmp_path / "store").glob("segment-*"))

        def write_on(done: int, of: int) -> None:
            while second.exists():
                storage.add([recording.chunk(0, 20, End.TERMINATED)])

        report = push(tmp_path / "store", "s3://bucket/run", progress=write_on)
    gone = [data for name, data in place.objects.items() if f"/{first.stem}-" in name]
    assert len(gone) == 1
    assert len(report.sent) == report.files + 1
    assert first.name in report.sent
    assert report.sent_bytes == report.nbytes + len(gone[0])


@pytest.mark.parametrize("name", ["new", "a/b/new"])
def test_a_dry_run_to_a_new_folder_says_so_and_makes_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    filled(tmp_path / "store")
    url = f"file://{tmp_path}/{name}"
    planned = push(tmp_path / "store", url, dry_run=True)
    assert planned.is_new
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]
    pushed = push(tmp_path / "store", url)
    assert pushed.is_new
    assert (planned.sent, planned.sent_bytes) == (pushed.sent, pushed.sent_bytes)
    assert not push(tmp_path / "store", url, dry_run=True).is_new


def test_a_refused_push_makes_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    url = f"file://{tmp_path}/new"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="got nothing there"):
        push(tmp_path / "store", url)
    with pytest.raises(ValueError, match="expected a store"):
        push(tmp_path / "file", url)
    with pytest.raises(FileNotFoundError, match=r"/file: expected a folder there, got a file"):
        push(tmp_path / "store", f"file://{tmp_path}/file")
    filled(tmp_path / "store")
    segment = tmp_path / "store" / "segment-00000000.bin"
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(StoreCorrupt):
        push(tmp_path / "store", url)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "store"]


@pytest.mark.parametrize("name", ["a#b", "a?b=c", "a%41", "ä b", "a%"])
def test_a_path_in_a_url_is_taken_as_typed(name: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    filled(tmp_path / "store")
    push(tmp_path / "store", f"file://{tmp_path}/{name}")
    assert {each.name for each in tmp_path.iterdir()} == {"store", name}
    assert {each.name for each in (tmp_path / name).iterdir()} == {"manifests", "segments"}
    pull(f"file://{tmp_path}/{name}", tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / "store" / path.name).read_bytes()


@pytest.mark.parametrize("place", [None, 5])
def test_what_is_no_place_is_refused(place: object, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    with pytest.raises(TypeError, match=rf"or a URL, got {place}; correct it"):
        push(tmp_path / "store", place)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=rf"or a URL, got {place}; correct it"):
        pull(place, tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.proof
@given(st.integers(0, 10**9))
def test_pulls_get_what_was_stored_and_no_less_than_was_acknowledged(seed: int) -> None:
    run_schedule(seed)


def test_schedules_upload_and_are_refused_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test of the test: the claims above would hold if nothing ever happened.
    monkeypatch.setattr(uploader, "_MANIFESTS_KEPT", 2)
    schedules = [run_schedule(seed) for seed in range(20)]
    assert sum(each.wins for each in schedules) > 60
    assert sum(each.refusals for each in schedules) > 10
    assert sum(len(each.truth) for each in schedules) > 400
