"""A report in Chromium, opened from the disk without a network, with and without JavaScript."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell as sw
from stepwell.buffers.view.report import write_report
from support import viewed_stores
from support.viewer import (
    STEPWELL,
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
        ("cameras", "0/1/0", ["observation/front", "observation/hand"]),
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


def test_rows_before_the_first_stored_one_are_not_there(
    report: Report, store: Store, look: Look
) -> None:
    page = look(report("evicted"))
    with sw.SequenceReplayBuffer.open(store("evicted"), read_only=True) as replay:
        one = next(iter(replay.iter_episodes()))
    assert one.first_row > 0
    open_episode(page, f"0/{one.id}/{one.first_row}")
    frames = pictures(one)
    for row in (one.first_row, one.first_row + len(frames) - 1):
        scrub(page, row)
        assert np.array_equal(pixels(page.locator("#frame-0")), frames[row - one.first_row])


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


def test_the_table_is_sorted_and_filtered(report: Report, look: Look, store: Store) -> None:
    page = look(report("cartpole", "levels", episodes="first:6"))
    with sw.SequenceReplayBuffer.open(store("cartpole"), read_only=True) as replay:
        returns = {one.id: float(one.reward.sum()) for one in replay.iter_episodes()}
    assert len(keys(page)) == 12
    page.locator("#store-1").uncheck()
    eventually(lambda: keys(page), [f"0/{number}/0" for number in sorted(returns)])
    page.locator("[data-column=return] button").click()
    falling = sorted(returns, key=lambda number: (-returns[number], number))
    eventually(lambda: keys(page), [f"0/{number}/0" for number in falling])
    least = sorted(returns.values())[2]
    page.locator("#min_return").fill(str(least))
    kept = [number for number in falling if returns[number] >= least]
    eventually(lambda: keys(page), [f"0/{number}/0" for number in kept])
    page.locator("#min_return").fill("x")
    page.locator("#error-return").filter(has_text="expected a number").wait_for()
    page.locator("#min_return").fill("")
    page.locator("#ended").select_option("false")
    page.locator("#no-episodes").wait_for()


def test_thinned_episodes_show_the_rows_that_are_there(
    store: Store, look: Look, tmp_path: Path
) -> None:
    out = tmp_path / "a.html"
    made = write_report(store("pong"), out, episodes="first")
    for size in range(made.nbytes, 0, -500):
        made = write_report(store("pong"), out, episodes="first", max_bytes=size, overwrite=True)
        if made.notes:
            break
    assert "every 2nd" in made.notes[0]
    page = look(out.as_uri())
    open_episode(page, "0/0/0")
    assert "every 2nd" in page.locator("#episode-facts").inner_text()
    frames = stored(store("pong"), 0)
    last = len(frames) - 1
    for wanted, row in ((3, 4), (last, last), (101, 100), (102, 102)):
        page.locator("#scrubber").fill(str(wanted))
        page.locator(f"#frame-0[data-row='{row}']").wait_for()
        assert np.array_equal(pixels(page.locator("#frame-0")), frames[row])
    page.locator("#on").click()
    page.locator("#frame-0[data-row='104']").wait_for()
    page.locator("#back").click()
    page.locator("#frame-0[data-row='102']").wait_for()


PAGES: dict[str, list[str]] = {
    "images": ["cameras"],
    "pong": ["pong"],
    "numbers": ["cartpole"],
    "several": ["cartpole", "levels", "cameras"],
    "hostile": ["hostile"],
    "evicted": ["evicted"],
}
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark-phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("stores", PAGES)
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


def test_hostile_text_is_shown_as_text(report: Report, look: Look) -> None:
    text = viewed_stores.HOSTILE[1]
    page = look(report("hostile", title=text))
    assert page.locator("h1").inner_text() == text
    assert page.title() == text
    open_episode(page, keys(page)[0])
    page.locator("#episode-facts").get_by_text(viewed_stores.HOSTILE[0]).first.wait_for()
    assert page.locator("img[src=x], b:text-is('bold')").count() == 0
    assert page.evaluate("({}).polluted === undefined")


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


def test_the_command_makes_a_page_that_opens(look: Look, tmp_path: Path) -> None:
    folder = viewed_stores.cartpole(tmp_path / "first")
    out = tmp_path / "one.html"
    subprocess.run([*STEPWELL, "report", folder, "-o", out], check=True, capture_output=True)
    page = look(out.as_uri())
    assert page.locator("h1").inner_text() == "first"
    eventually(lambda: len(keys(page)) > 0, True)
