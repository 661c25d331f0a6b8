"""Ctrl-C while the command line is still being loaded, and where it is parsed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.programs import run_python
from support.source_tree import CHECKOUT

SENTENCE = "stepwell: interrupted; nothing kept\n"

# Python imports this before anything else: it interrupts the process when a module is looked for.
INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Interrupts)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Interrupts)
"""


def started(
    module: str, *arguments: str, number: str = "SIGINT"
) -> subprocess.CompletedProcess[str]:
    """The installed command, interrupted where a module is about to be loaded."""
    Path("hooks").mkdir()
    Path("hooks/sitecustomize.py").write_text(INTERRUPTS.format(module=module, number=number))
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    home, name = project["project"]["scripts"]["stepwell"].split(":")
    code = f"import sys; from {home} import {name}; sys.exit({name}())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": "hooks"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    "module",
    [
        "stepwell.collectors.cli.app",
        "numpy",
        "numpy._core._multiarray_umath",
        "gymnasium",
        "typer",
        "rich.console",
        "stepwell.collectors.cli.options",
    ],
)
def test_ctrl_c_while_modules_are_loaded_is_one_sentence(module: str) -> None:
    done = started(module, "envs")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", SENTENCE)


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_so_is_the_end_of_a_job_or_a_terminal(number: str, code: int) -> None:
    done = started("numpy", "envs", number=number)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", SENTENCE)


@pytest.mark.proof
def test_ctrl_c_while_arguments_are_read_is_one_sentence() -> None:
    code = (
        "import os, signal, sys\n"
        "from stepwell.collectors.cli import app, main\n"
        "app.typer.echo = lambda text: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(main())"
    )
    done = run_python("-c", code, "--version", code=130)
    assert (done.stdout, done.stderr) == ("", SENTENCE)


@pytest.mark.proof
def test_the_command_runs_where_ctrl_c_is_ignored() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    code += "from stepwell.collectors.cli import main; main()"
    assert run_python("-c", code, "--version").stdout.startswith("stepwell ")
