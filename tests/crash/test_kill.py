"""kill -9 at any system call: what `add` returned from is there, nothing else is half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash.kill_scenario import kill_writers
from support.examples import by_tier

KILLS = by_tier(25, 100, 100)  # in each part


@pytest.mark.parametrize("part", range(by_tier(1, 3, 10)))
def test_a_killed_writer_leaves_every_flush_that_returned(tmp_path: Path, part: int) -> None:
    got = kill_writers(part, KILLS, tmp_path)
    print(got)
    assert got.kills == KILLS
    # A kill between flushes, or before the first, proves little.
    assert got.flushes >= 2 * KILLS
    assert got.inside >= 0.5 * KILLS
    assert got.extra >= 0.05 * KILLS
