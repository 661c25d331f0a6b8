"""Each state of the page: accessible by WCAG's levels A and AA, and a picture of it to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from support.tiers import proofs_but
from support.viewed_stores import cameras, cartpole, levels, nes, pong, pushing
from support.viewer import Look, Serve, Watch, eventually, keep, keys, open_episode, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


@dataclass(frozen=True)
class State:
    """A state of the page."""

    stores: tuple[str, ...]  # names of the stores, made by `make`
    row: int | None = None  # the row of the opened episode; None shows the table
    key: str = "0/0/0"
    scheme: Literal["light", "dark"] = "light"
    size: dict[str, int] = field(default_factory=lambda: WIDE)
    act: Callable[[Page], Any] = lambda page: None  # what is done last


SORT = "[data-column=return] button"


def click(selector: str, wait: str = "body") -> Callable[[Page], Any]:
    def act(page: Page) -> None:
        page.locator(selector).click()
        page.locator(wait).wait_for()

    return act


def pin_another(page: Page) -> None:
    page.locator("#pin-button").click()
    open_episode(page, "1/2/0")
    page.locator("#pinned-values").wait_for()
    page.locator("#scrubber").fill("9")


def wrong_filter(page: Page) -> None:
    page.locator("#min_return").fill("many")
    page.locator("#error-return").filter(has_text="many").wait_for()


STATES = {
    "table": State(("pong", "levels"), act=click(SORT)),
    "pong": State(("pong",), row=80),
    "pong-dark": State(("pong",), row=80, scheme="dark", act=click("#show-stack")),
    "pong-phone": State(("pong",), row=80, size=PHONE),
    "nes": State(("nes",), row=40),
    "cameras": State(("cameras",), row=12),
    "cameras-phone-dark": State(("cameras",), row=12, size=PHONE, scheme="dark"),
    "cartpole": State(("cartpole",), row=20),
    "compared": State(("random", "cartpole"), row=9, act=pin_another),
    "compared-table-dark": State(("random", "cartpole"), scheme="dark", act=click(SORT)),
    "compared-table-phone": State(("random", "cartpole"), size=PHONE),
    "export": State(("cartpole",), act=click("#export-button", "#export[open]")),
    "clip": State(("pong",), row=80, act=click("#clip-button", "#clip[open]")),
    "help": State(("cartpole",), act=click("#help-button", "#help[open]")),
    "wrong-filter": State(("cartpole",), act=wrong_filter),
}
MAKE: dict[str, Callable[[Path], Path]] = {
    "pong": pong,
    "levels": levels,
    "nes": nes,
    "cameras": lambda folder: cameras(folder, 6, size=144),
    "cartpole": lambda folder: cartpole(folder, pushing(0.4), 12),
    "random": lambda folder: cartpole(folder, pushing(1.0), 12),
}


@pytest.fixture(scope="module")
def shown(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[State], str]:
    """The URL of a viewer of the state's stores; viewers and stores are made once."""
    at = tmp_path_factory.mktemp("shown")  # relative paths: no folder of a machine in a picture
    runs = Path("runs")
    made: set[str] = set()
    if request.config.getoption("--pictures"):  # a table with two rows is no picture for docs/
        pong(at / runs / "pong", episodes=6)
        made.add("pong")
    urls: dict[tuple[str, ...], str] = {}

    def find(state: State) -> str:
        if state.stores not in urls:
            for name in state.stores:
                if name not in made:
                    MAKE[name](at / runs / name)
                    made.add(name)
            urls[state.stores] = serve(*(runs / name for name in state.stores), within=at).url
        return urls[state.stores]

    return find


IN_EVERY_RUN = ("table", "cameras-phone-dark", "export")


@pytest.mark.parametrize("name", proofs_but(IN_EVERY_RUN, STATES))
def test_a_state_is_accessible(
    shown: Callable[[State], str],
    look: Look,
    name: str,
    watch: Watch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    pytest.importorskip("axe_playwright_python")
    state = STATES[name]
    if "nes" in state.stores:
        pytest.importorskip("cynes")
    if name == "wrong-filter":
        watch.allowed.append("400")
    page = look(shown(state), viewport=state.size, color_scheme=state.scheme)
    eventually(lambda: bool(keys(page)), True)
    if state.row is not None:
        open_episode(page, state.key)
        page.locator("#scrubber").fill(str(state.row))
        page.locator("#values td").first.wait_for()
        late = page.locator(f"canvas[id^='frame-']:not([data-row='{state.row}'])")
        eventually(late.count, 0)
    state.act(page)
    page.wait_for_timeout(300)  # for curves, whose canvas says nothing
    folder = request.config.getoption("--pictures") or tmp_path
    keep(page, folder / f"{name}.webp")
    assert violations(page) == []
