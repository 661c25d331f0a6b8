"""The table of goals is measured, judged and drawn."""

from __future__ import annotations

import json
import os
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


def cells(text: str) -> list[list[str]]:
    """The lines of all tables of a text."""
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]


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
    assert cells(text)[2:] == [
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


def test_costs_of_provenance_are_medians_of_rounds(tmp_path: Path) -> None:
    rounds = [
        {
            **{"steps": 1_000.0, "store bytes": 50_000.0, "archive bytes": 400.0},
            **{"collecting": 0.5, "proof": 0.25, "restoring": 0.5},
            **{"collecting, CPU": 1.0, "proof, CPU": cpu, "restoring, CPU": 1.5},
        }
        for cpu in (0.8, 0.9, 1.2)
    ]
    bursts = [
        {which: {"CPU": cpu * 1e-6, "time": 2e-6} for which, cpu in (("before", 10), ("now", now))}
        for now in (10.2, 10.2, 10.2, 90.0)
    ]
    slower = [{**burst, "now": {"CPU": 10.4e-6, "time": 2e-6}} for burst in bursts]
    trees = {"CartPole x 8, to RAM": bursts, "Pong x 8, to disk": slower}
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    figures.write_text(json.dumps({"machine": "one", "envs": {"Pong": rounds}, "trees": trees}))
    page.write_text("before\n<!-- provenance -->\nolder\n<!-- end of provenance -->\nbehind\n")
    shown = run("provenance.py", "--show", figures, "--page", page)
    text = page.read_text()
    assert text.startswith("before\n<!-- provenance -->\n| env ")
    assert text.endswith("\n\n(one; medians of 3 rounds)\n<!-- end of provenance -->\nbehind\n")
    assert "older" not in text
    sizes = ("Pong", "1,000", "50", "0.4", "125 times", "2,000", "4,000")
    assert cells(text)[2:] == [[*sizes, "0.90 (0.80-1.20)", "1.50 (1.50-1.50)"]]
    ratios = {row[0]: (row[4], row[-1]) for row in cells(shown) if row[1] == "CPU"}
    assert ratios == {
        "CartPole x 8, to RAM": ("1.020", "1.03: met"),
        "Pong x 8, to disk": ("1.040", "1.01: **missed**"),
    }


def test_collecting_is_not_compared_with_the_same_tree(tmp_path: Path) -> None:
    source = BENCHMARKS.parent / "src"
    what = ("--only", "CartPole x 8, to RAM", "--steps", "80", "--folder", tmp_path)
    command: list[str | Path] = [sys.executable, BENCHMARKS / "provenance.py", "--before", source]
    done = subprocess.run(
        [*command, *what],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("--before: expected another tree, got ")
    assert not list(tmp_path.iterdir())


@pytest.mark.proof
def test_the_cost_of_provenance_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    what = ("--only", "CartPole", "demo cartridge", "--rounds", "1", "--steps", "400")
    text = run("provenance.py", *what, "--folder", tmp_path, "--json", figures)
    assert "CartPole" in text
    for found in json.loads(figures.read_text())["envs"].values():
        assert 0 < found[0]["archive bytes"] < found[0]["store bytes"]
        assert found[0]["proof, CPU"] > 0
    assert list(tmp_path.iterdir()) == [figures]
