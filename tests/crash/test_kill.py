"""kill -9 at any system call: what `add` returned from is there, nothing else is half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash.kill_scenario import kill_writers

CI_KILLS, FULL_KILLS = 300, 1_000


@pytest.mark.parametrize(
    "kills", [CI_KILLS, pytest.param(FULL_KILLS, marks=pytest.mark.full)], ids=str
)
def test_a_killed_writer_leaves_every_flush_that_returned(tmp_path: Path, kills: int) -> None:
    got = kill_writers(kills, kills, tmp_path)
    print(got)
    assert got.kills == kills
    # A kill between flushes, or before the first, proves little.
    assert got.flushes >= 2 * kills
    assert got.inside >= 0.5 * kills
    assert got.extra >= 0.05 * kills
