"""The messages that the guides quote, and the pictures that a script draws."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from support.source_tree import CHECKOUT, library_files, tree_of

DOCS = CHECKOUT / "docs"
FOLDER = DOCS / "pictures"


def loaded(name: str) -> ModuleType:
    """A script of the folder of pictures, as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.proof
def test_the_pictures_of_concepts_are_drawn_by_their_script() -> None:
    script = loaded("draw_concepts")
    stale = [path.name for path, text in script.drawn() if path.read_text("utf-8") != text]
    assert not stale, "python docs/pictures/draw_concepts.py draws them again"


def test_the_badges_of_the_readme_say_what_the_package_declares() -> None:
    script = loaded("draw_badges")
    stale = [path.name for path, text in script.drawn() if path.read_text("utf-8") != text]
    assert not stale, "python docs/pictures/draw_badges.py draws them again"
    shown = re.findall(
        r"\(docs/pictures/(badge-.+?)\)", (CHECKOUT / "README.md").read_text("utf-8")
    )
    assert sorted(shown) == sorted(script.badges())


def test_each_message_of_the_faq_is_one_that_the_library_has() -> None:
    table = (DOCS / "faq.md").read_text("utf-8").partition("| the message has |")[2]
    rows = re.findall(r"^\| (`.+?`) \|", table.partition("\n\n")[0], flags=re.MULTILINE)
    quoted = [words for row in rows for words in re.findall(r"`([^`]+)`", row)]
    said = {text for file in library_files() for text in texts(tree_of(file))}
    assert len(quoted) > 8
    assert not [words for words in quoted if not any(words in text for text in said)]


def texts(tree: ast.AST) -> Iterator[str]:
    """All string constants below a node, without docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not isinstance(tree, ast.Expr):
                yield node.value
        else:
            yield from texts(node)
