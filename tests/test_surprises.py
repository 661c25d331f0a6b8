"""The tables of what one would guess wrong: each line names a version, and a test or a finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/envs.md", "docs/feeding.md")


def lines(page: str) -> list[list[str]]:
    """The rows of the table of a page, as cells."""
    text = (ROOT / page).read_text("utf-8").split("<!-- surprises -->")[1]
    table = text.strip().split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[2:]]


@pytest.mark.parametrize("page", PAGES)
def test_each_line_names_a_version_and_what_shows_it(page: str) -> None:
    for cells in lines(page):
        assert len(cells) == 5, cells
        package, *_, shown_by = cells
        assert re.search(r"\d+\.\d+", package), f"{package}: no version"
        places = re.findall(r"`((?:tests|findings)/[^`:]+)(?:::(\w+))?`", shown_by)
        assert places, f"{shown_by}: names no test and no finding"
        for path, name in places:
            assert (ROOT / path).is_file(), path
            if name:
                assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
