"""Which tests a run leaves out, and the lines that say so."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["LEFT_OUT", "REASONS", "left_out", "passed", "proofs_but"]

# Tests with these marks (on a test, a parameter, or a module: pytestmark) are left out of a run.
LEFT_OUT = {"default": ("proof", "full"), "proofs": ("full",), "full": ()}
REASONS = {"proof": "a proof: run with --proofs", "full": "heavy: run with --full"}
# How the reasons of tests begin that miss a package or a program.
MISSING = ("need", "could not import", "pip install", "no module named")


def proofs_but(in_every_run: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values of a parameter, or tuples of several, each a proof but for those named."""
    values = list(values)
    missing = [value for value in in_every_run if value not in values]
    assert not missing, missing
    rest = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        value if value in in_every_run else pytest.param(*parts, marks=pytest.mark.proof)
        for value, parts in zip(values, rest, strict=True)
    ]


def left_out(reasons: Iterable[str]) -> list[str]:
    """A line for each kind of tests that were skipped, with their number and how to run them."""
    numbers = Counter(kind_of(reason.removeprefix("Skipped: ")) for reason in reasons)
    told = {
        "proof": "long proofs (pytest --proofs)",
        "full": "heavy tests (pytest --full)",
        "missing": "that need what is not installed (pip install -e '.[tests]')",
        "other": "that cannot run here (pytest -rs says why)",
    }
    return [f"left out: {numbers[kind]:,} {what}" for kind, what in told.items() if numbers[kind]]


def kind_of(reason: str) -> str:
    """What kind of tests has such a reason."""
    for name, text in REASONS.items():
        if reason == text:
            return name
    return "missing" if reason.lower().startswith(MISSING) else "other"


def passed(file: Path) -> set[tuple[str, str]]:
    """Modules and names of the tests that passed in a run."""
    others = ("properties", "system-out", "system-err")
    return {
        (case.get("classname", ""), case.get("name", ""))
        for case in ElementTree.parse(file).iter("testcase")
        if all(part.tag in others for part in case)
    }
