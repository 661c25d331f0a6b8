"""Assertions on the notes of an export's or an import's report."""

from __future__ import annotations

import re
from collections.abc import Sequence


def assert_notes(notes: Sequence[str], *patterns: str) -> None:
    """Assert that there is one note for each pattern, in this order, and that each matches."""
    assert len(notes) == len(patterns), notes
    for note, pattern in zip(notes, patterns, strict=True):
        assert re.search(pattern, note), f"{note!r} does not match {pattern!r}"


def has_note(notes: Sequence[str], pattern: str) -> bool:
    """Return whether a note matches the pattern."""
    return any(re.search(pattern, note) for note in notes)
