"""Draw a learning curve that an example wrote, as a picture.

    python examples/ppo_atari.py --out runs/ppo_pong
    python benchmarks/plot_curve.py runs/ppo_pong/curve.csv --out docs/pictures/ppo_pong.png

The first column is drawn to the right and the third one upwards; the second one gives the minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT = 800, 450
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 48, 56  # margins
SHARPNESS = 2  # drawn so many times larger, and then averaged
BLACK, GREY, BLUE = (40, 40, 40), (225, 225, 225), (180, 100, 30)  # blue, green, red


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


def draw(steps: np.ndarray, seconds: np.ndarray, returns: np.ndarray, title: str) -> Picture:
    """A curve over steps, its axes, and what it took.

    Args:
        steps: [n] env steps.
        seconds: [n] since the beginning.
        returns: [n] mean return then.
        title: Stands above it.
    """
    picture = Picture()
    across = Axis(0, float(steps.max()), LEFT, WIDTH - RIGHT)
    up = Axis(float(returns.min()), float(returns.max()), HEIGHT - BOTTOM, TOP)
    for tick, x in across.ticks():
        picture.line(np.array([[x, TOP], [x, HEIGHT - BOTTOM]]), GREY)
        picture.text(f"{tick / 1000:,.0f}k" if tick else "0", x, HEIGHT - BOTTOM + 16)
    for tick, y in up.ticks():
        picture.line(np.array([[LEFT, y], [WIDTH - RIGHT, y]]), GREY)
        picture.text(f"{tick:g}", LEFT - 8, y, align=1)
    picture.line(np.stack([across.at(steps), up.at(returns)], 1), BLUE, width=2)
    picture.text(title, LEFT, TOP / 2, align=0, size=0.6)
    minutes = f"env steps; {seconds.max() / 60:.0f} minutes in all"
    picture.text(minutes, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14)
    return picture


def main() -> None:
    """Read the numbers and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("curve", type=Path, help="CSV: steps, seconds, mean return")
    parser.add_argument("--out", type=Path, default=Path("curve.png"))
    parser.add_argument("--title", default="Mean return of the last 20 episodes")
    options = parser.parse_args()
    table = np.loadtxt(options.curve, delimiter=",", skiprows=1, ndmin=2)
    steps, seconds, returns = table[~np.isnan(table).any(1)].T
    draw(steps, seconds, returns, options.title).write(options.out)
    print(f"{options.out}: {len(steps)} points, {returns[0]:.1f} to {returns[-1]:.1f}")


if __name__ == "__main__":
    main()
