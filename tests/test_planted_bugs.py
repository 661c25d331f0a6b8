"""Tests can fail: each of these bugs, planted in a copy of the package, is found by its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planted_bugs import BUGS, Bug

ROOT = Path(__file__).parents[1]
PARTS = ("wrappers", "buffers", "collectors", "src")
MOST_SECONDS = 1_800
ALL_PASSED, SOME_FAILED = 0, 1  # exit codes of pytest; others say that the list is wrong

pytestmark = pytest.mark.skipif(
    not (ROOT / "buffers").is_dir(), reason="no checkout: there is no source to plant them in"
)


def test_each_bug_can_be_planted_and_there_are_many() -> None:
    assert len(BUGS) >= 200
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        text = (ROOT / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.name}: {bug.old!r} in {bug.file}"
        compile(text.replace(bug.old, bug.new), bug.file, "exec")
        assert 1 <= len(bug.found_by) <= 2, bug.name
        for test in bug.found_by:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{bug.name}: {test}"


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found(tmp_path: Path, bug: Bug) -> None:
    package = copied_package(tmp_path)
    place = package / bug.file
    place.write_text(place.read_text().replace(bug.old, bug.new))
    done = run(package, "-x", *bug.found_by)
    if done.returncode == ALL_PASSED and " passed" not in done.stdout:
        pytest.skip("its tests need what is not installed here")
    assert done.returncode == SOME_FAILED, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.full
def test_without_a_bug_nothing_is_found(tmp_path: Path) -> None:
    tests = dict.fromkeys(test for bug in BUGS for test in bug.found_by)
    done = run(copied_package(tmp_path), *tests)
    assert done.returncode == ALL_PASSED, done.stdout[-4000:] + done.stderr[-1000:]


def copied_package(folder: Path) -> Path:
    """A copy of the package with its compiled core, if there is one; its folder."""
    package = folder / "package"
    for part in PARTS:
        shutil.copytree(ROOT / part, package / part, symlinks=True)
    return package


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests of this checkout on a copy of the package, as every run does: without proofs."""
    options = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile", "planted")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(package / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
