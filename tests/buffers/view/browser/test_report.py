"""A report in Chromium, opened from the disk without a network, with and without JavaScript."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell as sw
from stepwell.buffers.view.report import write_report
from support.tiers import proofs_but
from support.viewer import (
    Look,
    Store,
    eventually,
    keep,
    keys,
    pictures,
    pixels,
    violations,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


def stored(folder: Path, episode: int, field: str = "observation") -> npt.NDArray[np.uint8]:
    """The pictures [T, H, W, 3] of an episode."""
    with sw.SequenceReplayBuffer.open(folder, read_only=True) as replay:
        (found,) = [each for each in replay.iter_episodes() if each.id == episode]
        return pictures(found, field)


def open_episode(page: Page, key: str) -> None:
    """Click an episode of the table."""
    page.locator(f"[data-key='{key}']").click()
    page.locator(f"[data-key='{key}'][aria-selected=true]").wait_for(state="attached")
    page.locator("#episode #scrubber").wait_for()


def scrub(page: Page, row: int, field: int = 0) -> None:
    """Move the scrubber, and wait until the row is painted."""
    page.locator("#scrubber").fill(str(row))
    page.locator(f"#frame-{field}[data-row='{row}']").wait_for()


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
    frames = [stored(store(name), int(episode.split("/")[1]), field) for field in fields]
    last = len(frames[0]) - 1
    for row in (0, last, last // 2, 1):
        for place, field in enumerate(frames):
            scrub(page, row, place)
            assert np.array_equal(pixels(page.locator(f"#frame-{place}")), field[row])


def test_an_episode_is_played_and_its_values_are_shown(report: Report, look: Look) -> None:
    from playwright.sync_api import expect

    page = look(report("cartpole", episodes="first"))
    open_episode(page, keys(page)[0])
    scrubber = page.locator("#scrubber")
    last = int(scrubber.get_attribute("max") or 0)
    scrubber.focus()
    for key, wanted in (("End", last), ("ArrowLeft", last - 1), ("Home", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        expect(scrubber).to_have_value(str(wanted))
    values = page.locator("#values")
    expect(values).to_contain_text("Row 1")
    expect(values.locator("tr", has_text="return so far").locator("td")).to_have_text("1")
    expect(values.locator("tr", has_text="observation[3]").locator("td")).not_to_be_empty()
    page.locator("#speed").select_option("8")
    page.locator("#play").click()
    expect(scrubber).to_have_value(str(last))
    expect(page.locator("#play")).to_have_text("Play")
    expect(page.locator("#mark")).to_contain_text("final observation")
    curves = page.locator("#curves").bounding_box()
    assert curves is not None
    assert curves["height"] > 100
    page.locator("#curves").click(position={"x": curves["width"] / 2, "y": 30})
    eventually(lambda: 0 < int(scrubber.input_value()) < last, True)
    expect(page.locator("#clip-button")).not_to_be_visible()
    expect(page.locator("#export-button")).not_to_be_visible()


PAGES: dict[str, list[str]] = {
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
