"""Shows files that lie beside docs/: Markdown files as pages, notebooks, and a list of programs.

A page shows a Markdown file with an ``include`` block of its own: ``../SECURITY.md``. Everywhere
else `[text](../SECURITY.md#place)` is written for readers of the source; here it leads to that
page. A file that ends in ``.nblink`` names a notebook.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

CHECKOUT = Path(__file__).parents[2]
INCLUDE = re.compile(r"^```\{include\} (?P<path>\S+)\n```$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)(?P<path>[^)\s#]+)(?P<place>#[^)\s]*)?(?=\))")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples": "examples/index.md",
    "examples/dreamer": "examples/dreamer.md",
    "examples/dreamer/README.md": "examples/dreamer.md",
    "examples/notebooks/collect_and_look.ipynb": "examples/collect_and_look.nblink",
    "examples/notebooks/train_on_sequences.ipynb": "examples/train_on_sequences.nblink",
}
PROGRAMS = "<!-- programs -->"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put included files and the list of programs in; change links that lead out of docs/."""
    folder = posixpath.dirname(page)

    def included(found: re.Match[str]) -> str:
        file = app.srcdir / folder / found["path"]
        if not file.is_file():
            raise ExtensionError(f"{page}: there is no file {found['path']} to include")
        app.env.note_dependency(file)
        text = file.read_text(encoding="utf-8")
        above = posixpath.normpath(posixpath.join("docs", folder, posixpath.dirname(found["path"])))
        return relinked(text, above, folder)

    if PROGRAMS in source[0]:
        source[0] = source[0].replace(PROGRAMS, "\n".join(programs()))
    source[0] = INCLUDE.sub(included, relinked(source[0], posixpath.join("docs", folder), folder))


def relinked(text: str, home: str, folder: str) -> str:
    """A Markdown text from the folder `home` of the checkout, for a page in docs/`folder`."""

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(home, found["path"]))
        path = f"docs/{PAGES[path]}" if path in PAGES else path
        return posixpath.relpath(path, posixpath.join("docs", folder)) + (found["place"] or "")

    return LINK.sub(link, text)


def programs() -> Iterator[str]:
    """A table of the examples, with the first sentence of each."""
    yield from ("| program | |", "|---|---|")
    folder = CHECKOUT / "examples"
    for file in [*sorted(folder.glob("*.py")), *sorted(folder.glob("exports/*.py"))]:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        name = file.relative_to(folder).as_posix()
        yield f"| [{name}](../../examples/{name}) | {text.splitlines()[0]} |"


def read_notebook(text: str) -> nbformat.NotebookNode:
    """The notebook that a file names: ``{"path": "examples/notebooks/collect.ipynb"}``."""
    path = CHECKOUT / json.loads(text)["path"]
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, "examples/notebooks", "examples")
    return notebook
