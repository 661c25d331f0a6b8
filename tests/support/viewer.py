"""A viewer in a process of its own, and a page in a browser that shows it."""

from __future__ import annotations

import base64
import importlib.resources
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import numpy.typing as npt

import stepwell as sw

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page, Request

    from stepwell import Episode

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
MOST_PICTURE_BYTES = 120_000  # in docs/
Serve = Callable[..., "Viewer"]
Look = Callable[..., "Page"]
Store = Callable[[str], Path]
"""Types of the fixtures of the browser's tests."""

STEPWELL = [sys.executable, "-m", "stepwell.collectors.cli"]
SECONDS = (
    20.0  # that anything may take on a busy machine; nothing waits for so long when all is well
)


def chromium_path() -> str | None:
    """The browser that `STEPWELL_CHROMIUM` names, or one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("STEPWELL_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


class Viewer:
    """`stepwell view` in a process of its own, which writes a file `said` into the folder."""

    def __init__(
        self, arguments: tuple[str | Path, ...], folder: Path, within: Path | None = None
    ) -> None:
        self._log = folder / "said"
        command = [*STEPWELL, "view", *arguments, "--no-browser"]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=within or folder, stdout=subprocess.PIPE, stderr=out, text=True
            )
        self.url = self._url()

    def _url(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"http://\S+", line):
                return found[0]
        self.close()
        raise ChildProcessError(f"stepwell view printed no URL; {self.said()}")

    def said(self) -> str:
        """The text that it wrote to the standard error."""
        return self._log.read_text()

    def close(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self._process.send_signal(number)
        try:
            code = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


@dataclass
class Watch:
    """Whatever a page did that it must not do, but for patterns of messages that are allowed."""

    found: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=lambda: ["willReadFrequently"])  # `pixels` reads

    def follow(self, page: Page, url: str) -> None:
        """Take note of errors and of requests to another host than that of the URL."""
        home = urlsplit(url)

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.found.append(f"{message.type}: {message.text}")

        def asked(request: Request) -> None:
            there = urlsplit(request.url)
            if there.scheme not in ("data", "blob") and there[:2] != home[:2]:
                self.found.append(f"request to {request.url}")

        page.on("console", said)
        page.on("request", asked)
        page.on("pageerror", lambda error: self.found.append(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))
        page.on("popup", lambda popup: self.found.append(f"window: {popup.url}"))

    @property
    def wrong(self) -> list[str]:
        return [one for one in self.found if not any(re.search(each, one) for each in self.allowed)]


def pixels(canvas: Locator) -> npt.NDArray[np.uint8]:
    """The pixels [H, W, 3] that a canvas holds, and nothing that lies over it."""
    found = canvas.evaluate(
        """canvas => {
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let text = "";
            for (let at = 0; at < image.data.length; at += 4096)
                text += String.fromCharCode(...image.data.subarray(at, at + 4096));
            return [canvas.height, canvas.width, btoa(text)];
        }"""
    )
    height, width, text = found
    rgba = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)
    assert (rgba[..., 3] == 255).all()
    return rgba[..., :3]


def eventually(read: Callable[[], Any], wanted: Any) -> None:
    """Wait until what is read equals what is wanted: a page answers in its own time."""
    deadline = time.monotonic() + SECONDS
    while (found := read()) != wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"expected {wanted!r}, got {found!r} after {SECONDS:.0f} s")
        time.sleep(0.02)


def keys(page: Page) -> list[str]:
    """The episodes of the table, from top to bottom, as "store/id/first row"."""
    found = page.locator("#episodes-body [role=row][data-key]").evaluate_all(
        "rows => rows.map((row) => [Number(row.ariaRowIndex), row.dataset.key])"
    )
    return [key for _, key in sorted(found)]


def open_episode(page: Page, key: str) -> None:
    """Click an episode, and wait until it is shown: until then, the one before is."""
    page.locator(f"[data-key='{key}'] [role=gridcell]").first.click()
    # The address names an episode as soon as its parts have replaced those of the one before.
    page.wait_for_function(
        "key => new URLSearchParams(location.hash.slice(1)).get('episode') === key", arg=key
    )
    page.locator("#episode #scrubber").wait_for()


def scrub(page: Page, row: int, number: int = 0) -> None:
    """Move the scrubber, and wait until the row of an image is painted."""
    page.locator("#scrubber").fill(str(row))
    page.locator(f"#frame-{number}[data-row='{row}']").wait_for()


def episodes(folder: Path) -> list[Episode]:
    """The episodes of a store."""
    with sw.SequenceReplayBuffer.open(folder, read_only=True) as replay:
        return list(replay.iter_episodes())


def pictures(episode: Episode, name: str = "observation") -> npt.NDArray[np.uint8]:
    """The frames of an episode [T, H, W, 3], by a way of its own from the stored rows."""
    rows = episode.fields[name]
    if rows.ndim == 5:
        rows = rows[:, -1]  # a stack of one
    if rows.ndim == 3:
        rows = np.stack([rows] * 3, axis=-1)
    elif rows.shape[1] == 3:
        rows = rows.transpose(0, 2, 3, 1)
    assert rows.dtype == np.uint8
    return rows


def violations(page: Page) -> list[str]:
    """The findings of axe-core, with the elements."""
    axe = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    page.evaluate(axe.read_text("utf-8"))
    options = {"runOnly": LEVELS, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['help']}: " + "; ".join(node["html"][:200] for node in one["nodes"])
        for one in found["violations"]
    ]


def keep(page: Page, path: Path) -> None:
    """Write a picture of the window as lossless WebP, which is smaller than PNG."""
    data = np.frombuffer(page.screenshot(), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert picture is not None
    done, coded = cv2.imencode(".webp", picture, [cv2.IMWRITE_WEBP_QUALITY, 101])
    assert done
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(coded.tobytes())
    assert path.stat().st_size <= MOST_PICTURE_BYTES
