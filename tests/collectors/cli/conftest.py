"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from support.command_line import CommandLine


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line, in an empty folder."""
    return CommandLine(monkeypatch, capsys)
