"""A store is pushed to a URL while it changes; what is refused, or only planned, leaves nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepwell.buffers import End, StoreCorrupt
from stepwell.buffers.bridges.publish import pull, push
from stepwell.buffers.testing import Recording
from support.cloud.faulty_objects import Place
from support.disk_stores import create, filled

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
