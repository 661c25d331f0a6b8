"""The table of episodes in a browser: open, sort, filter, compare, follow, export, damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.collectors.cli.app import main
from support.served import Played, write_store
from support.tiers import proofs_but
from support.viewed_stores import cartpole, pushing, writer
from support.viewer import Look, Serve, Store, Watch, episodes, eventually, keys


def test_a_click_on_a_heading_sorts(serve: Serve, look: Look, store: Store) -> None:
    viewer = serve(store("levels"))
    page = look(viewer.url)
    known = episodes(store("levels"))
    eventually(lambda: keys(page), [f"0/{one.id}/0" for one in known])
    assert "token" not in page.url
    assert page.title() != ""
    assert not viewer.said()
    values: dict[str, Callable[[sw.Episode], float]] = {
        "return": lambda one: one.total_reward,
        "steps": lambda one: one.steps,
        "level": lambda one: float(str(one.metadata["level"])),
    }
    for column, value in values.items():
        heading = page.locator(f"[data-column={column}]")
        for _ in range(2):
            heading.locator("button").click()
            is_down = heading.get_attribute("aria-sort") == "descending"
            assert is_down or heading.get_attribute("aria-sort") == "ascending"
            ordered = sorted(known, key=value, reverse=is_down)
            wanted = [f"0/{one.id}/0" for one in ordered]
            eventually(partial(keys, page), wanted)


FILTERS: list[dict[str, str]] = [
    {"min_return": "20"},
    {"max_steps": "22", "min_steps": "13"},
    {"where": "task=balance", "max_return": "24.5"},
    {"where": "level=1"},
]


def filtered(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[int]:
    capsys.readouterr()
    assert main([*words, "--dry-run", "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["kept"]["episodes"])


@pytest.mark.parametrize(
    "given",
    proofs_but(FILTERS[2:3], FILTERS),
    ids=lambda given: ",".join(map("=".join, given.items())),
)
def test_a_filter_shows_what_stepwell_filter_keeps(
    serve: Serve,
    look: Look,
    store: Store,
    given: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = look(serve(store("levels")).url)
    eventually(lambda: len(keys(page)), 12)
    words = ["filter", str(store("levels"))]
    for name, text in given.items():
        page.locator(f"#filter [name={name}]").first.fill(text)
        words += [f"--{name.replace('_', '-')}", text]
    kept = filtered(capsys, words)
    eventually(lambda: keys(page), [f"0/{number}/0" for number in kept])
    shown = page.locator("#command").inner_text()
    assert shown.startswith("stepwell filter ")
    for word in words[2:]:
        assert word in shown
    page.reload()  # the address holds the filter
    eventually(lambda: keys(page), [f"0/{number}/0" for number in kept])


def test_a_condition_that_cannot_be_read_is_said_at_its_field(
    serve: Serve, look: Look, store: Store, watch: Watch
) -> None:
    watch.allowed.append("400")
    page = look(serve(store("levels")).url)
    eventually(lambda: len(keys(page)), 12)
    page.locator("#min_return").fill("<b>many</b>")
    error = page.locator("#error-return")
    error.filter(has_text="<b>many</b>").wait_for()
    assert page.locator("#min_return").get_attribute("aria-invalid") == "true"
    page.locator("#min_return").fill("")
    eventually(lambda: (error.inner_text(), len(keys(page))), ("", 12))


def test_two_stores_are_compared_in_one_table(serve: Serve, look: Look, tmp_path: Path) -> None:
    folders = [
        cartpole(tmp_path / "random", pushing(1.0), 8),
        cartpole(tmp_path / "careful", pushing(0.3), 5),
    ]
    page = look(serve(*folders).url)
    found = {
        f"{number}/{one.id}/0": one.total_reward
        for number, folder in enumerate(folders)
        for one in episodes(folder)
    }
    eventually(lambda: len(keys(page)), 13)
    page.locator("[data-column=return] button").click()
    best = sorted(found.values(), reverse=True)
    eventually(lambda: [found[key] for key in keys(page)], best)
    page.locator("#store-0").uncheck()
    eventually(lambda: {key[0] for key in keys(page)}, {"1"})
    page.locator("#store-0").check()
    eventually(lambda: len(keys(page)), 13)


def test_a_store_that_is_being_written_grows_on_the_page(
    serve: Serve, look: Look, tmp_path: Path
) -> None:
    with writer(tmp_path / "live") as one:
        page = look(serve(tmp_path / "live").url)
        eventually(lambda: len(keys(page)), one.episodes)
        before = one.episodes
        one.collect(60)
        assert one.episodes > before
        eventually(lambda: len(keys(page)), one.episodes)
        one.collect(60)
        eventually(lambda: len(keys(page)), one.episodes)
        # Two envs play on: what they play now has no return yet.
        ended = f"{one.episodes - 2} episodes in the order"
        eventually(
            lambda: ended in (page.locator("#timeline").get_attribute("aria-label") or ""), True
        )
    returns = {f"0/{each.id}/0": each.total_reward for each in episodes(tmp_path / "live")}
    page.locator("[data-column=return] button").click()
    ordered = sorted(returns.values(), reverse=True)
    eventually(lambda: [returns[key] for key in keys(page)], ordered)


def test_a_point_of_the_timeline_opens_its_episode(
    serve: Serve, look: Look, tmp_path: Path
) -> None:
    plays = [Played([0.0] * (3 + 5 * number % 12)) for number in range(12)]
    folder = write_store(tmp_path / "store", plays)
    page = look(serve(folder).url, viewport={"width": 800, "height": 900})
    timeline = page.locator("#timeline")

    def click(place: float, of: int) -> None:
        """Click the lane of steps at one of so many episodes."""
        begin = f"{of} episodes in the order"
        eventually(lambda: begin in (timeline.get_attribute("aria-label") or ""), True)
        size = timeline.bounding_box()
        assert size is not None
        x = 8 + (place + 0.5) * (size["width"] - 16) / of
        timeline.click(position={"x": x, "y": 90})

    click(7, 12)
    page.wait_for_url("**episode=0%2F7%2F0*")
    page.keyboard.press("Escape")
    page.locator("#min_steps").fill("8")
    kept = [number for number, each in enumerate(plays) if len(each.rewards) > 8]
    click(4, len(kept))
    page.wait_for_url(f"**episode=0%2F{kept[4]}%2F0*")


def test_damage_in_one_episode_is_said_and_leaves_the_others(
    serve: Serve, look: Look, store: Store, watch: Watch
) -> None:
    watch.allowed.append("status of [45]")
    page = look(serve(store("damaged")).url)
    eventually(lambda: keys(page)[-2:], ["0/1/0", "0/2/0"])
    page.locator("[data-key='0/1/0']").click()
    page.locator("canvas[data-row='0']").first.wait_for()
    eventually(lambda: bool(re.search("lost|damage", page.locator("body").inner_text())), True)


@pytest.mark.proof
def test_an_evicted_beginning_is_marked(serve: Serve, look: Look, store: Store) -> None:
    page = look(serve(store("evicted")).url)
    (first, second) = episodes(store("evicted"))
    assert first.first_row > 0
    wanted = [f"0/{first.id}/{first.first_row}", f"0/{second.id}/0"]
    eventually(lambda: keys(page), wanted)
    assert "late" in page.locator(f"[data-key='{wanted[0]}']").inner_text()
    assert "late" not in page.locator(f"[data-key='{wanted[1]}']").inner_text()
