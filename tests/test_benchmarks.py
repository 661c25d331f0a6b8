"""Speeds are measured in turns, and docs say what the files of figures say."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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


@needs_checkout
def test_a_file_says_of_which_commit_where_and_when(tmp_path: Path) -> None:
    rounds = module("rounds")
    file = tmp_path / "new" / "figures.json"
    rounds.save(file, rounds.result(["numpy"], rows=[{"each": 1 / 3, "ratio": (1.0, 2.0)}]))
    found = json.loads(file.read_text())
    assert_has_source(found)
    assert found["rows"] == [{"each": 0.333333, "ratio": [1.0, 2.0]}]


def test_a_commit_says_that_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def commit() -> str:
        command = [sys.executable, "-B", "-c", "import rounds; print(rounds.commit())"]
        done = subprocess.run(
            command, cwd=tmp_path / "benchmarks", capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    for folder in ("benchmarks/results", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    script = Path(shutil.copy(BENCHMARKS / "rounds.py", tmp_path / "benchmarks"))
    assert commit() == "unknown"
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    number = git("rev-parse", "HEAD")[:10]
    assert commit() == number
    (tmp_path / "benchmarks" / "results" / "a.json").write_text("{}")
    (tmp_path / "docs" / "a.md").write_text("written by the script")
    assert commit() == number
    script.write_text(script.read_text() + "# changed\n")
    assert commit() == f"{number}+"


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


def test_each_table_and_picture_of_performance_is_written_by_the_script() -> None:
    text = (DOCS / "performance.md").read_text("utf-8")
    blocks = re.findall(r"<!-- ([\w-]+) -->\n(.*?)\n<!-- end of \1 -->", text, re.DOTALL)
    for name, block in blocks:
        assert re.search(r"\n\(commit `[0-9a-f]{10}`, \d{4}-\d\d-\d\d; .*; .*\)$", block), name
        text = text.replace(block, "")
    assert "![" not in text
    assert not cells(text)
    writer = module("write_performance")
    pictures = {path.name for path in (DOCS / "pictures").glob("speed-*.svg")}
    assert pictures == {f"speed-{section.name}.svg" for section in writer.SECTIONS}


def example(tmp_path: Path) -> Any:
    """A section, and its folder of results."""
    rounds, writer = module("rounds"), module("write_performance")

    def row(*names: str, ratio: tuple[float, float, float], each: float, goal: Any = None) -> Any:
        return rounds.Row("work", *names, "memcpy", ratio, each, goal, "CPU", 5)

    rows = [
        row("8 of <them>", "memcpy", ratio=(1.0, 1.0, 1.0), each=10.0),
        row("8 of <them>", "stepwell", ratio=(0.496, 0.25, 1.5), each=20.0, goal=0.5),
        row("8 of <them>", "cpprb", ratio=(0.1, 0.1, 0.2), each=100.0),
        row("9", "memcpy", ratio=(1.0, 1.0, 1.0), each=10.0),
        row("9", "stepwell", ratio=(0.494, 0.4, 0.6), each=2_000.0, goal=0.5),
    ]
    results = tmp_path / "results"
    source = {"commit": "0123456789", "date": "2026-01-02", "command": "python x.py"}
    for name, path, chosen in (
        ("one", "compiled core", rows),
        ("one-numpy", "numpy alone", rows[:2]),
    ):
        figures = {
            **source,
            "machine": f"a machine; {path}",
            "rows": [asdict(row) for row in chosen],
        }
        rounds.save(results / f"{name}.json", figures)
    section = writer.Section(
        *("part", "one", "work", "Work of 1 & 2"),
        "At {8 of <them>|stepwell}, {8 of <them>|stepwell|cpprb} times cpprb.",
    )
    return section, writer.Results(results)


def test_a_block_has_a_sentence_a_chart_a_table_and_a_source(tmp_path: Path) -> None:
    section, results = example(tmp_path)
    text, picture = module("write_performance").block(section, results)
    lines = text.splitlines()
    assert lines[0] == "At 0.50, 5.00 times cpprb."
    assert lines[2] == "![Work of 1 & 2](pictures/speed-part.svg)"
    assert lines[-1] == (
        "(commit `0123456789`, 2026-01-02; a machine; compiled core; medians of 5 rounds, with "
        "their quartiles; CPU time; `python x.py`)"
    )
    head, _, *table = cells(text)
    assert head == ["case", "candidate", "times as fast as memcpy", "numpy alone", "us", "goal"]
    assert table == [
        ["8 of <them>", "memcpy", "1", "1", "10.0", ""],
        ["", "stepwell", "0.50 (0.25-1.50)", "0.50 (0.25-1.50)", "20.0", "0.50, met"],
        ["", "cpprb", "0.10 (0.10-0.20)", "", "100", ""],
        ["9", "memcpy", "1", "", "10.0", ""],
        ["", "stepwell", "0.49 (0.40-0.60)", "", "2,000", "0.50, **missed**"],
    ]
    tree = ElementTree.fromstring(picture)
    words = [node.text for node in tree.iter() if node.text]
    assert {"Work of 1 & 2", "8 of <them>", "numpy alone", "0.49"} <= set(words)
    assert "commit 0123456789, 2026-01-02; a machine; medians and quartiles" in words
    assert tree.attrib["aria-label"] == "Work of 1 & 2"


@pytest.mark.parametrize("scale", ["share", "times"])
def test_bars_are_as_long_as_their_ratios(tmp_path: Path, scale: Any) -> None:
    charts = module("charts")
    ratios = (0.25, 0.5, 1.0, 2.0, 4.0)
    bars = [charts.Bar("case", f"{ratio}", "ours", (ratio,) * 3) for ratio in ratios]
    tree = ElementTree.fromstring(charts.chart("t", "limit", "source", bars, scale))
    drawn = [node.attrib for node in tree.iter() if node.attrib.get("class") == "ours"]
    begins, lengths = ([float(bar[name]) for bar in drawn] for name in ("x", "width"))
    if scale == "share":
        assert len(set(begins)) == 1
        assert [length / lengths[2] for length in lengths] == pytest.approx(ratios, rel=0.01)
    else:  # each factor of two is as long, to the left for the slower
        assert lengths == pytest.approx(
            [2 * lengths[3], lengths[3], 1, lengths[3], lengths[4]], abs=0.3
        )
        assert begins[3] == begins[4] == begins[2]
        assert begins[1] + lengths[1] == pytest.approx(begins[3], abs=0.2)


def test_a_sentence_of_what_was_not_measured_is_refused(tmp_path: Path) -> None:
    section, results = example(tmp_path)
    wrong = type(section)(section.name, section.file, section.topic, "t", "{9|cpprb}")
    with pytest.raises(ValueError, match=r"one\.json.*'9', 'cpprb'"):
        module("write_performance").block(wrong, results)


def test_a_page_that_is_not_as_the_files_say_is_found(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    page, picture = docs / "performance.md", docs / "pictures" / "speed-sequences.svg"
    before = page.read_text("utf-8")
    run("write_performance.py", "--check", "--docs", docs)
    page.write_text(re.sub(r"\| 1 +\|", "| 2 |", before, count=1), encoding="utf-8")
    picture.unlink()
    command = [sys.executable, str(BENCHMARKS / "write_performance.py"), "--docs", str(docs)]
    done = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "speed-sequences.svg, performance.md" in done.stderr
    assert not picture.exists()
    subprocess.run(command, check=True)
    assert page.read_text("utf-8") == before
    assert picture.exists()


@needs_checkout
@pytest.mark.proof
@pytest.mark.parametrize("name", ["replay", "disk", "collect", "own-loop", "import", "fishyrl"])
def test_a_part_is_measured(tmp_path: Path, name: str) -> None:
    run("measure_all.py", "--quick", "--only", name, "--folder", tmp_path)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert_has_source(found)
    assert all(0 < row["ratio"][1] <= row["ratio"][0] <= row["ratio"][2] for row in found["rows"])
    assert len({row["topic"] for row in found["rows"]}) == {"replay": 6}.get(name, 1)


# --- costs of another shape -----------------------------------------------------------------------


def test_costs_of_provenance_are_medians_of_rounds() -> None:
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
    text = module("provenance").envs_table({"Pong": rounds})
    sizes = ("Pong", "1,000", "50", "0.4", "125 times", "2,000", "4,000")
    assert cells(text)[2:] == [[*sizes, "0.90 (0.80-1.20)", "1.50 (1.50-1.50)"]]
    shown = module("provenance").trees_table(trees)
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


def test_figures_of_the_viewer_are_medians_of_rounds_against_goals() -> None:
    found = {
        "first frame": [0.4, 0.5, 3.0],
        "scrubbing": [29.0, 20.0, 31.0],
        "page": [60.0, 60.0, 60.0],
        "memory": [301.0, 299.0, 310.0],
        "CPU, first frame": [1.0, 2.0, 3.0],
        "CPU, a painted row": [9.0, 8.0, 7.0],
    }
    text = module("viewing").goals_table(found)
    assert cells(text)[2:] == [
        ["first frame", "s", "0.5", "0.4-3", "<= 1", "0.50", "met"],
        ["scrubbing", "rows a second", "29", "20-31", ">= 30", "0.97", "**missed**"],
        ["page", "kB", "60", "60-60", "<= 100", "0.60", "met"],
        ["memory", "MB", "301", "299-310", "<= 300", "1.00", "**missed**"],
        ["CPU, first frame", "s", "2", "1-3", "", "", ""],
        ["CPU, a painted row", "ms", "8", "7-9", "", "", ""],
    ]


@pytest.mark.proof
def test_the_viewer_is_measured(tmp_path: Path) -> None:
    for package in ("playwright", "uvicorn", "starlette"):
        pytest.importorskip(package)
    if chromium_path() is None:
        pytest.skip("needs Chromium")
    figures = tmp_path / "figures.json"
    sizes = ("--rows", "3000", "--episodes", "300", "--rounds", "1")
    text = run("viewing.py", *sizes, "--folder", tmp_path, "--json", figures)
    assert "first frame" in text
    assert all(taken[0] > 0 for taken in json.loads(figures.read_text())["figures"].values())
    assert list(tmp_path.iterdir()) == [figures]


def test_costs_of_actors_are_medians_of_rounds() -> None:
    step = [{"one process": 4e-4, "actors": actors} for actors in (5e-4, 4.2e-4, 3.6e-4)]
    fed = {"quiet, CPU": 9e-4, "fed, CPU": 1e-3, "quiet, a second": 800.0, "fed, a second": 400.0}
    engine = {"piece": 4e-5, "a second": 1e4, "row": 3e-7, "bytes": 25_600, "rows": 512}
    driver = {"driver with 10 actors": [{"piece": 3e-4}]}
    measured = {"machine": "one", "step": step, "feed": [fed], "LocalEngine": [engine], **driver}
    shown = module("distributed").tables(measured)
    rows = {row[0]: row[1:] for row in cells(shown)}
    assert rows["ratio"] == ["1.05 (0.90-1.25)", "at most 1.10"]
    assert rows["quiet / fed, CPU"] == ["0.90 (0.90-0.90)", "at least 0.9"]
    assert rows["fed / quiet, batches a second"][0] == "0.50 (0.50-0.50)"
    assert rows["LocalEngine: MB/s"][0] == "256 (256-256)"
    assert rows["bytes of a row"][0] == "50 (50-50)"
    assert rows["CPU of a driver with 10 actors a piece"][0] == "300 us (300-300)"


@pytest.mark.proof
def test_the_costs_of_actors_are_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    small = ("--rounds", "1", "--steps", "64", "--pieces", "12", "--groups", "3")
    run("distributed.py", "--only", "step", "engine", "driver", *small, "--json", figures)
    measured = json.loads(figures.read_text())
    assert measured["step"][0]["actors"] > 0
    assert 20 < measured["LocalEngine"][0]["bytes"] / measured["LocalEngine"][0]["rows"] < 200
    assert measured["driver with 3 actors"][0]["piece"] > 0
