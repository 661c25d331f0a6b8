"""An episode in a browser: exact frames, scrubber, play, keyboard, values, clips, growth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.tiers import proofs_but
from support.viewed_stores import HOSTILE, writer
from support.viewer import (
    Look,
    Serve,
    Store,
    episodes,
    eventually,
    keys,
    open_episode,
    pictures,
    pixels,
    scrub,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page


def mark(page: Page) -> str:
    return str(page.locator("#mark").inner_text())


PLACES = {
    "pong": [(0, "observation")],
    "cameras": [(0, "observation/front"), (1, "observation/hand")],
    "evicted": [(0, "observation")],
}


@pytest.mark.parametrize("name", proofs_but(["cameras"], PLACES))
def test_every_pixel_is_that_of_the_store(
    serve: Serve, look: Look, store: Store, name: str
) -> None:
    page = look(serve(store(name)).url)
    for one in episodes(store(name))[:2]:
        open_episode(page, f"0/{one.id}/{one.first_row}")
        count = len(one.fields["reward"])
        # Both ends, both sides of the first sprites' ends, and some between, not in order.
        near = [0, 1, 63, 64, 65, 127, 128, count // 2, count - 2, count - 1]
        for at in sorted({place for place in near if 0 <= place < count}, key=lambda n: n * 7 % 5):
            row = one.first_row + at
            scrub(page, row)
            for number, field in PLACES[name]:
                canvas = page.locator(f"#frame-{number}[data-row='{row}']")
                canvas.wait_for()
                assert np.array_equal(pixels(canvas), pictures(one, field)[at]), (row, field)


def test_the_reset_and_the_final_observation_are_marked(
    serve: Serve, look: Look, store: Store
) -> None:
    page = look(serve(store("pong")).url)
    ended, cut = episodes(store("pong"))
    open_episode(page, f"0/{ended.id}/0")
    last = len(ended.fields["reward"]) - 1
    assert "reset" in mark(page)
    scrub(page, last)
    eventually(lambda: "final" in mark(page), True)
    assert page.locator(".rownumber").inner_text().split() == ["of", str(last)]
    assert page.locator("#row-number").input_value() == str(last)
    assert "stream_episode" not in page.locator("#episode-facts").inner_text()
    assert "terminated" in page.locator("#episode-badges").inner_text()
    scrub(page, last - 1)
    eventually(lambda: "final" in mark(page), False)
    open_episode(page, f"0/{cut.id}/0")
    eventually(lambda: page.locator("#episode-badges").inner_text(), "cut")
    scrub(page, len(cut.fields["reward"]) - 1)
    eventually(lambda: ("final" in mark(page), "cut" in mark(page)), (False, True))


def test_values_are_those_of_the_row(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("pong")).url)
    one = episodes(store("pong"))[0]
    names = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
    rewards = one.fields["reward"]
    (row, *_) = np.flatnonzero(rewards)
    open_episode(page, f"0/{one.id}/0")
    for at in (row, row + 1, row - 1):
        scrub(page, int(at))
        wanted = (
            names[one.fields["action"][at]],
            float(rewards[at]),
            float(rewards[: at + 1].sum()),
        )

        def shown() -> tuple[str, float, float]:
            found = {
                line.split("\t")[0].strip(): line.split("\t")[-1].strip()
                for line in page.locator("#values").inner_text().splitlines()
                if "\t" in line
            }
            if "return so far" not in found:  # the answer is on its way
                return "", 0.0, 0.0
            numbers = [float(found[n].replace("\u2212", "-")) for n in ("reward", "return so far")]
            return found["action"].split(" ")[0], numbers[0], numbers[1]

        eventually(shown, wanted)


def test_play_shows_one_row_after_the_other_and_pauses(
    serve: Serve, look: Look, store: Store
) -> None:
    page = look(serve(store("pong")).url)
    open_episode(page, "0/0/0")
    page.locator("#frame-0[data-row='0']").wait_for()
    page.evaluate(
        """() => {
            const canvas = document.querySelector("#frame-0");
            window.seen = [];
            new MutationObserver(() => window.seen.push(Number(canvas.dataset.row)))
                .observe(canvas, {attributes: true, attributeFilter: ["data-row"]});
        }"""
    )
    page.locator("#fps").fill("60")
    page.locator("#play").click()
    eventually(lambda: page.evaluate("window.seen.length") > 20, True)
    page.locator("#play").click()
    seen = page.evaluate("window.seen")
    assert seen == sorted(seen)
    stopped = page.locator("#scrubber").input_value()
    page.wait_for_timeout(150)
    assert page.locator("#scrubber").input_value() == stopped
    page.locator(f"#frame-0[data-row='{stopped}']").wait_for()
    # At the end it pauses by itself.
    last = int(page.locator("#scrubber").get_attribute("max") or 0)
    scrub(page, last - 3)
    page.locator("#play").click()
    page.locator(f"#frame-0[data-row='{last}']").wait_for()
    eventually(lambda: page.locator("#play").inner_text(), "Play")


def test_everything_can_be_done_with_the_keyboard(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("pong")).url)
    eventually(lambda: len(keys(page)), 2)
    press = page.keyboard.press

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id"))

    for _ in range(200):
        press("Tab")
        if focused() == "episodes":
            break
    assert focused() == "episodes"
    press("Home")
    press("ArrowDown")
    press("ArrowUp")
    press("Enter")
    frame = page.locator("#frame-0")
    frame.wait_for()

    def row() -> str:
        return str(frame.get_attribute("data-row"))

    eventually(row, "0")
    for _ in range(100):  # in the table, Home and End go to its ends
        press("Tab")
        if focused() == "scrubber":
            break
    assert focused() == "scrubber"
    for key, wanted in (
        *(("ArrowRight", "1"), ("ArrowRight", "2"), ("ArrowLeft", "1"), ("Shift+ArrowRight", "11")),
        *(("End", "925"), ("Home", "0")),
    ):
        press(key)
        eventually(row, wanted)
    press("Space")
    eventually(lambda: int(row() or 0) > 3, True)
    press("Space")
    eventually(lambda: page.locator("#play").inner_text(), "Play")
    press("j")
    eventually(lambda: "Episode 1" in page.locator("#episode-title").inner_text(), True)
    press("k")
    eventually(lambda: "Episode 0" in page.locator("#episode-title").inner_text(), True)
    press("?")
    page.locator("#help[open]").wait_for()
    press("Escape")
    page.locator("#help[open]").wait_for(state="detached")
    press("Escape")
    page.locator("#episode").wait_for(state="hidden")
    assert focused() == "episodes"


@pytest.mark.proof
def test_a_reload_shows_the_same_row(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("pong")).url)
    open_episode(page, "0/1/0")
    scrub(page, 17)
    eventually(lambda: "row=17" in page.evaluate("location.hash"), True)
    page.reload()
    page.locator("#frame-0[data-row='17']").wait_for()
    assert "Episode 1" in page.locator("#episode-title").inner_text()
    page.go_back()


def test_an_episode_without_images_has_curves_and_values(
    serve: Serve, look: Look, store: Store
) -> None:
    page = look(serve(store("cartpole")).url)
    one = episodes(store("cartpole"))[2]
    open_episode(page, f"0/{one.id}/0")
    assert page.locator("canvas.frame").count() == 0
    page.locator("#scrubber").fill("5")
    value = float(one.fields["extra/value"][5])
    shown = page.locator("#values")
    shown.get_by_text("extra/value", exact=False).first.wait_for()
    # Until the row is read, the values of the one before stand there, marked as stale.
    eventually(lambda: shown.locator(".stale").count(), 0)
    assert f"{value:.3g}"[:4] in shown.inner_text().replace("\u2212", "-")
    # The curves have colors of their own on their canvas.
    curves = page.locator("#curves")
    colors = curves.evaluate(
        """canvas => {
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const found = new Set();
            for (let at = 0; at < image.data.length; at += 4)
                found.add(image.data.slice(at, at + 4).join());
            return found.size;
        }"""
    )
    assert colors > 3
    # A click on the curves chooses a row.
    box = curves.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2)
    last = one.steps
    eventually(lambda: last / 2 < int(page.locator("#scrubber").input_value()) < last, True)


@pytest.mark.proof
def test_an_open_episode_grows_while_it_is_looked_at(
    serve: Serve, look: Look, tmp_path: Path
) -> None:
    with writer(tmp_path / "live", "bar") as one:
        page = look(serve(tmp_path / "live").url)
        open_episode(page, "0/0/0")
        end = page.locator("#scrubber")
        eventually(lambda: end.get_attribute("max"), "100")
        assert "open" in page.locator("#episode-badges").inner_text()
        one.collect(60)
        eventually(lambda: end.get_attribute("max"), "160")
        scrub(page, 160)
        one.collect(140)
        eventually(lambda: end.get_attribute("max"), "300")
    (episode, *_) = episodes(tmp_path / "live")
    for row in (160, 300, 99):
        scrub(page, row)
        assert np.array_equal(pixels(page.locator("#frame-0")), pictures(episode)[row])
    eventually(lambda: page.locator("#episode-badges").inner_text(), "terminated")


@pytest.mark.proof
@pytest.mark.parametrize("name", ["pong", "hostile"])
def test_nothing_is_wider_than_a_phone(serve: Serve, look: Look, store: Store, name: str) -> None:
    phone = {"width": 390, "height": 844}
    page = look(serve(store(name)).url, viewport=phone, has_touch=True, is_mobile=True)
    wide = "() => document.scrollingElement.scrollWidth"
    page.locator("[data-key]").first.wait_for()
    assert page.evaluate(wide) <= 390
    page.locator("[data-key]").first.tap()
    page.locator("#scrubber").wait_for()
    page.locator("#values td").first.wait_for()
    assert page.evaluate(wide) <= 390
    for part in ("#scrubber", "#play", *(["#frame-0"] if name == "pong" else [])):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 844
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_hostile_text_is_shown_as_text(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("hostile")).url)
    open_episode(page, "0/1/0")
    facts = page.locator("#episode-facts")
    facts.get_by_text(HOSTILE[0]).first.wait_for()
    assert page.locator("img, b:text-is('bold'), #episode script").count() == 0
    assert page.evaluate("Object.prototype.polluted === undefined")
    assert json.dumps(page.title())
