"""Faults at the system calls of the real commands: nothing is lost, nothing incomplete is left."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import pytest

from support.crash.command_faults import SCENARIOS, Scenario, Yield, run_cases
from support.crash.failing_calls import FAULTS, Commands, Fault, why_not_here
from support.needed import skip_without

pytestmark = pytest.mark.skipif(bool(why_not_here()), reason=why_not_here())

KILL, FULL_DISK, IO_ERROR, BROKEN_DISK, NO_ROOM_ONCE, CTRL_C = FAULTS
RARE = (BROKEN_DISK, NO_ROOM_ONCE, CTRL_C)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Generator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


@pytest.mark.proof
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_at_a_random_call(commands: Commands, tmp_path: Path, name: str) -> None:
    rare = RARE[list(SCENARIOS).index(name) % len(RARE)]
    check(commands, tmp_path, needed(name), (KILL, FULL_DISK, IO_ERROR, rare))


def ends(calls: int) -> list[int]:
    """Some calls at the beginning and between, and the last ones."""
    few = {0, 2, 4, calls // 3, calls // 2, *range(calls - 4, calls)}
    return sorted(number for number in few if 0 <= number < calls)


@pytest.mark.proof
@pytest.mark.parametrize(
    "name", ["merge", "import npz", "export npz", "export d3rlpy", "archive", "restore"]
)
def test_a_kill_at_the_first_and_the_last_calls(
    commands: Commands, tmp_path: Path, name: str
) -> None:
    counts = check(commands, tmp_path, needed(name), (KILL,), chosen=ends)
    assert counts["absent"] >= counts["cases"] // 2
    assert counts["present"] >= 2


@pytest.mark.parametrize("name", ["import npz", "export npz", "export d3rlpy"])
def test_a_failure_at_the_last_calls_leaves_nothing_or_is_none(
    commands: Commands, tmp_path: Path, name: str
) -> None:
    scenario, faults = needed(name), (IO_ERROR, FULL_DISK)
    counts = check(
        commands, tmp_path, scenario, faults, chosen=lambda calls: range(calls - 8, calls)
    )
    assert counts["absent"] >= 2


def test_a_full_disk_leaves_nothing_of_a_data_set(commands: Commands, tmp_path: Path) -> None:
    scenario = needed("datasets get")
    counts = check(commands, tmp_path, scenario, (FULL_DISK,), chosen=lambda n: (2, n // 3, n // 2))
    assert counts["a full disk: exit 2"] == 3


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
@pytest.mark.parametrize("name", SCENARIOS)
def test_faults_at_every_call(commands: Commands, tmp_path: Path, name: str, fault: Fault) -> None:
    """The rare ones share the calls: each call meets one of them, and all of the others."""
    every, first = (len(RARE), RARE.index(fault)) if fault in RARE else (1, 0)
    check(commands, tmp_path, needed(name), (fault,), every, first)


def needed(name: str) -> Scenario:
    scenario = SCENARIOS[name]
    skip_without(scenario.needs)
    return scenario


def check(
    commands: Commands,
    folder: Path,
    scenario: Scenario,
    faults: tuple[Fault, ...],
    every: int | None = None,
    first: int = 0,
    chosen: Callable[[int], Iterable[int]] | None = None,
) -> Yield:
    counts, wrong = run_cases(
        scenario, commands, folder / "cases", every=every, first=first, chosen=chosen, faults=faults
    )
    print(scenario.name, dict(counts))
    assert not wrong, "\n".join(wrong)
    assert counts["calls"] > 10
    if KILL in faults:
        assert counts["kill: exit -9"] > 0
    assert counts["cases"] >= len(faults)
    return counts
