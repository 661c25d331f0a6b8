"""Fixtures of tests that open pages in Chromium; a conftest imports them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.viewer import SECONDS, Look, Watch, chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser, for all tests of a module."""
    path = chromium_path()
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set STEPWELL_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    # Chromium refuses to run its sandbox as root, as which containers run.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """The errors of all pages of a test, which must have none."""
    watch = Watch()
    yield watch
    assert watch.wrong == [], watch.wrong


@pytest.fixture
def look(chromium: Browser, watch: Watch) -> Iterator[Look]:
    """Open a URL in a new browser window of its own; `options` are those of `new_context`."""
    opened: list[Any] = []

    def show(url: str, **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(1_000 * SECONDS)
        opened.append(context)
        page = context.new_page()
        watch.follow(page, url)
        page.goto(url)
        return page

    yield show
    for context in opened:
        context.close()
