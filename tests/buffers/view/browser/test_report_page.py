"""A report in Chromium, opened from the disk: frames, keys, curves, accessibility."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell as sw
from stepwell.buffers.view.report import write_report
from support import viewed_stores
from support.viewer import Look, Store, Watch, pictures, pixels, violations

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def stored(folder: Path, episode: int, field: str) -> npt.NDArray[np.uint8]:
    """The pictures [T, H, W, 3] of an episode."""
    with sw.SequenceReplayBuffer.open(folder, read_only=True) as replay:
        (found,) = [each for each in replay.iter_episodes() if each.id == episode]
        return pictures(found, field)


def at_row(article: Locator, row: int) -> None:
    """Wait until an episode shows a row."""
    from playwright.sync_api import expect

    expect(article).to_have_attribute("data-row", str(row))


def first(page: Page) -> Locator:
    return page.locator("article.episode").first


@pytest.fixture
def report(store: Store, tmp_path: Path) -> Callable[..., str]:
    """Write a report about stores with these names; its URL."""

    def write(*names: str, **options: Any) -> str:
        out = tmp_path / "report.html"
        write_report([store(name) for name in names], out, overwrite=True, **options)
        return out.as_uri()

    return write


def test_each_frame_is_the_stored_one(report: Any, store: Store, look: Look, watch: Watch) -> None:
    watch.allowed.append("willReadFrequently")  # advice about `pixels`, not about the page
    page = look(report("cameras", episodes="1"))
    article = first(page)
    slider = article.get_by_role("slider")
    fields = ["observation/front", "observation/hand"]
    frames = [stored(store("cameras"), 1, field) for field in fields]
    for row in [0, len(frames[0]) - 1, len(frames[0]) // 2]:
        slider.fill(str(row))
        at_row(article, row)
        for canvas, field in zip(article.locator(".stage canvas").all(), frames, strict=True):
            assert np.array_equal(pixels(canvas), field[row])


def test_play_and_keys(report: Any, look: Look) -> None:
    from playwright.sync_api import expect

    page = look(report("cartpole", episodes="first"))
    article = first(page)
    play = article.get_by_role("button")
    slider = article.get_by_role("slider")
    last = int(slider.get_attribute("max") or 0)
    slider.focus()
    for key, wanted in (
        ("End", last),
        ("ArrowLeft", last - 1),
        ("Home", 0),
        ("ArrowRight", 1),
    ):
        page.keyboard.press(key)
        at_row(article, wanted)
    article.get_by_label("Speed").select_option("240")
    slider.focus()
    page.keyboard.press(" ")
    at_row(article, last)
    expect(play).to_have_text("Play")
    expect(article.locator(".readout")).to_contain_text("final observation, terminated")
    play.click()  # from the beginning
    at_row(article, last)
    expect(play).to_have_text("Play")
    article.get_by_label("Speed").select_option("2")
    play.click()
    expect(play).to_have_text("Pause")
    play.click()
    expect(play).to_have_text("Play")
    row = article.get_attribute("data-row")
    page.wait_for_timeout(700)
    assert article.get_attribute("data-row") == row


def test_a_click_on_the_curves_goes_to_that_row(report: Any, look: Look) -> None:
    page = look(report("cartpole", episodes="best"))
    article = first(page)
    last = int(article.get_by_role("slider").get_attribute("max") or 0)
    curves = article.locator("canvas.curves")
    box = curves.bounding_box()
    assert box is not None
    assert box["height"] > 100
    curves.click(position={"x": box["width"] - 12, "y": 30})
    at_row(article, last)
    text = article.get_by_role("slider").get_attribute("aria-valuetext") or ""
    assert text.startswith(f"row {last} of {last}, return so far: {last}, reward: 1, action: none")


def test_one_player_at_a_time(report: Any, look: Look) -> None:
    from playwright.sync_api import expect

    page = look(report("cartpole", episodes="first:2"))
    one, other = page.locator("article.episode").all()
    for article in (one, other):
        article.get_by_label("Speed").select_option("2")
        article.get_by_role("button").click()
        expect(article.get_by_role("button")).to_have_text("Pause")
    expect(one.get_by_role("button")).to_have_text("Play")


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
    article = first(page)
    heading = article.locator("h3").inner_text()
    with sw.SequenceReplayBuffer.open(store("pong"), read_only=True) as replay:
        (episode,) = [each for each in replay.iter_episodes() if heading == f"Episode {each.id}"]
    frames = stored(store("pong"), episode.id, "observation")
    slider = article.get_by_role("slider")
    slider.fill("1")
    at_row(article, episode.first_row + 2)
    slider.fill(slider.get_attribute("max") or "")
    at_row(article, episode.first_row + episode.rows - 1)
    assert np.array_equal(pixels(article.locator(".stage canvas").first), frames[-1])


PAGES: dict[str, list[str]] = {
    "images": ["cameras"],
    "game": ["pong"],
    "numbers": ["cartpole"],
    "several": ["cartpole", "levels", "cameras"],
    "hostile": ["hostile"],
    "evicted": ["evicted"],
}
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("stores", PAGES)
def test_everybody_can_use_it(stores: str, window: str, report: Any, look: Look) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe")
    page = look(report(*PAGES[stores]), **WINDOWS[window])
    at_row(first(page), int(re.findall(r"row (\d+)", first(page).inner_text())[0]))
    for summary in page.locator("summary").all():
        summary.click()
    assert violations(page) == []
    wide = WINDOWS[window].get("viewport", {"width": 1280})["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= wide


def test_hostile_text_is_shown_as_text(report: Any, look: Look) -> None:
    text = viewed_stores.HOSTILE[1]
    page = look(report("hostile", title=text))
    assert page.locator("h1").inner_text() == text
    assert page.title() == text
    page.get_by_text("Metadata").first.click()
    assert page.get_by_text(viewed_stores.HOSTILE[0]).first.is_visible()


def test_without_javascript(report: Any, look: Look) -> None:
    page = look(report("cameras", "cartpole"), java_script_enabled=False)
    assert page.locator("ul.strip img").first.is_visible()
    assert page.locator(".still svg").first.is_visible()
    assert page.locator(".chart svg").first.is_visible()
    assert not page.locator(".player").first.is_visible()
    assert page.locator("noscript").is_visible()


def test_on_paper(report: Any, look: Look) -> None:
    from playwright.sync_api import expect

    page = look(report("cameras", "cartpole"))
    at_row(first(page), 0)
    expect(page.locator(".player").first).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".player").first).not_to_be_visible()
    expect(page.locator("ul.strip img").first).to_be_visible()
    expect(page.locator(".still svg").first).to_be_visible()
