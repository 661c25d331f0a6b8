"""Changed bytes anywhere: nothing wrong is served, nothing is gone without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash.bit_flip_scenario import flip_bits
from support.examples import by_tier

CHANGES = by_tier(250, 1_000, 1_000)  # in each part


@pytest.mark.parametrize("part", range(by_tier(1, 3, 10)))
def test_a_changed_byte_is_detected_healed_or_harmless(tmp_path: Path, part: int) -> None:
    got = flip_bits(part, CHANGES, tmp_path)
    print(got)
    assert got["refused"] + got["healed"] + got["harmless"] == CHANGES
    assert min(got["refused"], got["healed"], got["harmless"]) >= 0.05 * CHANGES
    assert got["LOCK refused"] == 0
    for part_of_store in ("header", "data", "manifest.json"):
        assert got[f"{part_of_store} harmless"] == got[f"{part_of_store} healed"] == 0
        assert got[f"{part_of_store} refused"] >= 0.02 * CHANGES
    for part_of_store in ("slots A", "slots B"):
        assert got[f"{part_of_store} healed"] >= 0.03 * CHANGES
