"""Speeds are measured in turns, and docs say what the files of figures say."""

from __future__ import annotations

import datetime
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.viewer import chromium_path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS, DOCS = BENCHMARKS / "results", BENCHMARKS.parent / "docs"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs benchmarks/ of the checkout")

needs_checkout = pytest.mark.skipif(
    not (BENCHMARKS.parent / ".git").exists(), reason="needs a checkout, whose commit is written"
)


@pytest.fixture(scope="module", autouse=True)
def neighbours() -> Iterator[None]:
    """Scripts import modules of their folder."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def module(name: str) -> Any:
    return importlib.import_module(name)


def run(script: str, *arguments: str | Path) -> str:
    command = [sys.executable, BENCHMARKS / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def cells(text: str) -> list[list[str]]:
    """The lines of all tables of a text."""
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]


# --- how a speed is measured ----------------------------------------------------------------------


class Machine:
    """A clock, and work that takes it forward."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def work(self, name: str, seconds: list[float]) -> Any:
        """A call that does 10 units of work; the first one is not counted."""
        left = iter([1_000.0, *seconds])

        def run() -> float:
            self.calls.append(name)
            self.now += next(left)
            return 10.0

        return run


def test_a_ratio_is_the_median_of_rounds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, machine = module("rounds"), Machine()
    monkeypatch.setattr(rounds, "cpu_seconds", lambda: machine.now)
    rows = rounds.compare(
        *("topic", "case"),
        candidates={
            "limit": machine.work("limit", [1.0, 2.0, 8.0]),
            "ours": machine.work("ours", [2.0, 2.0, 2.0]),
        },
        limit="limit",
        count=3,
        goals={"ours": 1.0},
    )
    limit, ours = rows
    assert limit.ratio == (1.0, 1.0, 1.0)
    assert ours.ratio == (1.0, 0.75, 2.5)  # of 0.5, 1 and 4
    assert (ours.each, limit.each) == pytest.approx((0.2e6, 0.2e6))
    assert (limit.goal, ours.goal, ours.clock, ours.rounds) == (None, 1.0, "CPU", 3)
    assert machine.calls == ["limit", "ours", "ours", "limit"] * 2


def assert_has_source(figures: dict[str, Any]) -> None:
    assert re.fullmatch(r"[0-9a-f]{10}\+?", figures["commit"])
    datetime.date.fromisoformat(figures["date"])
    assert re.search(r"; Python 3\.\d+\.\d+; .+; (compiled core|numpy alone)$", figures["machine"])
    assert figures["command"].startswith("python ")


# --- what docs say --------------------------------------------------------------------------------


def test_docs_are_as_the_files_of_figures_say() -> None:
    for path, text in module("write_performance").written(RESULTS, DOCS):
        assert path.read_text("utf-8") == text, (
            f"{path}: run python benchmarks/write_performance.py"
        )


def test_the_readme_leads_with_measured_figures() -> None:
    figures = json.loads((RESULTS / "patches.json").read_text())
    of_a_row = module("patches").bytes_table(figures["bytes"])
    (pong,) = (line for line in cells(of_a_row) if line[0] == "Pong")
    found = dict(zip(cells(of_a_row)[0], pong, strict=True))
    times = {
        row["candidate"]: row["each"]
        for row in figures["rows"]
        if row["case"] == "Pong, stacks, 256"
    }
    share = times["patch, RAM"] / times["cpprb"]
    said = (DOCS.parent / "README.md").read_text("utf-8")
    assert f"{found['patch, folder']} bytes on disk and {found['patch, RAM']} in RAM" in said
    assert f"in {share:.2f} of the time that cpprb takes" in said


def test_each_file_of_figures_names_its_source() -> None:
    files = sorted(RESULTS.iterdir())
    assert files
    for file in files:
        figures = json.loads(file.read_text())
        assert_has_source(figures)
        assert "+" not in figures["commit"], f"{file.name}: commit first, then measure"
        pure = file.stem.endswith("-numpy")
        assert figures["machine"].endswith("numpy alone" if pure else "compiled core")


def test_files_of_figures_are_those_that_one_command_measures() -> None:
    runs = module("measure_all").RUNS
    assert {file.name for file in RESULTS.iterdir()} == {f"{name}.json" for name in runs}


@needs_checkout
@pytest.mark.proof
@pytest.mark.parametrize("name", ["replay", "disk", "collect", "own-loop", "import", "fishyrl"])
def test_a_part_is_measured(tmp_path: Path, name: str) -> None:
    run("measure_all.py", "--quick", "--only", name, "--folder", tmp_path)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert_has_source(found)
    assert all(0 < row["ratio"][1] <= row["ratio"][0] <= row["ratio"][2] for row in found["rows"])
    assert len({row["topic"] for row in found["rows"]}) == {"replay": 6}.get(name, 1)


@needs_checkout
@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        *(("patches", "bytes"), ("provenance", "envs"), ("distributed", "LocalEngine")),
        pytest.param(
            *("viewing", "figures"),
            marks=pytest.mark.skipif(chromium_path() is None, reason="needs Chromium"),
        ),
    ],
)
def test_costs_of_another_shape_are_measured(tmp_path: Path, name: str, figures: str) -> None:
    run("measure_all.py", "--quick", "--only", name, "--folder", tmp_path)
    assert_above_0(json.loads((tmp_path / f"{name}.json").read_text())[figures])


def assert_above_0(found: Any) -> None:
    """All numbers in lists and objects."""
    if isinstance(found, dict | list):
        assert found
        for one in found.values() if isinstance(found, dict) else found:
            assert_above_0(one)
    else:
        assert found > 0
