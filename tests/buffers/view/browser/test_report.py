"""A report that is opened from disk, with and without JavaScript, and with no network."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from support.viewed_stores import cartpole, pushing
from support.viewer import STEPWELL, Look, Store, eventually, keep, pictures, pixels, violations

MOST_BYTES = 1_000_000
Report = Callable[[str], Path]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Report:
    """The report of a store, made by the command."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("reports") / f"{name}.html"
            command: list[str | Path] = [*STEPWELL, "report", store(name), "-o", made[name]]
            subprocess.run(command, check=True, capture_output=True)
        return made[name]

    return make


@pytest.mark.parametrize("name", ["pong", "cameras", "cartpole", "hostile"])
def test_a_report_opens_from_disk_and_is_accessible(
    report: Report, look: Look, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("axe_playwright_python")
    path = report(name)
    assert path.stat().st_size < MOST_BYTES
    page = look(path.as_uri())
    page.locator("h1").first.wait_for()
    assert violations(page) == []
    heading = page.get_by_role("heading", name="Episodes").first
    heading.evaluate("heading => heading.scrollIntoView({behavior: 'instant'})")
    page.wait_for_timeout(300)  # for frames and curves
    folder = request.config.getoption("--pictures") or tmp_path
    keep(page, folder / f"report-{name}.webp")
    phone = look(path.as_uri(), viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert phone.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert violations(phone) == []


def test_the_episodes_of_a_report_are_playable_and_exact(
    report: Report, look: Look, store: Store
) -> None:
    page = look(report("pong").as_uri())
    with sw.SequenceReplayBuffer.open(store("pong"), read_only=True) as replay:
        one = next(iter(replay.iter_episodes()))
    slider = page.locator("input[type=range]").first
    for row in (1, 70, 500, 925):
        slider.fill(str(row))
        canvas = page.locator(f"canvas[data-row='{row}']").first
        canvas.wait_for()
        assert np.array_equal(pixels(canvas), pictures(one)[row])
    slider.fill("100")
    page.get_by_role("button", name="Play").first.click()
    eventually(lambda: int(slider.input_value()) > 105, True)


def test_without_javascript_a_report_shows_summary_and_frames(report: Report, look: Look) -> None:
    page = look(report("pong").as_uri(), java_script_enabled=False)
    text = page.locator("body").inner_text()
    assert "pong" in text
    assert "925" in text
    assert page.locator("svg").count() > 0
    assert page.locator("img").count() > 0


def test_a_report_compares_stores(look: Look, tmp_path: Path) -> None:
    folders = [cartpole(tmp_path / "first", pushing(1.0)), cartpole(tmp_path / "other")]
    out = tmp_path / "both.html"
    subprocess.run([*STEPWELL, "report", *folders, "-o", out], check=True, capture_output=True)
    page = look(out.as_uri())
    text = page.locator("body").inner_text()
    assert "first" in text
    assert "other" in text


def test_hostile_text_in_a_report_is_text(report: Report, look: Look) -> None:
    page = look(report("hostile").as_uri())
    page.locator("h1").first.wait_for()
    assert page.locator("img[src=x], b:text-is('bold')").count() == 0
    assert page.evaluate("({}).polluted === undefined")
