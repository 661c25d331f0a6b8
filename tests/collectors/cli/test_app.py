"""The command as a whole: the version and the help."""

from __future__ import annotations

import pytest

import stepwell as sw
from stepwell.buffers import native
from support.command_line import CommandLine


def test_the_version_is_printed(stepwell: CommandLine) -> None:
    assert stepwell("--version").out == f"stepwell {sw.__version__} ({native.path()})\n"


@pytest.mark.parametrize("command", ["", "--help", "collect --help", "info --help", "envs -h"])
def test_help_is_no_error(stepwell: CommandLine, command: str) -> None:
    result = stepwell(command)
    assert (result.code, result.err) == (0, "")
    assert "stepwell" in result.out


@pytest.mark.parametrize("command", ["view", "report", "render"])
def test_the_help_shows_what_is_in_brackets(stepwell: CommandLine, command: str) -> None:
    said = " ".join(stepwell(f"{command} --help").out.split())
    extra = {"view": "'stepwell[view]'", "render": "'stepwell[video]'"}.get(command, "")
    folders = "{DIR}" if command == "render" else "{DIR}..."
    assert f"stepwell {command} [OPTIONS] {folders} " in said
    assert extra in said


def test_help_teaches_by_examples(stepwell: CommandLine) -> None:
    assert "stepwell collect Pong --steps 100_000 --out runs/pong" in stepwell("collect --help").out
