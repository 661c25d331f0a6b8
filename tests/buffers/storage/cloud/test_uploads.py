"""Uploads that are killed, fail or meet another uploader, and what readers see of them."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import CloudStorage, End, StepwellError, StoreCorrupt
from stepwell.buffers.storage.cloud import uploader as uploader_file
from stepwell.buffers.storage.cloud.chunk_cache import ChunkCache
from stepwell.buffers.storage.cloud.manifest import CloudManifest
from stepwell.buffers.storage.cloud.uploader import Uploader
from stepwell.buffers.storage.disk.format import Manifest
from stepwell.buffers.testing import Recording
from support.cloud.faulty_objects import FaultyObjects, Place
from support.cloud.schedule import run_schedule
from support.disk_stores import create, filled


@given(st.integers(0, 10**9))
def test_readers_see_what_was_stored_and_no_less_than_was_acknowledged(seed: int) -> None:
    run_schedule(seed)


class _Counting(FaultyObjects):
    """Counts the segments of each manifest."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.counts: list[int] = []

    def create(self, name: str, data: bytes) -> bool:
        self.counts.append(len(CloudManifest.unpack(data, int(name[-13:-5]), name).segments))
        return super().create(name, data)


def _segment_counts(folder: Path, place: Place) -> list[int]:
    """Upload with a manifest for each segment, if that may be; the lengths of the manifests."""
    objects, times = _Counting(place), itertools.count(0, 100)
    Uploader(folder, objects, clock=lambda: next(times)).upload()
    return objects.counts


def test_a_long_upload_can_be_read_before_its_end(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    counts = _segment_counts(tmp_path / "store", Place())
    assert counts == [*range(1, max(counts) + 1)]
    assert len(counts) >= 3


def test_an_upload_that_goes_on_never_shows_less_than_the_one_before(tmp_path: Path) -> None:
    # A process that goes on looks at all segments again. Once it published the first of them, after
    # a minute, so that readers lost the others for a while: found by seed 2313.
    filled(tmp_path / "store")
    place = Place()
    before = max(_segment_counts(tmp_path / "store", place))
    counts = _segment_counts(tmp_path / "store", place)
    assert counts
    assert min(counts) == before
    run_schedule(2313)


def _read_after_eviction(folder: Path, seconds: float) -> None:
    """Read a view of a store, some time after its oldest segments were evicted."""
    place, now = Place(), [0.0]
    with create(folder / "store", capacity=200) as storage:
        rows = Recording()
        uploader = Uploader(folder / "store", place.connect(), clock=lambda: now[0])
        for _ in range(10):
            storage.add([rows.chunk(0, 12, End.NONE)])
        storage.seal()
        uploader.upload()
        reader = CloudStorage(place.connect(), ChunkCache(folder / "none", 0))
        for _ in range(30):
            storage.add([rows.chunk(0, 12, End.NONE)])
        storage.seal()
        assert storage.index.base > 0
        uploader.upload()
        now[0] += seconds
        uploader.upload()
        for position in range(len(reader.index)):
            reader.payload(position)


def test_rows_that_were_evicted_can_be_read_for_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_after_eviction(tmp_path / "a", 599)
    with pytest.raises(StoreCorrupt, match="evicted since the store was opened"):
        _read_after_eviction(tmp_path / "b", 601)
    monkeypatch.setattr(uploader_file, "_GRACE_SECONDS", 0.0)
    with pytest.raises(StoreCorrupt, match="evicted since the store was opened"):
        _read_after_eviction(tmp_path / "c", 1)


@pytest.mark.full
def test_thousands_of_schedules() -> None:
    for seed in range(5_000):
        run_schedule(seed)


def test_schedules_upload_and_are_refused_often_enough() -> None:
    # A test of the test: the claims above would hold if nothing ever happened.
    schedules = [run_schedule(seed) for seed in range(20)]
    assert sum(each.wins for each in schedules) > 60
    assert sum(each.refusals for each in schedules) > 10
    assert sum(len(each.truth) for each in schedules) > 400


def _create_always(self: FaultyObjects, name: str, data: bytes) -> bool:
    self.put(name, data)
    return True


def _note_first(self: Uploader, name: str, data: bytes) -> None:
    is_there = self._there.get(name) == len(data)
    self._there[name] = len(data)
    if not is_there:
        self._objects.put(name, data)


def _without_its_numbers(self: Uploader, manifest: Manifest, count: int) -> Manifest:
    numbers = manifest.next._replace(position=manifest.next.position + 1)
    return dataclasses.replace(manifest, sealed=manifest.sealed[:count], open=None, next=numbers)


BUGS = {
    "a manifest replaces that of another": (FaultyObjects, "create", _create_always),
    "an object counts as sent before it is": (Uploader, "_put", _note_first),
    "a number that was deleted counts as free": (Uploader, "_check_newest", lambda *_: None),
    "chunks of the open segment are counted": (Uploader, "_cut", _without_its_numbers),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_file, "_MANIFESTS_KEPT", 2)
    _run_many(5)
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises((AssertionError, StepwellError)):
        _run_many(200)


def _run_many(count: int) -> None:
    for seed in range(count):
        run_schedule(seed)
