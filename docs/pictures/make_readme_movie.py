"""Make readme.webp: a real collection in a terminal, then the page of `stepwell view` in Chromium.

    pip install 'stepwell[view,browser]' pillow     # and Chromium
    python docs/pictures/make_readme_movie.py docs/pictures/readme.webp

Lines of the terminal are those that the command printed, as it printed them; every picture of the
page is a screenshot. The command runs in an empty folder. Nothing is compressed with a loss.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = {"width": 960, "height": 540}
COLLECT = "stepwell collect Pong --num-envs 8 --steps 20k --seed 1 --out runs/pong"
VIEW = "stepwell view runs/pong"
COLUMNS = 96
ROWS = range(80, 116, 2)
TERMINAL = """<!doctype html><style>
body { margin: 0; background: #0d1117; color: #e6edf3 }
body { font: 15px/1.55 'DejaVu Sans Mono', monospace }
header { height: 34px; background: #21262d; display: flex; align-items: center; padding-left: 14px }
header i { width: 12px; height: 12px; border-radius: 6px; margin-right: 8px; background: #6e7681 }
pre { font: inherit; margin: 18px; white-space: pre-wrap } b { color: #7ee787; font-weight: 400 }
</style><header><i></i><i></i><i></i></header><pre id=screen></pre>"""
Printed = list[tuple[float, str]]
Pictures = list[tuple[Image.Image, int]]


def printed(command: str, folder: Path) -> Printed:
    """Run a command in a terminal of its own; its output with the seconds at which it came."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        program = [sys.executable, "-m", "stepwell.collectors.cli", *command.split()[1:]]
        colors = {"COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": "1"}
        os.execve(sys.executable, program, {**os.environ, **colors})
    found: Printed = []
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        found.append((time.monotonic(), data.decode()))
    if os.waitpid(child, 0)[1]:
        raise ChildProcessError(f"{command}: {found[-1:]}")
    return found


def screens(output: Printed) -> Printed:
    """The text on the screen after each piece of output."""
    lines = [""]
    found: Printed = []
    for moment, text in output:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                lines.append("")
            elif part == "\x1b[1A":
                lines.pop()
            elif part == "\x1b[2K":
                lines[-1] = ""
            elif part[0] not in "\x1b\r":
                lines[-1] += part
        found.append((moment, "\n".join(lines)))
    return found


def picture(page: Page) -> Image.Image:
    """A screenshot."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def terminal_pictures(page: Page, output: Printed) -> Pictures:
    """The command as it is typed, its output, and the next command."""
    page.set_content(TERMINAL)
    pictures: Pictures = []

    def show(command: str, below: str, milliseconds: int) -> None:
        text = f"<b>$ {html.escape(command)}</b>\n{html.escape(below)}"
        page.locator("#screen").evaluate("(screen, text) => { screen.innerHTML = text }", text)
        pictures.append((picture(page), milliseconds))

    for length in [*range(8, len(COLLECT), 7), len(COLLECT)]:
        show(COLLECT[:length], "", 60)
    shown = [each for each in screens(output) if each[1].strip()]
    last, took = shown[-1][1], shown[-1][0] - shown[0][0]
    before = shown[0][0] - took
    for moment, text in shown:
        if moment - before >= took / 24 and text != last:
            show(COLLECT, text, 130)
            before = moment
    show(COLLECT, last, 2_600)
    for length in [*range(8, len(VIEW), 5), len(VIEW)]:
        typed = f"{last.rstrip()}\n$ {VIEW[:length]}"
        show(COLLECT, typed, 60)
    return pictures


def viewer_pictures(page: Page, url: str) -> Pictures:
    """The table of episodes, then one of them, row by row."""
    page.goto(url)
    cells = page.locator("#episodes-body [role=row][data-key] [role=gridcell]")
    cells.first.wait_for()
    page.wait_for_timeout(400)
    pictures: Pictures = [(picture(page), 1_400)]
    cells.first.click()
    for row in ROWS:
        page.locator("#scrubber").fill(str(row))
        page.locator(f"canvas[id^='frame-'][data-row='{row}']").first.wait_for()
        page.wait_for_timeout(150)  # for curves, whose canvas says nothing
        pictures.append((picture(page), 110))
    pictures[-1] = (pictures[-1][0], 2_000)
    return pictures


def main() -> None:
    """Collect, look, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    chromium = os.environ.get("STEPWELL_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as api:
        folder = Path(name)
        output = printed(COLLECT, folder)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = api.chromium.launch(executable_path=chromium, args=sandbox)
        page = browser.new_page(viewport=SIZE, color_scheme="dark")
        pictures = terminal_pictures(page, output)
        command = [sys.executable, "-m", "stepwell.collectors.cli", *VIEW.split()[1:]]
        viewer = subprocess.Popen(
            [*command, "--no-browser", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        try:
            assert viewer.stdout is not None
            url = next(
                found[0] for line in viewer.stdout if (found := re.search(r"http://\S+", line))
            )
            pictures += viewer_pictures(page, url)
        finally:
            viewer.terminate()
            viewer.wait()
        browser.close()
    first, *others = (shown for shown, _ in pictures)
    first.save(
        out,
        save_all=True,
        append_images=others,
        duration=[milliseconds for _, milliseconds in pictures],
        loop=0,
        lossless=True,
        minimize_size=True,
    )
    sys.stdout.write(f"{out}: {len(pictures)} pictures, {out.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
