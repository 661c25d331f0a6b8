"""Each script in examples/ runs, small: all of them take `--steps N` and `--out DIR`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import CHECKOUT

EXAMPLES = sorted((CHECKOUT / "examples").glob("*.py"))
LINE_LIMIT = 60
# A whole learner in one file, as CleanRL has it: network, policy, loss and loop.
LINE_LIMITS = {"ppo_atari": 130, "ppo_cartpole": 130}
STEPS = 200

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


def test_there_are_examples() -> None:
    assert EXAMPLES


@each_example
def test_an_example_runs_without_a_warning_and_says_what_it_did(
    example: Path, tmp_path: Path
) -> None:
    arguments = ["--steps", str(STEPS), "--out", str(tmp_path / "out")]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()


@each_example
def test_an_example_is_short_and_says_what_it_shows(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= LINE_LIMITS.get(example.stem, LINE_LIMIT)


def test_the_exceptions_to_the_line_limit_are_examples() -> None:
    assert LINE_LIMITS.keys() <= {example.stem for example in EXAMPLES}
