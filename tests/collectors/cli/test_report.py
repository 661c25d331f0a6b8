"""`stepwell report`: the command around `write_report`, which has tests of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.command_line import CommandLine, has_parts


@pytest.fixture
def stores(stepwell: CommandLine) -> CommandLine:
    pole = "collect CartPole-v1 --workers 0 --num-envs 2 --episodes 9 --quiet"
    for name, seed in (("a", 1), ("b", 2)):
        assert stepwell(f"{pole} --out {name} --seed {seed}").code == 0
    return stepwell


def test_a_report_is_written_and_replaced_only_if_told(stores: CommandLine) -> None:
    shown = stores("report a -o a.html").out
    assert has_parts(shown.replace("\n", " "), "1 store|of 9 episodes to play|kB|in a.html")
    page = Path("a.html").read_text()
    assert "<h1>a</h1>" in page
    assert 1 <= page.count('"starts_late":') <= 7
    stores.refused("report b -o a.html", "a.html|--overwrite")
    assert stores("report b -o a.html --overwrite --quiet").out == ""
    assert "<h1>b</h1>" in Path("a.html").read_text()


def test_its_options(stores: CommandLine) -> None:
    options = "--title Both --episodes best:2,3 --max-size 400kB --digest"
    facts = stores.json(f"report a b -o a.html {options}")
    assert facts["stores"] == 2
    assert 4 <= facts["playable"] <= 6
    assert facts["nbytes"] == Path("a.html").stat().st_size <= 400_000
    page = Path("a.html").read_text()
    assert "<h1>Both</h1>" in page
    assert re.search("digest(</?t[hd][^>]*>)+[0-9a-f]{16}(</?t[hd][^>]*>)+[0-9a-f]{16}<", page)
    for command, parts in (
        ("report a -o b.html --episodes bst:3", "episodes|'bst:3'"),
        ("report a -o b.html --max-size big", "--max-size|'big'"),
        ("report a", "--out"),
        ("report -o b.html", "DIR"),
        ("report nothing -o b.html", "nothing"),
        ("report a -o no/b.html", "no/b.html"),
    ):
        stores.refused(command, parts)
