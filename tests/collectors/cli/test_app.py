"""The command as a whole: the version, the help, the table of commands, and a Tab."""

from __future__ import annotations

import importlib
import inspect

import pytest

import stepwell as sw
from stepwell.buffers.base import native
from stepwell.collectors.cli.app import COMMANDS, main
from support.command_line import CommandLine
from support.programs import run_python

LOADED = """
import sys
from stepwell.collectors.cli import main
try:
    main()
finally:
    rooms = {".".join(name.split(".")[:3]) for name in sys.modules if ".buffers." in name}
    large = {"numpy", "gymnasium"} & set(sys.modules) | rooms - {"stepwell.buffers.base"}
    print(large or "", end="", file=sys.stderr)
"""


def test_the_version_is_printed(stepwell: CommandLine) -> None:
    assert stepwell("--version").out == f"stepwell {sw.__version__} ({native.path()})\n"


@pytest.mark.parametrize("command", ["", "--help", "collect --help", "info --help", "envs -h"])
def test_help_is_no_error(stepwell: CommandLine, command: str) -> None:
    result = stepwell(command)
    assert (result.code, result.err) == (0, "")
    assert "stepwell" in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_the_first_sentence_of_each_command(name: str) -> None:
    (module, function), sentence = COMMANDS[name][0].split(":"), COMMANDS[name][1]
    command = getattr(importlib.import_module(f"stepwell.collectors.cli.{module}"), function)
    if isinstance(command, dict):  # of commands: that without a name of its own
        command = command[""]
    assert (command.__doc__ or "").splitlines()[0] == sentence


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_line_that_a_terminal_of_80_columns_would_break(name: str) -> None:
    module, function = COMMANDS[name][0].split(":")
    found = getattr(importlib.import_module(f"stepwell.collectors.cli.{module}"), function)
    for command in found.values() if isinstance(found, dict) else [found]:
        _, *rest = (inspect.getdoc(command) or "").splitlines()  # the first one is set as a text
        lines = [line.replace(r"\[", "[") for line in rest]
        assert [line for line in lines if len(line) > 78] == []


@pytest.mark.parametrize(
    ("name", "hint"), [("drop", "filter --invert"), ("upload", "push"), ("colect", "'collect'")]
)
def test_an_unknown_command_gets_a_hint(name: str, hint: str, stepwell: CommandLine) -> None:
    result = stepwell(f"{name} runs/pong")
    assert (result.code, result.out) == (2, "")
    assert hint in result.err


def asked_for(*words: str) -> dict[str, str]:
    """The environment in which bash asks for what may be the last word."""
    place = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return {**place, "_STEPWELL_COMPLETE": "complete_bash"}


def completed(*words: str) -> tuple[set[str], str]:
    """What bash is offered for the last word, and the large modules that were loaded."""
    run = run_python("-c", LOADED, env=asked_for(*words))
    return set(run.stdout.split()), run.stderr


def test_a_tab_names_commands_and_loads_nothing_large() -> None:
    assert completed("stepwell", "") == (set(COMMANDS), "")
    assert completed("stepwell", "ex") == ({"export"}, "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("filter", "--m"), {"--min-return", "--max-return", "--min-steps", "--max-steps"}),
        (("collect", "Pon"), {"Pong"}),
        (("collect", "CartPole-v"), {"CartPole-v0", "CartPole-v1"}),
        (("export", "runs/pong", "--to", "min"), {"minari"}),
        (("filter", "runs/pong", "--sort", "r"), {"return"}),
        (("collect", "Pong", "--pool", ""), {"max", "none"}),
    ],
)
def test_a_tab_names_options_and_values(
    words: tuple[str, ...],
    found: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in asked_for("stepwell", *words).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == found


def test_the_help_loads_nothing_large() -> None:
    run = run_python("-c", LOADED, "--help")
    assert "collect" in run.stdout
    assert run.stderr == ""
