"""Uploads that are killed, fail or meet another uploader, and what pulls get of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.exchange.publish import uploader
from support.cloud.schedule import run_schedule


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
