"""A report in Chromium, opened from the disk without a network, with and without JavaScript."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers.view.report import write_report
from support.tiers import proofs_but
from support.viewer import (
    Look,
    Store,
    episodes,
    eventually,
    keep,
    keys,
    open_episode,
    pictures,
    pixels,
    scrub,
    violations,
)

MOST_BYTES = 1_000_000
Report = Callable[..., str]


@pytest.fixture
def report(store: Store, tmp_path: Path) -> Report:
    """Write a report about stores with these names; its URL."""

    def write(*names: str, **options: Any) -> str:
        out = tmp_path / "report.html"
        made = write_report([store(name) for name in names], out, overwrite=True, **options)
        assert made.nbytes < MOST_BYTES
        return out.as_uri()

    return write


@pytest.mark.parametrize(
    ("name", "episode", "fields"),
    [
        ("pong", "0/0/0", ["observation"]),
        pytest.param(
            *("cameras", "0/1/0", ["observation/front", "observation/hand"]),
            marks=pytest.mark.proof,
        ),
    ],
)
def test_each_frame_is_the_stored_one(
    report: Report, store: Store, look: Look, name: str, episode: str, fields: list[str]
) -> None:
    page = look(report(name))
    open_episode(page, episode)
    one = episodes(store(name))[int(episode.split("/")[1])]
    last = len(one.fields["reward"]) - 1
    for row in (0, last, last // 2, 1):
        for place, field in enumerate(fields):
            scrub(page, row, place)
            frame = pixels(page.locator(f"#frame-{place}"))
            assert np.array_equal(frame, pictures(one, field)[row])
    eventually(lambda: "final" in page.locator("#mark").inner_text(), False)
    for hidden in ("#clip-button", "#export-button"):
        assert not page.locator(hidden).is_visible()


def test_values_and_curves_of_an_episode_are_in_the_file(report: Report, look: Look) -> None:
    page = look(report("cartpole", episodes="first"))
    open_episode(page, keys(page)[0])
    page.locator("#scrubber").fill("1")
    shown = page.locator("#values")
    eventually(lambda: "Row 1" in shown.inner_text(), True)
    total = shown.locator("tr", has_text="return so far").locator("td")
    eventually(lambda: total.inner_text(), "1")
    page.locator("#speed").select_option("8")
    page.locator("#play").click()
    last = page.locator("#scrubber").get_attribute("max")
    eventually(lambda: page.locator("#scrubber").input_value(), last)
    page.locator("#curves").click(position={"x": 200, "y": 30})
    eventually(lambda: 0 < int(page.locator("#scrubber").input_value()) < int(last or 0), True)


PAGES = {
    "images": ["cameras"],
    "numbers": ["cartpole"],
    "several": ["cartpole", "levels", "cameras"],
    "hostile": ["hostile"],
}
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark-phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize(
    ("stores", "window"),
    proofs_but([("several", "light")], itertools.product(PAGES, WINDOWS)),
)
def test_everybody_can_use_it(
    stores: str,
    window: str,
    report: Report,
    look: Look,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe")
    page = look(report(*PAGES[stores]), **WINDOWS[window])
    wide = WINDOWS[window].get("viewport", {"width": 1280})["width"]
    eventually(lambda: len(keys(page)) > 0, True)
    page.wait_for_timeout(300)  # for histograms
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    open_episode(page, keys(page)[0])
    page.wait_for_timeout(300)  # for frames and curves
    if window == "light":
        folder = request.config.getoption("--pictures") or tmp_path
        keep(page, folder / f"report-{stores}.webp")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= wide


def test_without_javascript_the_main_numbers_are_shown(report: Report, look: Look) -> None:
    page = look(report("pong", "cartpole"), java_script_enabled=False)
    summary = page.locator("#summary")
    assert summary.get_by_text("925").first.is_visible()
    assert summary.get_by_text("RandomPolicy").first.is_visible()
    assert page.locator("noscript").is_visible()
    for hidden in ("#side", "#list", "#theme-button"):
        assert not page.locator(hidden).is_visible()


def test_on_paper_the_summary_is_whole(report: Report, look: Look) -> None:
    page = look(report("cameras", "cartpole"))
    eventually(lambda: len(keys(page)) > 0, True)
    page.emulate_media(media="print")
    fits = "(element) => element.scrollHeight <= element.clientHeight + 1"
    assert page.locator("main").evaluate(fits)
    assert not page.locator("#side").is_visible()
