"""Exports of the page: a filtered store, a clip, ids; and a server that goes away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

import stepwell as sw
from support.tiers import proofs_but
from support.viewed_stores import levels
from support.viewer import (
    Look,
    Serve,
    Store,
    Watch,
    episodes,
    eventually,
    keys,
    open_episode,
    pictures,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page


def export_as(page: Page, name: str) -> None:
    page.locator("#export-name").fill(name)
    page.locator("#export-start").click()


def test_the_selection_is_written_and_replaces_nothing(
    serve: Serve, look: Look, tmp_path: Path, watch: Watch
) -> None:
    watch.allowed.append("status of 4")
    folder = levels(tmp_path / "levels")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    page = look(serve(folder, "--exports", tmp_path / "out").url)
    eventually(lambda: len(keys(page)), 12)
    page.locator("#min_return").fill("20")
    page.locator("[name=where]").first.fill("task=balance")
    good = [one for one in episodes(folder) if one.metadata["task"] == "balance"]
    good = [one for one in good if one.reward.sum() >= 20]
    # The table may show the episodes of the first word alone before.
    eventually(lambda: {int(key.split("/")[1]) for key in keys(page)}, {one.id for one in good})
    page.locator("#export-button").click()
    export_as(page, "good")
    page.locator("#export-results [data-name=good][data-state=done]").wait_for()
    chosen = [rows_of(one) for one in good]
    assert [rows_of(one) for one in episodes(tmp_path / "out/good")] == chosen != []
    export_as(page, "good")
    page.locator("#export-error").filter(has_text="good").wait_for()
    # Around the form's own check of names.
    page.locator("#export-name").evaluate("input => input.removeAttribute('pattern')")
    export_as(page, "../../outside")
    eventually(lambda: "64 letters" in page.locator("#export-error").inner_text(), True)
    assert not list(tmp_path.rglob("outside"))
    assert [rows_of(one) for one in episodes(tmp_path / "out/good")] == chosen
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def rows_of(one: sw.Episode) -> object:
    fields = {name: rows.tobytes() for name, rows in one.fields.items()}
    return one.stream, one.first_row, int(one.end), dict(one.metadata), fields


def test_ids_are_those_that_stepwell_filter_reads(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("levels")).url)
    eventually(lambda: len(keys(page)), 12)
    page.locator("#max_steps").fill("20")
    eventually(lambda: 0 < len(keys(page)) < 12, True)
    shown = sorted(int(key.split("/")[1]) for key in keys(page))
    page.locator("#export-button").click()
    text = page.locator("#ids-text")
    eventually(lambda: text.input_value() != "", True)
    ids: list[int] = []
    for part in text.input_value().split()[-1].split(","):
        begin, _, end = part.partition("-")
        ids += range(int(begin), int(end or begin) + 1)
    assert ids == shown


@pytest.mark.parametrize("kind", proofs_but(["webp"], ["webp", "mp4"]))
def test_a_clip_shows_the_chosen_rows(
    serve: Serve, look: Look, store: Store, kind: str, tmp_path: Path
) -> None:
    if kind == "mp4":
        pytest.importorskip("av")
    page = look(serve(store("evicted")).url)
    one = episodes(store("evicted"))[0]
    first = one.first_row
    open_episode(page, f"0/{one.id}/{first}")
    page.locator("#clip-button").click()
    page.locator("#clip-kind").select_option(kind)
    page.locator("#clip-begin").fill(str(first + 3))
    page.locator("#clip-end").fill(str(first + 9))
    page.locator("#clip-scale").fill("2")
    with page.expect_download() as download:
        page.locator("#clip-save").click()
    path = tmp_path / f"clip.{kind}"
    download.value.save_as(path)
    wanted = pictures(one)[3:10].repeat(2, axis=1).repeat(2, axis=2)
    if kind == "webp":
        done, animation = cv2.imdecodeanimation(np.frombuffer(path.read_bytes(), np.uint8))
        assert done
        frames = [frame[..., 2::-1] for frame in animation.frames]
        assert np.array_equal(frames, wanted)
    assert path.stat().st_size > 100


def test_a_server_that_is_gone_is_said_and_another_link_goes_on(
    serve: Serve, look: Look, watch: Watch, tmp_path: Path
) -> None:
    watch.allowed += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_CONNECTION", "status of 403"]
    watch.allowed += ["status of 503"]  # of a server that ends while the page asks
    folder = levels(tmp_path / "levels")
    viewer = serve(folder)
    page = look(viewer.url)
    eventually(lambda: len(keys(page)), 12)
    assert viewer.close() in (0, 130, 143, -15)
    trouble = page.locator("#trouble")
    page.locator("[data-column=return] button").click()
    trouble.filter(has_text="does not answer").wait_for()
    assert len(keys(page)) == 12  # what was there is still shown
    port = viewer.url.split(":")[2].split("/")[0]
    again = serve(folder, "--port", port)
    page.goto(again.url)
    eventually(lambda: len(keys(page)), 12)
    assert not trouble.is_visible()


@pytest.mark.proof
def test_a_network_that_comes_back_goes_on_by_itself(
    serve: Serve, look: Look, watch: Watch, store: Store
) -> None:
    watch.allowed += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK"]
    page = look(serve(store("levels")).url)
    eventually(lambda: len(keys(page)), 12)
    page.context.set_offline(True)
    page.locator("[data-column=return] button").click()
    page.locator("#trouble").filter(has_text="does not answer").wait_for()
    page.context.set_offline(False)
    page.locator("#trouble").wait_for(state="hidden")
    page.locator("[data-column=steps] button").click()
    eventually(lambda: len(keys(page)), 12)
