"""Draw learning curves that an example wrote, as a picture.

    python examples/ppo_atari.py --out runs/ppo_pong
    python benchmarks/plot_curve.py runs/ppo_pong/curve.csv --out docs/pictures/ppo_pong.png
    python benchmarks/plot_curve.py runs/seed*/curve.csv --out seeds.png

The first column is drawn to the right and the third one upwards; the second one gives the minutes.
Of several files each has a line, named after its folder.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

WIDTH, HEIGHT = 800, 450
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 48, 56  # margins
SHARPNESS = 2  # drawn so many times larger, and then averaged
BLACK, GREY = (40, 40, 40), (225, 225, 225)  # blue, green, red
# Of the lines, by turns: blue, vermilion, green, purple, orange, sky: distinct for most eyes.
COLOURS = (
    *((180, 100, 30), (0, 94, 213), (115, 158, 0)),
    *((167, 121, 204), (0, 159, 230), (233, 180, 86)),
)


class Curve(NamedTuple):
    """The columns of a file.

    Args:
        name: Of its folder.
        steps: [n] env steps.
        seconds: [n] since the beginning.
        returns: [n] mean return then.
    """

    name: str
    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray


def read(path: Path) -> Curve:
    """The rows of a CSV file in which no number is missing.

    Raises:
        ValueError: There are none, or they are not numbers.
    """
    rows = path.read_text().splitlines()[1:]
    if not rows:
        raise ValueError(f"{path}: expected rows below a header, got none")
    table = np.loadtxt(rows, delimiter=",", usecols=(0, 1, 2), ndmin=2)
    return Curve(path.absolute().parent.name, *table[~np.isnan(table).any(1)].T)


class Axis:
    """Numbers from one end to the other, and where they are on the picture.

    Args:
        low: The least number to be seen.
        high: The greatest one.
        begin: Pixel of the end at which the numbers begin.
        end: Pixel of the other end.
    """

    def __init__(self, low: float, high: float, begin: int, end: int) -> None:
        span = max(high - low, 1e-9)
        power = 10.0 ** math.floor(math.log10(span))
        self.step = next(step * power for step in (0.1, 0.2, 0.5, 1, 2) if span / step / power <= 8)
        self.low = math.floor(low / self.step) * self.step
        self.high = math.ceil(high / self.step) * self.step
        self._begin, self._end = begin, end

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Pixels of numbers."""
        return np.asarray(np.interp(numbers, (self.low, self.high), (self._begin, self._end)))

    def ticks(self) -> Iterator[tuple[float, int]]:
        """Round numbers, and their pixels."""
        ticks = np.arange(self.low, self.high + self.step / 2, self.step)
        for tick, pixel in zip(ticks.tolist(), self.at(ticks).tolist(), strict=True):
            yield round(tick, 9), round(pixel)


class Picture:
    """A white sheet with the measures of the page that it will have."""

    def __init__(self) -> None:
        self._pixels = np.full((SHARPNESS * HEIGHT, SHARPNESS * WIDTH, 3), 255, np.uint8)

    def line(self, points: np.ndarray, colour: tuple[int, int, int], width: int = 1) -> None:
        """Draw a line through points [n, 2]."""
        fixed = np.round(points * SHARPNESS * 16).astype(np.int32)  # sixteenths of a pixel
        cv2.polylines(self._pixels, [fixed], False, colour, width * SHARPNESS, cv2.LINE_AA, 4)

    def text(self, words: str, x: float, y: float, align: float = 0.5, size: float = 0.5) -> None:
        """Write words; align 0 begins at x, 1 ends there."""
        font, scale = cv2.FONT_HERSHEY_SIMPLEX, size * SHARPNESS
        (width, height), _ = cv2.getTextSize(words, font, scale, SHARPNESS)
        place = int(x * SHARPNESS - align * width), int(y * SHARPNESS + height / 2)
        cv2.putText(self._pixels, words, place, font, scale, BLACK, SHARPNESS, cv2.LINE_AA)

    def write(self, path: Path) -> None:
        """Save it as a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        small = cv2.resize(self._pixels, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
        if not cv2.imwrite(str(path), small):
            raise OSError(f"{path}: OpenCV could not write it")


def draw(curves: list[Curve], title: str) -> Picture:
    """Draw curves over steps, with axes and run times.

    Args:
        curves: At least one; several are listed in a legend.
        title: Stands above them.
    """
    picture = Picture()
    returns = np.concatenate([curve.returns for curve in curves])
    across = Axis(0, max(float(curve.steps.max()) for curve in curves), LEFT, WIDTH - RIGHT)
    up = Axis(float(returns.min()), float(returns.max()), HEIGHT - BOTTOM, TOP)
    for tick, x in across.ticks():
        picture.line(np.array([[x, TOP], [x, HEIGHT - BOTTOM]]), GREY)
        picture.text(f"{tick / 1000:,g}k" if tick else "0", x, HEIGHT - BOTTOM + 16)
    for tick, y in up.ticks():
        picture.line(np.array([[LEFT, y], [WIDTH - RIGHT, y]]), GREY)
        picture.text(f"{tick:g}", LEFT - 8, y, align=1)
    colours = [colour for colour, _ in zip(itertools.cycle(COLOURS), curves, strict=False)]
    for curve, colour in zip(curves, colours, strict=True):
        points = np.stack([across.at(curve.steps), up.at(curve.returns)], 1)
        picture.line(points, colour, width=2)
    if len(curves) > 1:
        legend(picture, [curve.name for curve in curves], colours)
    picture.text(title, LEFT, TOP / 2, align=0, size=0.6)
    picture.text(f"env steps; {took(curves)}", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14)
    return picture


def legend(picture: Picture, names: list[str], colours: list[tuple[int, int, int]]) -> None:
    """Names and their colours in the lower right corner, which curves that rise leave free."""
    x, bottom = WIDTH - RIGHT - 40, HEIGHT - BOTTOM - 16
    for row, (name, colour) in enumerate(zip(reversed(names), reversed(colours), strict=True)):
        y = bottom - 18 * row
        picture.line(np.array([[x, y], [x + 28, y]]), colour, width=2)
        picture.text(name, x - 8, y, align=1, size=0.45)


def took(curves: list[Curve]) -> str:
    """The minutes of one curve, or those of the shortest and of the longest of several."""
    minutes = sorted(round(float(curve.seconds.max()) / 60) for curve in curves)
    if len(curves) == 1:
        return f"{minutes[0]} minutes in all"
    if minutes[0] == minutes[-1]:
        return f"{minutes[0]} minutes each"
    return f"{minutes[0]} to {minutes[-1]} minutes each"


def main() -> None:
    """Read the numbers and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("curves", type=Path, nargs="+", help="CSV: steps, seconds, mean return")
    parser.add_argument("--out", type=Path, default=Path("curve.png"))
    parser.add_argument("--title", default="Mean return of the last 20 episodes")
    options = parser.parse_args()
    curves = [read(path) for path in options.curves]
    draw(curves, options.title).write(options.out)
    for curve in curves:
        name = f" of {curve.name}" if len(curves) > 1 else ""
        first, last = curve.returns[[0, -1]]
        print(f"{options.out}: {len(curve.steps)} points{name}, {first:.1f} to {last:.1f}")


if __name__ == "__main__":
    main()
