"""Uploads that are killed, fail or meet another uploader, and what pulls get of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import StepwellError
from stepwell.buffers.exchange.publish import uploader as uploader_file
from stepwell.buffers.exchange.publish.uploader import Uploader
from stepwell.buffers.storage.disk.format import Manifest
from support.cloud.faulty_objects import FaultyObjects
from support.cloud.schedule import run_schedule


@pytest.mark.proof
@given(st.integers(0, 10**9))
def test_pulls_get_what_was_stored_and_no_less_than_was_acknowledged(seed: int) -> None:
    run_schedule(seed)


@pytest.mark.proof
def test_schedules_upload_and_are_refused_often_enough() -> None:
    # A test of the test: the claims above would hold if nothing ever happened.
    schedules = [run_schedule(seed) for seed in range(20)]
    assert sum(each.wins for each in schedules) > 60
    assert sum(each.refusals for each in schedules) > 10
    assert sum(len(each.truth) for each in schedules) > 400


def _create_always(self: FaultyObjects, name: str, data: bytes) -> bool:
    self.put(name, data)
    return True


def _note_first(self: Uploader, path: str, name: str, data: bytes) -> None:
    is_there = self._there.get(name) == len(data)
    self._there[name] = len(data)
    if not is_there:
        self._objects.put(name, data)


def _without_its_numbers(self: Uploader, manifest: Manifest, number: int) -> Manifest:
    numbers = manifest.next._replace(position=manifest.next.position + 1)
    return dataclasses.replace(manifest, open=None, next=numbers)


BUGS = {
    "a manifest replaces that of another": (FaultyObjects, "create", _create_always),
    "an object counts as sent before it is": (Uploader, "_put", _note_first),
    "a number that was deleted counts as free": (Uploader, "_check_newest", lambda *_: None),
    "chunks of the open segment are counted": (Uploader, "_without_open", _without_its_numbers),
}


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_file, "_MANIFESTS_KEPT", 2)
    _run_many(5)
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises((AssertionError, FileNotFoundError, StepwellError)):
        _run_many(200)


def _run_many(count: int) -> None:
    for seed in range(count):
        run_schedule(seed)
