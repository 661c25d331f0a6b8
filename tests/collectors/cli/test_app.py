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
    rooms = {".".join(name.split(".")[:3]) for name in sys.modules if name.startswith("stepwell.")}
    rooms = {name for name in rooms if name.startswith(("stepwell.buffers.", "stepwell.wrappers."))}
    large = {"numpy", "gymnasium"} & set(sys.modules) | rooms - {"stepwell.buffers.base"}
    print(large or "", end="", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("--version", f"stepwell {sw.__version__} ({native.path()})\n"),
        *((command, "stepwell") for command in ("", "--help", "info --help", "envs -h")),
    ],
)
def test_version_and_help_are_no_errors(stepwell: CommandLine, command: str, shown: str) -> None:
    result = stepwell(command)
    assert (result.code, result.err, shown in result.out) == (0, "", True)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_first_sentences_and_lines_for_80_columns(name: str) -> None:
    module, function = COMMANDS[name][0].split(":")
    found = getattr(importlib.import_module(f"stepwell.collectors.cli.{module}"), function)
    commands = found if isinstance(found, dict) else {"": found}
    assert (commands[""].__doc__ or "").splitlines()[0] == COMMANDS[name][1]
    for command in commands.values():
        _, *rest = (inspect.getdoc(command) or "").splitlines()  # the first one is set as a text
        lines = [line.replace(r"\[", "[") for line in rest]
        assert [line for line in lines if len(line) > 78] == []


@pytest.mark.parametrize(
    ("name", "hint"), [("drop", "filter --invert"), ("upload", "push"), ("colect", "'collect'")]
)
def test_an_unknown_command_gets_a_hint(name: str, hint: str, stepwell: CommandLine) -> None:
    stepwell.refused(f"{name} runs/pong", hint)


def asked_for(*words: str) -> dict[str, str]:
    """The environment in which bash asks for what may be the last word."""
    place = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return {**place, "_STEPWELL_COMPLETE": "complete_bash"}


def test_a_tab_and_the_help_load_nothing_large() -> None:
    for word, found in (("", set(COMMANDS)), ("ex", {"export"})):
        run = run_python("-c", LOADED, env=asked_for("stepwell", word))
        assert (set(run.stdout.split()), run.stderr) == (found, "")
    run = run_python("-c", LOADED, "--help")
    assert ("collect" in run.stdout, run.stderr) == (True, "")


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
