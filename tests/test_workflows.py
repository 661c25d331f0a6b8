"""The files for GitHub are valid, and the actions that they use are pinned."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FILES = [*sorted(GITHUB.rglob("*.yml")), CHECKOUT / "examples/many_machines/kuberay.yaml"]
LINTED = {
    "extends": "default",
    "rules": {
        "line-length": "disable",
        "document-start": "disable",
        "comments": {"min-spaces-from-content": 1},
    },
}
# Each forms a line of its own: `uses: owner/name@HASH # v1.2.3`.
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")

pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="no checkout: there are no workflows")


def unpinned(text: str) -> list[str]:
    """The actions of a workflow that are not pinned to a commit."""
    used = re.findall(r"^ *(?:- )?uses: *(.+)$", text, re.MULTILINE)
    return [action for action in used if not PINNED.fullmatch(action)]


def commands_of_the_python_tool(*arguments: str) -> str:
    """Run a module of the test environment in the checkout; return what it found wrong."""
    run = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=CHECKOUT, capture_output=True, text=True
    )
    return run.stdout + run.stderr if run.returncode else ""


def test_every_action_is_pinned_to_a_commit() -> None:
    assert {path.name: found for path in WORKFLOWS if (found := unpinned(path.read_text()))} == {}


def test_yamllint_finds_nothing() -> None:
    pytest.importorskip("yamllint")
    names = [str(path) for path in FILES]
    lint = ("yamllint", "--strict", "-d", json.dumps(LINTED))
    assert commands_of_the_python_tool(*lint, *names) == ""


@pytest.mark.proof
@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.dependabot", [GITHUB / "dependabot.yml"])],
    ids=["workflows", "dependabot"],
)
def test_the_files_fit_githubs_schemas(schema: str, files: list[Path]) -> None:
    pytest.importorskip("check_jsonschema")
    names = [str(path) for path in files]
    check = ("check_jsonschema", "--builtin-schema", schema)
    assert commands_of_the_python_tool(*check, *names) == ""
