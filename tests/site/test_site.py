"""The built site: no broken link, nothing from other hosts, every page, name and command on it."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest

from stepwell.collectors.cli.app import every_command
from support import site_pages
from support.source_tree import CHECKOUT, PUBLIC_MODULES

DOCS = CHECKOUT / "docs"
PUBLIC = [*PUBLIC_MODULES, "stepwell.buffers.space_json"]


def described(site: Path) -> Counter[str]:
    """The Python objects that the pages describe, each with the number of its places."""
    return Counter(
        name for page in site_pages.pages(site) for name in site_pages.read(page).described
    )


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert site_pages.loaded_from_outside(site) == []


def test_each_public_name_is_described_in_one_place(site: Path) -> None:
    wanted = set()
    top = importlib.import_module("stepwell")
    for module in map(importlib.import_module, PUBLIC):
        names = set(module.__all__) - {"bridges"}
        elsewhere = set() if module is top else set(top.__all__)
        if "dropin" in module.__name__:  # names of classes of others
            elsewhere = set()
        wanted |= {f"{module.__name__}.{name}" for name in names - elsewhere}
    found = {name: times for name, times in described(site).items() if name in wanted}
    assert wanted - set(found) == set()
    assert {name for name, times in found.items() if times > 1} == set()


def test_nothing_is_described_that_is_not_public(site: Path) -> None:
    modules = sorted(PUBLIC, key=len)
    for name in described(site):
        module = max((each for each in modules if name.startswith(f"{each}.")), key=len)
        first = name.removeprefix(f"{module}.").split(".")[0]
        assert first in importlib.import_module(module).__all__, name


def test_each_command_and_option_is_described(site: Path) -> None:
    page = site_pages.read(site / "reference" / "command-line.html")
    found = {words: command for words, command, _ in every_command()}
    assert {"stepwell collect", "stepwell datasets", "stepwell datasets get"} < set(found)
    del found["stepwell"]
    for name, command in found.items():
        assert name.replace(" ", "-") in page.ids
        for parameter in command.params:
            options = [] if parameter.param_type_name == "argument" else parameter.opts
            assert not [each for each in options if each not in page.text], (name, parameter.name)


HEAD = '<html><head></head><body><article><h1 id="top">A</h1>{}</article></body></html>'


@pytest.mark.parametrize(
    "piece",
    [
        '<script src="https://cdn.example/x.js">',
        '<img src="//cdn.example/x.png">',
        '<link rel="stylesheet" href="https://fonts.example/x.css">',
    ],
)
def test_a_file_of_another_host_is_found(piece: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(HEAD.format(piece))
    assert len(site_pages.loaded_from_outside(tmp_path)) == 1
    (tmp_path / "a.html").rename(tmp_path / "old")
    (tmp_path / "b.html").write_text(HEAD.format('<a href="https://example.org/">'))
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/x.css'; a { top: url(x.png) }")
    assert site_pages.loaded_from_outside(tmp_path) == ["a.css: https://fonts.example/x.css"]
