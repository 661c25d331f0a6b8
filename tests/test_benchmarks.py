"""The table of goals is measured, judged and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, BENCHMARKS / script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def case(name: str, goal: float, ours: list[float], limit: list[float] | None) -> dict[str, Any]:
    """A case in which a round of each path took so many seconds of CPU time, and half of time."""
    rounds: list[dict[str, Any]] = [{"stepwell": {"cpu": s, "wall": s / 2}} for s in ours]
    for times, seconds in zip(rounds, limit or [], strict=False):
        times["limit"] = {"cpu": seconds, "wall": seconds}
    facts = {"limit": "limit" if limit else None, "of": "", "clock": "cpu", "limit_path": ""}
    return {"name": name, "goal": goal, **facts, "paths": {"pure": rounds}}


def test_figures_are_medians_of_rounds_and_are_judged_as_they_are_shown(tmp_path: Path) -> None:
    slower = case("slower", 0.6, [2.0, 4.0, 1.0], [1.0, 2.0, 1.0])
    faster = case("faster", 2.0, [1.0, 1.0, 1.0], [1.996, 1.0, 3.0])
    short = case("short", 50.0, [51e-6, 49e-6, 50.4e-6], None)
    by_time = {**slower, "name": "by time", "clock": "wall"}
    core = case("of before", 0.5, [1.0], [9.0])
    core["paths"] = {"pure": core["paths"]["pure"], "core": core["paths"]["pure"]}
    core["paths"]["before"] = [{"stepwell": {"cpu": 1.0}, "limit": {"cpu": 0.4}}]
    core["limit_path"] = "before"
    figures = tmp_path / "figures.json"
    cases = [slower, faster, short, by_time, core]
    figures.write_text(json.dumps({"machine": "a machine", "rounds": 3, "cases": cases}))
    lines = run("goals_report.py", figures, "--markdown").splitlines()
    assert lines[0] == "(a machine; medians of 3 rounds)"
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]][2:] == [
        ["slower, of limit", "0.60", "", "0.50 (0.50-1.00)", "", "**missed**"],
        ["faster, of limit", "2.00", "", "2.00 (1.00-3.00)", "", "met"],
        ["short", "50 us", "", "50 (49-51)", "", "met"],
        ["by time, of limit", "0.60", "", "1.00 (1.00-2.00)", "", "met"],
        ["of before, of limit", "0.50", *["0.40 (0.40-0.40)"] * 3, "**missed**"],
    ]
    assert "0.50 (0.50-1.00)" in run("goals_report.py", figures)
    chart = tmp_path / "goals.svg"
    run("goals_report.py", figures, "--chart", chart)
    words = [node.text for node in ElementTree.parse(chart).iter() if node.text]
    assert "slower, of limit" in words
    assert "0.50 / 0.60" in words


@pytest.mark.proof
def test_a_part_of_the_table_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--quick", "--only", "vectors", "flush", "--folder", tmp_path, "--json", figures]
    table = run("goals.py", *options)
    assert "transitions, 4 numbers, 256" in table
    measured = json.loads(figures.read_text())["cases"]
    assert [case["group"] for case in measured] == ["vectors", "vectors", "flush"]
    for case in measured:
        assert case["paths"]["pure"][0]["stepwell"]["cpu"] > 0
    assert not list(tmp_path.glob("benchmark-*"))
