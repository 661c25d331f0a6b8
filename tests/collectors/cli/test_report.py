"""`stepwell report`: the command around `write_report`, which has tests of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.command_line import CommandLine


@pytest.fixture
def stores(stepwell: CommandLine) -> CommandLine:
    for name, seed in (("a", 1), ("b", 2)):
        stepwell(
            f"collect CartPole-v1 --workers 0 --num-envs 2 --episodes 9 --out {name} --seed {seed}"
        )
    return stepwell


def test_a_report_is_written(stores: CommandLine) -> None:
    shown = stores("report a -o a.html").out
    for part in ("1 store", "of 9 episodes to play", "kB", "in a.html"):
        assert part in shown
    page = Path("a.html").read_text()
    assert "<h1>a</h1>" in page
    assert 1 <= page.count('"starts_late":') <= 7


def test_its_options(stores: CommandLine) -> None:
    made = stores(
        "report a b -o a.html --title Both --episodes best:2,3 --max-size 400kB --digest --json"
    )
    facts = json.loads(made.out)
    assert facts["stores"] == 2
    assert 4 <= facts["playable"] <= 6
    assert facts["nbytes"] == Path("a.html").stat().st_size <= 400_000
    page = Path("a.html").read_text()
    assert "<h1>Both</h1>" in page
    assert re.search("digest(</?t[hd][^>]*>)+[0-9a-f]{16}(</?t[hd][^>]*>)+[0-9a-f]{16}<", page)


def test_it_is_quiet_and_replaces_a_file_only_if_told(stores: CommandLine) -> None:
    assert stores("report a -o a.html --quiet").out == ""
    before = Path("a.html").read_text()
    refused = stores("report b -o a.html")
    assert refused.code == 2
    assert "a.html" in refused.err
    assert "--overwrite" in refused.err
    assert Path("a.html").read_text() == before
    stores("report b -o a.html --overwrite --quiet")
    assert "<h1>b</h1>" in Path("a.html").read_text()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("report a -o a.html --episodes bst:3", ["episodes", "'bst:3'"]),
        ("report a -o a.html --episodes 99", ["episodes", "99"]),
        ("report a -o a.html --max-size 9kB", ["max_bytes", "9.0 kB"]),
        ("report a -o a.html --max-size big", ["--max-size", "'big'"]),
        ("report a", ["--out"]),
        ("report -o a.html", ["DIR"]),
        ("report nothing -o a.html", ["nothing"]),
        ("report a -o no/a.html", ["no/a.html"]),
    ],
)
def test_wrong_words_are_one_sentence(command: str, parts: list[str], stores: CommandLine) -> None:
    result = stores(command)
    said = result.err
    assert result.code == 2
    assert all(part in said for part in parts)
    assert len(said.strip().splitlines()) == 1
    assert not Path("a.html").exists()
