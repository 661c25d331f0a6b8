"""Every example in a docstring runs and prints the shown output."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from demo_rom import write_demo
from support.source_tree import FOLDERS, module_names

MODULES = ["stepwell", *(name for folder in FOLDERS for name in module_names(folder))]
NES = "stepwell.wrappers.nes."
# Packages of extras, by module.
LIBRARIES = "stepwell.buffers.libraries."
# They load JAX, which other tests must not: their examples are run by a scenario of their own.
WITH_JAX = (f"{LIBRARIES}jax_learners", "stepwell.wrappers.jax_envs")
NEEDS = {
    "stepwell.collectors.distributed.ray_engine": "ray",
    "stepwell.wrappers.envpool": "envpool",
    f"{LIBRARIES}cleanrl": "torch",
    f"{LIBRARIES}skrl_memory": "skrl",
    f"{LIBRARIES}torch_policies": "torch",
    "stepwell.wrappers.torch_envs": "torch",
    **dict.fromkeys(
        [f"stepwell.buffers.dropin.sb3.{name}" for name in ("hindsight", "replay", "rollout")],
        "torch",
    ),
    "stepwell.buffers.exchange.formats.tfrecord": "google_crc32c",
    **dict.fromkeys(
        [f"{LIBRARIES}torchrl.{name}" for name in ("batches", "from_torchrl", "replay")], "torchrl"
    ),
    **dict.fromkeys(
        [f"{LIBRARIES}tianshou.{name}" for name in ("batches", "from_tianshou", "replay")],
        "tianshou",
    ),
    **dict.fromkeys(
        [f"{LIBRARIES}sb3.{name}" for name in ("models", "policy", "replay", "rollout")],
        "stable_baselines3",
    ),
    **dict.fromkeys(
        [f"{NES}{name}" for name in ("emulators", "env", "snapshot", "vector")], "cynes"
    ),
}
VIEW = "stepwell.buffers.view.server."
NEEDS |= {f"{VIEW}{name}": "starlette" for name in ("app", "guard")} | {f"{VIEW}serving": "uvicorn"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def doctests_of(name: str) -> list[doctest.DocTest]:
    # By name: collecting the files would load each class a second time under a bare name.
    tests = doctest.DocTestFinder().find(importlib.import_module(name), name)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in WITH_JAX:
        pytest.skip("run by tests/collectors/loop/test_jax_envs.py, in another process")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}")
    if name.startswith(NES):  # the reader's cartridge
        write_demo(tmp_path)
        monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for test in doctests_of(name):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
