"""The tables of comparisons are those of the measured figures, and these see a wrong row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT, PACKAGE

BENCHMARKS = CHECKOUT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs benchmarks/ of the checkout")


def in_benchmarks(program: str) -> str:
    imports = "import json, comparison, env_families as f"
    command = [sys.executable, "-c", f"{imports}\n{program}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.proof
def test_the_pages_have_the_tables_of_the_figures() -> None:
    program = (
        "found = comparison.pages(json.loads(comparison.RESULTS.read_text()))\n"
        "print(json.dumps({str(path): text for path, text in found.items()}))"
    )
    for path, text in json.loads(in_benchmarks(program)).items():
        assert Path(path).read_text("utf-8") == text, "run benchmarks/comparison.py --write"


@pytest.mark.proof
def test_stepwell_keeps_what_the_page_says(tmp_path: Path) -> None:
    for case in ("ends", "live"):
        folder = tmp_path / case
        folder.mkdir()
        run = f"comparison.run('Stepwell', {case!r}, comparison.Path({str(folder)!r}))"
        found = json.loads(in_benchmarks(f"print(json.dumps({run}))"))
        assert found["rows"] == found["true next observations"] == found["true flags"] == 400
        assert found["true last observations"] == found["ends"] > 80


def test_the_citation_names_this_version() -> None:
    lines = dict(
        line.split(": ", 1)
        for line in (CHECKOUT / "CITATION.cff").read_text("utf-8").splitlines()
        if ": " in line and not line.startswith(" ")
    )
    assert lines["cff-version"] == "1.2.0"
    assert lines["license"] == "MIT"
    package = (PACKAGE / "buffers" / "base" / "package.py").read_text("utf-8")
    assert f'__version__ = "{lines["version"]}"' in package
    assert {"message", "title"} <= lines.keys()


# The families of envs of docs/envs.md


@pytest.mark.proof
def test_the_page_has_the_table_of_the_figures() -> None:
    program = "print(json.dumps(f.page(json.loads(f.RESULTS.read_text()))))"
    assert json.loads(in_benchmarks(program)) == (CHECKOUT / "docs" / "envs.md").read_text("utf-8")


@pytest.mark.proof
def test_rows_of_envs_that_are_always_there_are_those_of_bare_envs() -> None:
    names = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"]
    found = json.loads(
        in_benchmarks(f"print(json.dumps([f.measured(f.FAMILIES[0], name) for name in {names}]))")
    )
    assert all(case["rows"] >= 120 and case["repeats"] for case in found), found


@pytest.mark.proof
@pytest.mark.parametrize("field", ["observation", "reward", "action"])
def test_a_wrong_row_is_seen(field: str) -> None:
    program = (
        "import types\n"
        "replay, logs = f.collected('Pendulum-v1')\n"
        "episode = next(iter(replay.iter_episodes()))\n"
        "(play,) = [p for log in logs for p in log if p.seed == episode.metadata['seed']]\n"
        "assert f.compare(replay, episode, play) == episode.steps + 1\n"
        "names = 'observation', 'action', 'reward', 'steps', 'end'\n"
        "wrong = types.SimpleNamespace(**{name: getattr(episode, name) for name in names})\n"
        f"wrong.{field} = wrong.{field} + 0\n"
        f"wrong.{field}[5] += 0.25\n"
        "try:\n"
        "    f.compare(replay, wrong, play)\n"
        "except AssertionError as error:\n"
        "    print(error)\n"
    )
    assert f"differs in the {field} of row 5" in in_benchmarks(program)


@pytest.mark.full
def test_rows_of_all_installed_families_are_those_of_bare_envs(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    in_benchmarks(
        f"from pathlib import Path\nPath({str(found)!r}).write_text(json.dumps(f.measure([])))"
    )
    families = json.loads(found.read_text())
    cases = [case for family in families for case in family["cases"]]
    assert [case for case in cases if "differs" in case] == []
    assert sum("rows" in case for case in cases) > 10
