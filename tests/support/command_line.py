"""Runs the command line within the test's process, with modules that a user might name."""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from stepwell.collectors.cli.app import main

# Typer makes all commands anew for each call, which takes longer than most calls do.
cast("Any", typer.main).get_command = functools.cache(typer.main.get_command)

MODULE = """
import numpy as np
from support.envs.fakes import CounterEnv, CrashEnv

def zeros(observation, is_first): return np.zeros(len(is_first), np.int64)
def wide(observation, is_first): return np.zeros((len(is_first), 2), np.int64)
def floats(observation, is_first): return np.zeros(len(is_first), np.float32)
def high(observation, is_first): return np.full(len(is_first), 99)
def fails(observation, is_first): return [][0]
def one(observation): return np.zeros(len(observation), np.int64)
def none(): return 0
class Agent:
    def __init__(self): self.calls = 0
    def __call__(self, observation, is_first):
        self.calls += 1
        return zeros(observation, is_first), {"calls": np.full(len(is_first), self.calls)}
class Tired(Agent):
    def __call__(self, observation, is_first):
        if self.calls == 20: raise KeyError("tired")
        return super().__call__(observation, is_first)
class Counting:
    def initial_state(self, num_envs): return np.zeros(num_envs, np.int64)
    def __call__(self, observation, is_first, state):
        return zeros(observation, is_first), state + 1, {"age": state}
class Stateless(Counting):
    def __call__(self, observation, is_first): pass
class Needy:
    def __init__(self, model): pass
    def __call__(self, observation, is_first): pass
number = 3
def counter(): return CounterEnv(5)
def crash_at_once(): return CrashEnv(1)
def crash_later(): return CrashEnv(9)
def unmade(): return undefined
"""


def has_parts(text: str, parts: str) -> bool:
    """True if the text contains all parts, which are separated by ``|``, in their order."""
    return re.search(".*".join(map(re.escape, parts.split("|"))), text) is not None


def contents() -> dict[Path, bytes]:
    """All files and folders here, less what imports and writers that were refused leave."""
    paths = [path for path in Path().rglob("*") if not {"__pycache__", "LOCK"} & {*path.parts}]
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class CommandLine:
    """The command `stepwell`, in this process.

    Args:
        monkeypatch: Undoes what importing the user's modules does.
        capsys: Reads what is printed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._patch = monkeypatch
        monkeypatch.setattr(sys, "path", list(sys.path))
        self.write("mine", MODULE)

    def write(self, name: str, source: str) -> None:
        """Put a module into the current folder."""
        Path(f"{name}.py").write_text(source)
        self._patch.delitem(sys.modules, name, raising=False)
        # Undone after the test: the name is another module in the next one.
        self._patch.setitem(sys.modules, name, sys)
        del sys.modules[name]

    def __call__(self, command: str) -> Result:
        """Run a command."""
        self._capsys.readouterr()
        code = main(command.split())
        output = self._capsys.readouterr()
        return Result(code, output.out, output.err)

    def refused(self, command: str, parts: str = "") -> None:
        """Run a command that is wrong: it says so in one sentence, and changes no file."""
        before = contents()
        result = self(command)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("stepwell: ")
        assert result.err.count("\n") == 1
        assert has_parts(result.err, parts), result.err
        assert contents() == before

    def json(self, command: str) -> dict[str, Any]:
        """Run a command, which must succeed, with ``--json``; return the object that it prints."""
        result = self(f"{command} --json")
        assert (result.code, result.err) == (0, "")
        assert result.out.count("\n") == 1
        return cast("dict[str, Any]", json.loads(result.out))
