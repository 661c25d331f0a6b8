"""A library that is not installed."""

from __future__ import annotations

import sys

import pytest


class _Missing:
    """Finds no module of a library."""

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == self._library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a library be missing until the end of the test."""
    for loaded in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [_Missing(library), *sys.meta_path])
