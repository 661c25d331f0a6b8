"""What the page shows at once: the best episode, a strip of each, few columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepwell.buffers.rows.episode import End
from support.served import Played, write_store
from support.viewer import Look, Serve, Store, eventually, keys

if TYPE_CHECKING:
    from playwright.sync_api import Page

T, CUT, NAN = End.TERMINATED, End.NONE, float("nan")
STORES: dict[str, tuple[list[tuple[float, End]], str]] = {
    "first of equal ones": ([(1, T), (7, T), (7, T), (3, T)], "0/1/0"),
    "no cut one": ([(1, T), (2, T), (9, CUT)], "0/1/0"),
    "a cut one where none has ended": ([(1, CUT), (4, CUT), (2, CUT)], "0/1/0"),
    "a number": ([(NAN, T), (-5, T), (NAN, T), (-9, T)], "0/1/0"),
    "any where no return is a number": ([(NAN, T), (NAN, T)], "0/0/0"),
}


def opened(page: Page) -> list[str | None]:
    chosen = page.locator("#episodes-body [aria-selected=true]")
    return [one.get_attribute("data-key") for one in chosen.all()]


def write(folder: Path, returns: list[tuple[float, End]]) -> Path:
    return write_store(folder, [Played([0.0] * 4 + [one], end) for one, end in returns])


@pytest.mark.parametrize("name", STORES)
def test_the_best_episode_is_open_at_once(
    serve: Serve, look: Look, tmp_path: Path, name: str
) -> None:
    returns, wanted = STORES[name]
    page = look(serve(write(tmp_path / "store", returns)).url)
    eventually(lambda: opened(page), [wanted])
    page.locator("#frame-0[data-row='0']").wait_for()
    assert not page.locator("#trouble").is_visible()


def test_the_best_of_all_stores_and_of_the_filter(serve: Serve, look: Look, tmp_path: Path) -> None:
    one = write(tmp_path / "one", [(1, T), (8, T)])
    other = write(tmp_path / "other", [(2, T), (9, T), (5, T)])
    viewer = serve(one, other)
    page = look(viewer.url)
    eventually(lambda: opened(page), ["1/1/0"])
    page.goto(f"{page.url.split('#')[0]}#max_return=7")
    eventually(lambda: (keys(page), opened(page)), (["0/0/0", "1/0/0", "1/2/0"], ["1/2/0"]))


def test_what_was_closed_stays_closed(serve: Serve, look: Look, tmp_path: Path) -> None:
    page = look(serve(write(tmp_path / "store", [(1, T), (8, T)])).url)
    page.locator("#frame-0[data-row='0']").wait_for()
    page.keyboard.press("Escape")
    eventually(lambda: opened(page), [])
    page.reload()
    eventually(lambda: keys(page), ["0/0/0", "0/1/0"])
    page.locator("#episodes-body img[src]").first.wait_for()
    assert not page.locator("#episode").is_visible()


def test_a_narrow_page_begins_with_the_table(serve: Serve, look: Look, tmp_path: Path) -> None:
    viewer = serve(write(tmp_path / "store", [(1, T), (8, T)]))
    page = look(viewer.url, viewport={"width": 390, "height": 844})
    page.locator("#episodes-body img[src]").first.wait_for()
    assert opened(page) == []


def test_strips_are_read_of_the_rows_in_view_alone(
    serve: Serve, look: Look, tmp_path: Path
) -> None:
    viewer = serve(write(tmp_path / "store", [(number % 7, T) for number in range(90)]))
    page = look(viewer.url)

    def asked() -> list[int]:
        names = "performance.getEntriesByType('resource').map((one) => one.name)"
        found = [name.split("/strip/0/")[1:] for name in page.evaluate(names)]
        return sorted(int(rest[0].split(".")[0]) for rest in found if rest)

    shown = page.locator("#episodes-body img")
    page.locator("#episodes-body img[src]").first.wait_for()
    # On a slow machine, more rows are in view at first: until the boxes above have their heights.
    eventually(lambda: {*range(shown.count())} <= {*asked()}, True)
    assert 8 < shown.count()
    assert max(asked()) < 30
    sizes = "images => images.map((one) => [one.naturalWidth, one.naturalHeight])"
    eventually(lambda: {*map(tuple, shown.evaluate_all(sizes))}, {(5 * 26 - 2, 16)})
    assert all(one.get_attribute("alt") for one in shown.all())
    page.locator("#episodes").evaluate("grid => grid.scrollTo(0, 1e6)")
    page.locator("[data-key='0/89/0'] img[src]").wait_for()
    assert 45 not in asked()


def test_the_counted_component_of_an_action_is_named(
    serve: Serve, look: Look, store: Store
) -> None:
    page = look(serve(store("cameras")).url)
    page.locator("#actions-count").filter(has_text="action[0], the first of 2").wait_for()


def test_provenance_is_behind_a_switch_that_the_address_holds(
    serve: Serve, look: Look, store: Store
) -> None:
    page = look(serve(store("levels")).url)
    own = {"id", "return", "steps", "end", "level", "task"}
    provenance = {"stream", "seed", "session", "stream_episode"}

    def columns() -> set[str]:
        heads = page.locator("#episodes-head [data-column]").all()
        return {str(one.get_attribute("data-column")) for one in heads}

    eventually(columns, own)
    assert page.locator("#episodes-body img").count() == 0  # numbers have no pictures
    page.locator("#provenance").check()
    eventually(columns, own | provenance)
    cells = page.locator("[data-key='0/0/0'] [role=gridcell]").count()
    assert cells == len(own | provenance)
    eventually(lambda: "provenance" in page.url, True)
    page.reload()
    eventually(columns, own | provenance)
    page.locator("#provenance").uncheck()
    eventually(columns, own)
