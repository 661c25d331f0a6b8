"""The commands and code of README.md and docs/ run exactly as written."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from demo_rom import write_demo
from support import documents
from support.needed import imported, skip_without
from support.programs import run_python
from support.source_tree import CHECKOUT

FOLDERS = [CHECKOUT / "docs", CHECKOUT / "examples"]
DOCUMENTS = [CHECKOUT / "README.md", *(path for at in FOLDERS for path in sorted(at.rglob("*.md")))]
# Packages of extras, by document, less those that its code imports.
NEEDS = {
    "docs/envpool": ["envpool"],
    "docs/feeding/d3rlpy": ["h5py"],
    "docs/feeding/minari": ["h5py", "pyarrow"],
    "docs/feeding/sheeprl": ["torch"],
    "docs/feeding/tables": ["google_crc32c"],
    "docs/many-machines": ["ray"],
    "docs/migrate": ["torch"],
    "docs/nes": ["cynes"],
    "docs/stores": ["obstore"],
    "docs/viewing": ["av"],
    "examples/dreamer/README": ["torch"],
}

IN_EVERY_RUN = ("README.md", "docs/quickstart.md", "docs/your-own-loop.md", "docs/sampling.md")


def name_of(document: Path) -> str:
    return document.relative_to(CHECKOUT).as_posix()


each_document_to_run = pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=[] if name_of(path) in IN_EVERY_RUN else pytest.mark.proof)
        for path in DOCUMENTS
    ],
    ids=name_of,
)


@each_document_to_run
def test_a_document_runs_as_written(document: Path, tmp_path: Path) -> None:
    name = name_of(document).removesuffix(".md")
    script = documents.script(document.read_text("utf-8"))
    skip_without([*imported(script), *NEEDS.get(name, [])])
    program = tmp_path / f"{document.stem}_md.py"  # no name that a library has
    program.write_text(script, encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    if document.stem == "nes":  # the reader's cartridge
        write_demo(folder)
    commands = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    run_python(program, cwd=folder, env={"PATH": commands})  # as in an environment switched on


def test_a_script_keeps_each_block_on_its_lines() -> None:
    text = "# Title\n```python\na = 1\n```\ntext\n```python\nb = a\n```\n"
    assert documents.script(text) == "\n\na = 1\n\n\n\nb = a\n\n"


def test_a_console_block_runs_its_prompted_lines_and_not_what_they_printed() -> None:
    text = "```console\n$ stepwell info runs/pong\nspec observation\n$ stepwell envs\n```\n"
    lines = documents.script(text).splitlines()
    assert "'info', 'runs/pong'" in lines[1]
    assert lines[2] == ""
    assert "'envs'" in lines[3]


def test_a_command_may_go_on_over_lines() -> None:
    text = "```bash\n# collect\nstepwell collect ALE/Pong-v5 \\\n    --out runs\n```\n"
    lines = documents.script(text).splitlines()
    assert lines[1] == lines[2] == ""
    assert "'collect', 'ALE/Pong-v5', '--out', 'runs'" in lines[3]


def test_a_block_is_left_out_only_with_a_reason() -> None:
    marked = "<!-- not run: needs a trained net -->\n```python\nlearn(batch)\n```\n"
    assert documents.script(marked).strip() == ""
    for mark in ("<!-- not run: -->", "<!-- not run -->"):
        assert "learn" in documents.script(f"{mark}\n```python\nlearn(batch)\n```\n")


def test_a_directive_of_the_site_is_not_run() -> None:
    assert documents.script("```{toctree}\n:caption: Start\n\natari\n```\n").strip() == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```", "line 1: the block's language is ''"),
        ("```Python\nx\n```", "the block's language is 'Python'"),
        ("```python\nx = 1\n", "line 1: the block is never closed"),
        ("- item\n\n  ```python\n  x\n  ```", "line 3: an indented block cannot be run"),
        ("```bash\npip install x\n```", r"line 2: only a plain `stepwell \.\.\.` command"),
        ("```console\n$ stepwell envs | head\n```", "line 2: only a plain"),
    ],
    ids=["no language", "capital", "open", "indented", "other command", "pipe"],
)
def test_what_cannot_be_run_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        documents.script(text)
