"""Costs of `stepwell view` with a large store: first frame, scrubbing, memory, bytes of the page.

python benchmarks/viewing.py --folder /disk
python benchmarks/viewing.py --rows 20000 --rounds 3

Needs `stepwell[view,browser]` and Chromium. Two stores of a million rows each are made in the
folder and removed again: one in episodes of a thousand rows of 84 x 84 pixels, for the first frame
and for scrubbing; one in 100,000 episodes, for the server's memory. A round starts a new server and
a new browser window:

- "first frame" is the time from opening the link that the server printed, with an episode behind
  it, to the first painted frame;
- "scrubbing" drags the mouse along the slider of an episode that was not shown before, and counts
  the different rows that were painted, a second;
- "page" is what the browser loaded before it asked for the first frame;
- "memory" is the server's, as the highest number of bytes that were its own (without the store's
  files, whose pages belong to the system), after the returns of all episodes are known and the
  table was sorted, filtered and counted.

Behind them stands the CPU time of browser and server until the first frame, and for each row that
is painted while scrubbing: on a machine that does other things these say more than the times.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

import rounds
import stepwell as sw

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PACKAGES = ("starlette", "uvicorn", "playwright", "opencv-python", "numpy")
_EPISODE = 1_000  # rows of an episode that is scrubbed
_DRAG_SECONDS = 2.0
_SECONDS = 120.0  # that anything may take
_STEPWELL = [sys.executable, "-m", "stepwell.collectors.cli"]


@dataclass(frozen=True)
class Goal:
    """A line of the table.

    Args:
        limit: The goal; None without one.
        unit: Of the figures.
        is_least: The figure must not be smaller; otherwise it must not be greater.
    """

    limit: float | None
    unit: str
    is_least: bool = False


GOALS: dict[str, Goal] = {
    "first frame": Goal(1.0, "s"),
    "scrubbing": Goal(30.0, "rows a second", is_least=True),
    "page": Goal(100.0, "kB"),
    "memory": Goal(300.0, "MB"),
    "CPU, first frame": Goal(None, "s"),
    "CPU, a painted row": Goal(None, "ms"),
}
"""Lines of the table."""


# --- stores ---------------------------------------------------------------------------------------


def make_store(folder: Path, rows: int, episodes: int, size: int) -> Path:
    """Fill a store with episodes of equal length: a ball and two paddles on ``size`` pixels."""
    length = max(2, rows // episodes)
    pictures = np.stack([_picture(t, size) for t in range(length)])
    fields = (spaces.Box(0, 255, pictures.shape[1:], np.uint8), spaces.Discrete(6))
    generator = np.random.default_rng(0)
    with sw.SequenceReplayBuffer(folder) as replay, replay.writer(fields) as writer:
        for number in range(episodes):
            writer.add_episode(
                observation=pictures,
                action=generator.integers(0, 6, length - 1),
                reward=generator.normal(size=length - 1).astype(np.float32),
                terminated=number % 3 > 0,
                truncated=number % 3 == 0,
                metadata={"level": number % 7},
            )
    return folder


def _picture(t: int, size: int) -> np.ndarray:
    found = np.full((size, size), 87, np.uint8)
    wide = max(1, size // 40)
    for place, speed, x in ((3, 2, wide * 4), (7, 3, size - wide * 5)):
        top = (place + speed * t) % (size - 4 * wide)
        found[top : top + 4 * wide, x : x + wide] = 147
    x, y = (5 * t) % (size - wide), (3 * t) % (size - wide)
    found[y : y + wide, x : x + wide] = 236
    return found


# --- the server and the browser -------------------------------------------------------------------


class Server:
    """`stepwell view` of one store.

    Args:
        store: Its folder.
    """

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [*_STEPWELL, "view", store, "--port", "0", "--no-browser"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        found = None
        for line in self._process.stdout:
            if found := re.search(r"http://\S+", line):
                break
        if found is None:
            self.close()
            raise ChildProcessError("stepwell view printed no URL; see above")
        self.url = found[0]

    def own_bytes(self) -> int:
        """Bytes of memory that are the process's own now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return 1024 * int(found[1])

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright  # write_performance.py does without it

    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("STEPWELL_CHROMIUM") or next(filter(None, map(shutil.which, names)), "")
    if not found:
        raise FileNotFoundError("expected Chromium on the path; set STEPWELL_CHROMIUM to it")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as api:
        browser = api.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()


@contextlib.contextmanager
def window(browser: Browser) -> Iterator[Page]:
    """A new page, with nothing in its cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(1_000 * _SECONDS)
    yield context.new_page()
    context.close()


def cpu_seconds() -> float:
    """CPU time of all running processes of browsers and servers that this process started."""
    found: dict[int, tuple[int, float, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = path.read_text().rpartition(")")
            facts = rest.split()
            seconds = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
            found[int(path.parent.name)] = int(facts[1]), seconds, name.partition("(")[2]
    own, total = {os.getpid()}, 0.0
    for pid in sorted(found):  # a child's number is greater, but for those after a wrap
        parent, seconds, name = found[pid]
        if parent in own and pid not in own:
            own.add(pid)
            total += seconds if name != "node" else 0.0  # playwright's own
    return total


# --- measurements ---------------------------------------------------------------------------------

# Notes when rows are painted, in the page's own time; a frame counts when it is on the screen.
_NOTE_ROWS = """
() => {
    const seen = (window.seen = []);
    const note = () => {
        const canvas = document.querySelector("canvas[data-row]");
        const row = canvas && canvas.dataset.row;
        if (row && (!seen.length || seen[seen.length - 1][1] !== row))
            seen.push([performance.now(), row]);
        requestAnimationFrame(note);
    };
    requestAnimationFrame(note);
}
"""


def first_frame(browser: Browser, store: Path) -> dict[str, float]:
    """The time to the first frame, and the bytes before it; then the rows of a drag."""
    server = Server(store)
    with contextlib.closing(server), window(browser) as page:
        page.add_init_script(f"({_NOTE_ROWS})()")
        began, cpu = time.perf_counter(), cpu_seconds()
        page.goto(f"{server.url}#episode=0/0/0")
        page.locator("canvas[data-row]").first.wait_for()
        waited, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        sizes = page.evaluate(
            """() => performance.getEntries()
                .filter((one) => "encodedBodySize" in one)
                .map((one) => [one.name, one.startTime, one.encodedBodySize])"""
        )
        frames = [start for name, start, _ in sizes if "/frames/" in name]
        loaded = sum(size for _, start, size in sizes if start < min(frames))
        return {
            **{"first frame": waited, "CPU, first frame": cpu, "page": loaded / 1e3},
            **scrub(page),
        }


def scrub(page: Page) -> dict[str, float]:
    """Different rows that are painted while the mouse drags the slider to its end."""
    slider = page.locator("#scrubber")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    x, y = box["x"] + 8, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    seen = page.evaluate("window.seen.length")
    began, cpu = time.perf_counter(), cpu_seconds()
    while (past := (time.perf_counter() - began) / _DRAG_SECONDS) < 1:
        page.mouse.move(x + past * (box["width"] - 16), y)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    rows = page.evaluate("seen => new Set(window.seen.slice(seen).map((one) => one[1])).size", seen)
    page.mouse.up()
    return {"scrubbing": rows / seconds, "CPU, a painted row": 1e3 * cpu / max(1, rows)}


def memory(browser: Browser, store: Path) -> dict[str, float]:
    """The highest number of the server's own bytes while the whole table is used."""
    server = Server(store)
    with contextlib.closing(server), window(browser) as page:
        page.goto(server.url)
        most = 0

        def get(path: str) -> Any:
            nonlocal most
            found = page.evaluate("path => fetch(path).then((one) => one.json())", path)
            most = max(most, server.own_bytes())
            return found

        deadline = time.monotonic() + _SECONDS
        while True:
            (found,) = get("/api/stores")["stores"]
            if found["returns_known"] == found["episodes"]:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found['returns_known']} of {found['episodes']} returns known")
            time.sleep(0.05)
        for query in ("sort=return&order=desc", "sort=level", "where=level=3", "top=10%25"):
            get(f"/api/episodes?{query}")
            get(f"/api/histograms?{query.partition('sort=')[0]}")
        return {"memory": most / 1e6}


def measure(folder: Path, rows: int, episodes: int, count: int) -> dict[str, list[float]]:
    """All figures, one for each round."""
    found: dict[str, list[float]] = {name: [] for name in GOALS}
    with tempfile.TemporaryDirectory(dir=folder, prefix="benchmark-") as name:
        frames = make_store(Path(name) / "frames", rows, max(1, rows // _EPISODE), 84)
        table = make_store(Path(name) / "table", rows, min(episodes, rows // 2), 8)
        with chromium() as browser:
            for number in range(count):
                taken = {**first_frame(browser, frames), **memory(browser, table)}
                for each, figure in taken.items():
                    found[each].append(figure)
                print(f"round {number + 1} of {count}", file=sys.stderr, flush=True)
    return found


# --- the table ------------------------------------------------------------------------------------


def goals_table(measured: Mapping[str, list[float]]) -> str:
    """A line for each goal: the median of the rounds, and its ratio to the goal."""
    lines: list[tuple[str, ...]] = []
    for name, goal in GOALS.items():
        figures = np.array(measured[name])
        median = float(np.median(figures))
        goal_cells = ("", "", "")
        if goal.limit is not None:
            is_met = median >= goal.limit if goal.is_least else median <= goal.limit
            goal_cells = (
                f"{'>=' if goal.is_least else '<='} {goal.limit:g}",
                f"{median / goal.limit:.2f}",
                "met" if is_met else "**missed**",
            )
        wanted, ratio, verdict = goal_cells
        spread = f"{figures.min():.3g}-{figures.max():.3g}"
        lines.append((name, goal.unit, f"{median:.3g}", spread, wanted, ratio, verdict))
    head = ("figure", "unit", "median", "lowest-highest", "goal", "median to goal", "")
    return rounds.table(head, lines)


def main() -> None:
    """Measure, and print the table."""
    parser = rounds.options(__doc__, 5)
    parser.add_argument("--rows", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--episodes", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to be measured")
    options = parser.parse_args()
    found = measure(options.folder, options.rows, options.episodes, options.rounds)
    print(goals_table(found))
    packages = rounds.installed(*_PACKAGES)
    figures = rounds.result(packages, rounds=options.rounds, rows=options.rows, figures=found)
    rounds.save(options.json, figures)


if __name__ == "__main__":
    main()
