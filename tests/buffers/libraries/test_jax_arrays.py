"""Batches of JAX arrays: equal numbers in separate memory; run in another process."""

from __future__ import annotations

import ast
import importlib.util

import pytest

from support.programs import run_python
from support.source_tree import CHECKOUT

if importlib.util.find_spec("jax") is None:  # not imported: JAX warns of later forks
    pytest.skip("needs jax", allow_module_level=True)

SCENARIO = CHECKOUT / "tests" / "support" / "libraries" / "jax_scenario.py"
CHECKS = [
    node.name
    for node in ast.parse(SCENARIO.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def passed() -> tuple[list[str], str]:
    """The checks that passed, and all output."""
    name = "support.libraries.jax_scenario"
    run = run_python("-m", name, code=None, cwd=CHECKOUT / "tests")
    return run.stdout.split(), run.stdout + run.stderr


@pytest.mark.parametrize("check", CHECKS)
def test_in_jax(check: str, passed: tuple[list[str], str]) -> None:
    names, text = passed
    assert check in names, text
