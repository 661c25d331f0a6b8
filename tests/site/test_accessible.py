"""Pages of the site in Chromium: accessible, no wider than the window, nothing loaded elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import site_pages
from support.viewer import Look, keep, violations

PAGES = (
    "index concepts collecting viewing performance reference/api/collecting "
    "reference/api/replay reference/command-line security"
).split()
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark-phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it(
    name: str, window: str, url: str, look: Look, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe")
    page = look(f"{url}/{name}.html", **WINDOWS[window])
    folder = request.config.getoption("--pictures") or tmp_path
    keep(page, folder / f"site-{name.replace('/', '-')}-{window}.webp")
    assert violations(page) == []


@pytest.mark.parametrize("window", WINDOWS)
def test_no_page_is_wider_than_its_window(
    window: str, site: Path, url: str, look: Look, pytestconfig: pytest.Config
) -> None:
    """With ``--full`` everybody can read every page, too."""
    page = look(f"{url}/index.html", **WINDOWS[window])
    size = page.viewport_size
    assert size is not None
    wide, found = [], {}
    for path in site_pages.pages(site):
        page.goto(f"{url}/{path.relative_to(site).as_posix()}")
        if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
            wide.append(path.relative_to(site).as_posix())
        if pytestconfig.getoption("--full") and (wrong := violations(page)):
            found[path.relative_to(site).as_posix()] = wrong
    assert not wide
    assert found == {}
