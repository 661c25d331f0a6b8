"""The guides: their form, the messages that they quote, and the pictures that a script draws."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from types import ModuleType

import pytest

from support.source_tree import CHECKOUT, library_files, tree_of

DOCS = CHECKOUT / "docs"
FOLDER = DOCS / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
# Pages that explain a task; the others are looked up in, or belong to the project.
GUIDES = [
    *(
        "quickstart",
        "concepts",
        "collecting",
        "your-own-loop",
        "on-policy",
        "many-machines",
        "agents",
        "envs",
        "envpool",
        "playing",
    ),
    *(
        "atari",
        "nes",
        "sequences",
        "sampling",
        "loading",
        "resume",
        "stores",
        "viewing",
        "provenance",
    ),
    *("datasets", "train-from-a-data-set"),
    *("feeding", "migrate", "device-envs"),
    *(f"feeding/{path.stem}" for path in sorted((DOCS / "feeding").glob("*.md"))),
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return loaded("draw_concepts")


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
def test_the_pictures_of_concepts_are_drawn_by_their_script(script: ModuleType) -> None:
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


def test_everything_in_a_picture_lies_inside_it(script: ModuleType) -> None:
    for path, text in script.drawn():
        picture = ElementTree.fromstring(text)
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        assert picture.attrib["aria-label"], path
        for box in picture.iter(f"{SVG}rect"):
            right = float(box.attrib["x"]) + float(box.attrib["width"])
            bottom = float(box.attrib["y"]) + float(box.attrib["height"])
            assert right < width, (path.name, box.attrib)
            assert bottom < height, (path.name, box.attrib)
        for words in picture.iter(f"{SVG}text"):
            left, right = extent(words)
            assert left >= 4, (path.name, words.text)
            assert right <= width - 4, (path.name, words.text)
            assert float(words.attrib["y"]) < height - 4, (path.name, words.text)


def extent(words: ElementTree.Element) -> tuple[float, float]:
    """Left and right of a text in a wide font: letters of 0.58 of their height on average."""
    kinds = words.attrib["class"].split()
    height = 12.5 if "note" in kinds else 14
    x, length = float(words.attrib["x"]), 0.58 * height * len(words.text or "")
    left = x - (length / 2 if "mid" in kinds else length if "end" in kinds else 0)
    return left, left + length


@pytest.mark.parametrize("name", ["concepts.md", "sequences.md"])
def test_each_picture_of_a_page_is_there_and_is_described(name: str) -> None:
    text = (CHECKOUT / "docs" / name).read_text("utf-8")
    found = re.findall(r"!\[([^\]]*)\]\(pictures/([\w.-]+)\)", text)
    assert found
    for words, file in found:
        assert len(words) > 40, file
        assert (FOLDER / file).is_file(), file


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_says_what_it_gives_and_where_to_go_on(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text("utf-8")
    title, empty, first, *_ = text.splitlines()
    assert title.startswith("# ")
    assert not empty
    assert re.match(r"[A-Z]|`\w", first), "a paragraph comes first, before any code or table"
    *_, last = re.split(r"^## ", text, flags=re.MULTILINE)
    assert last.startswith("Next\n")
    assert len(re.findall(r"\]\([\w./-]+\.md(?:#[\w-]+)?\)", last)) >= 2


def test_the_first_data_set_takes_less_than_two_minutes_to_read() -> None:
    words = (DOCS / "quickstart.md").read_text("utf-8").split()
    assert len(words) < 2 * 220  # the whole page, at 220 words a minute


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
