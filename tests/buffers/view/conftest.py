"""Stores to look at, for all tests of the view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.viewer import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of `support.viewed_stores` by the name of its function, made once."""
    from support import viewed_stores  # not all tests here have what it needs

    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("stores") / name
            made[name] = getattr(viewed_stores, name)(folder)
        return made[name]

    return find
