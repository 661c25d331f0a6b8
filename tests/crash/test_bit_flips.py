"""Changed bytes anywhere: nothing wrong is served, nothing is gone without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash.bit_flip_scenario import flip_bits

CI_CHANGES, FULL_CHANGES = 3_000, 10_000


@pytest.mark.parametrize(
    "changes", [CI_CHANGES, pytest.param(FULL_CHANGES, marks=pytest.mark.full)], ids=str
)
def test_a_changed_byte_is_detected_healed_or_harmless(tmp_path: Path, changes: int) -> None:
    got = flip_bits(changes, changes, tmp_path)
    print(got)
    assert got["refused"] + got["healed"] + got["harmless"] == changes
    assert min(got["refused"], got["healed"], got["harmless"]) >= 0.05 * changes
    assert got["LOCK refused"] == 0
    for part in ("header", "data", "manifest.json"):
        assert got[f"{part} harmless"] == got[f"{part} healed"] == 0
        assert got[f"{part} refused"] >= 0.02 * changes
    for part in ("slots A", "slots B"):
        assert got[f"{part} healed"] >= 0.03 * changes
