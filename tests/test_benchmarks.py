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
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs benchmarks/ of the checkout")


def run(script: str, *arguments: str | Path) -> str:
    command = [sys.executable, BENCHMARKS / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


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
    figures.write_text(
        json.dumps({"machine": "a machine", "rounds": 3, "seconds": 0.5, "cases": cases})
    )
    table = run("goals_report.py", figures)
    assert table.index("slower, of limit") < table.index("faster, of limit")
    chart, page = tmp_path / "goals.svg", tmp_path / "page.md"
    page.write_text("before\n<!-- goals -->\nolder\n<!-- end of goals -->\nbehind\n")
    run("goals_report.py", figures, "--chart", chart, "--page", page)
    run("goals_report.py", figures, "--page", page)  # again: the same
    text = page.read_text()
    assert text.startswith("before\n<!-- goals -->\n")
    assert text.endswith("\n<!-- end of goals -->\nbehind\n")
    assert "older" not in text
    assert "3 of 5 goals are met by numpy alone" in text
    assert "(a machine; medians of 3 rounds, of 0.5 s where it collects)" in text
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [row for row in cells if row][2:] == [
        ["faster, of limit", "2.00", "", "2.00 (1.00-3.00)", "", "met"],
        ["short", "50 us", "", "50 (49-51)", "", "met"],
        ["by time, of limit", "0.60", "", "1.00 (1.00-2.00)", "", "met"],
        ["slower, of limit", "0.60", "", "0.50 (0.50-1.00)", "", "**missed**"],
        ["of before, of limit", "0.50", *["0.40 (0.40-0.40)"] * 3, "**missed**"],
    ]
    words = [node.text for node in ElementTree.parse(chart).iter() if node.text]
    assert "slower, of limit" in words
    assert "0.50 / 0.60" in words


@pytest.mark.proof
def test_a_part_of_the_table_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    what = ("--quick", "--only", "vectors", "flush")
    table = run("goals.py", *what, "--folder", tmp_path, "--json", figures)
    assert "transitions, 4 numbers, 256" in table
    measured = json.loads(figures.read_text())["cases"]
    assert [case["group"] for case in measured] == ["vectors", "vectors", "flush"]
    for case in measured:
        assert case["paths"]["pure"][0]["stepwell"]["cpu"] > 0
    assert not list(tmp_path.glob("benchmark-*"))
