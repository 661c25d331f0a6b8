"""The tests of crashes can fail: each of these bugs is found by one of them, at small numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.crash.bit_flip_scenario import flip_bits
from support.crash.call_failure_scenario import FAILURES, fail_every_call
from support.crash.crash_truth import APPEND, RING_SMALL, Wrong
from support.crash.kill_scenario import kill_writers
from support.crash.mutants import MUTANTS
from support.crash.power_loss_scenario import lose_power


def fail_calls(seed: int, folder: Path) -> None:
    for shape in (APPEND, RING_SMALL):
        fail_every_call(shape, FAILURES["a broken disk"], folder, seed, 13)


SCENARIOS: dict[str, Callable[[int, Path], object]] = {
    "kills": lambda seed, folder: kill_writers(seed, 40, folder),
    "power loss": lambda seed, folder: lose_power(seed, 150, folder),
    "flips": lambda seed, folder: flip_bits(seed, 300, folder),
    "failures": fail_calls,
}
SEEDS = 6


@pytest.mark.proof
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bug = MUTANTS[name]
    bug.plant(monkeypatch)
    for seed in range(bug.seed, bug.seed + SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            SCENARIOS[bug.found_by](seed, folder)
        except Wrong as error:
            print(f"{bug.found_by}, seed {seed}: {error}"[:300])
            return
    pytest.fail(f"{bug.found_by}: {name}: not found")


@pytest.mark.proof
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_bug_nothing_is_found(tmp_path: Path, scenario: str) -> None:
    SCENARIOS[scenario](1, tmp_path)
