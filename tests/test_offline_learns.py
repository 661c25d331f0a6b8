"""d3rlpy's CQL beats the policy whose episodes it was given, by a factor of two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.libraries.d3rlpy_python import python_with_d3rlpy, run
from support.source_tree import CHECKOUT

EXAMPLE = str(CHECKOUT / "examples" / "offline_d3rlpy.py")


@pytest.mark.full
def test_cql_doubles_the_return_of_a_half_random_policy(
    tmp_path: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("h5py", reason="needs h5py")
    out = ["--out", str(tmp_path / "out")]
    recorded = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, *out], capture_output=True, text=True, check=True
    )
    python = python_with_d3rlpy(pytestconfig, tmp_path_factory)
    learned = run(python, EXAMPLE, "--train", *out, timeout=900)
    behaviour, after = (mean(text) for text in (recorded.stdout, learned))
    assert 140 < behaviour < 200
    assert after >= 2 * behaviour


def mean(text: str) -> float:
    found = re.search(r"mean return ([\d.]+)", text)
    assert found, text
    return float(found[1])
