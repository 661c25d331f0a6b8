"""The demonstration's files, in the folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_rom import write_demo


@pytest.fixture
def demo(tmp_path: Path) -> tuple[Path, Path]:
    """Paths of game.nes and of its map, the folder game."""
    return write_demo(tmp_path / "demo")


@pytest.fixture
def rom(demo: tuple[Path, Path]) -> Path:
    return demo[0]


@pytest.fixture
def game(demo: tuple[Path, Path]) -> Path:
    return demo[1]
