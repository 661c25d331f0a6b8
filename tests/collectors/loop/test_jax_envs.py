"""Envs that run in JAX, stepped many times at once; run in another process."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from support.examples import by_tier
from support.programs import run_python
from support.source_tree import CHECKOUT
from support.tiers import proofs_but

if importlib.util.find_spec("jax") is None:  # not imported: JAX warns of later forks
    pytest.skip("needs jax", allow_module_level=True)

SCENARIO = CHECKOUT / "tests" / "support" / "libraries" / "jax_envs_scenario.py"
CHECKS = [
    node.name
    for node in ast.parse(SCENARIO.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]
# One against a model, and those that compile next to nothing; each of the others compiles for long.
IN_EVERY_RUN = {
    "check_the_rows_are_those_of_a_loop_over_one_env_at_a_time",
    "check_an_action_outside_of_the_space_is_refused_before_a_row_is_stored",
    "check_wrong_envs_are_refused_before_the_first_step",
    "check_envs_are_not_pickled_or_copied",
    "check_the_examples_in_docstrings_run",
}


def run(platform: str, *words: str) -> tuple[dict[str, str], str]:
    """The checks that ran, each with the reason why it was left out, if so; and all output."""
    name = "support.libraries.jax_envs_scenario"
    folder, variables = CHECKOUT / "tests", {"JAX_PLATFORMS": platform}
    done = run_python("-m", name, *words, code=None, cwd=folder, env=variables)
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {name: reason for name, _, reason in lines}, done.stdout + done.stderr


@pytest.fixture(scope="module")
def on_cpu() -> tuple[dict[str, str], str]:
    words: tuple[list[str], ...] = (sorted(IN_EVERY_RUN), [], ["full"])
    return run("cpu", *words[by_tier(0, 1, 2)])


@pytest.mark.parametrize("check", proofs_but(IN_EVERY_RUN, CHECKS))
def test_on_the_cpu(check: str, on_cpu: tuple[dict[str, str], str]) -> None:
    found, text = on_cpu
    assert check in found, text
    if found[check]:
        pytest.skip(found[check])


def test_on_a_gpu_the_rows_are_right_too() -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("needs an NVIDIA GPU, and jax[cuda12]")
    if importlib.util.find_spec("jax_cuda12_plugin") is None:
        pytest.skip("needs jax[cuda12]")
    found, text = run("cuda", "any-device")
    assert len(found) >= 4, text
    assert not any(found.values()), text
