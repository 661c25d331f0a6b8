"""The tables of docs/comparison.md and README.md are those of the measured figures."""

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
    command = [sys.executable, "-c", f"import comparison\n{program}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.proof
def test_the_pages_have_the_tables_of_the_figures() -> None:
    program = (
        "import json\n"
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
        found = json.loads(in_benchmarks(f"print(comparison.json.dumps({run}))"))
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
