"""The pictures of the game: 8x8 tiles of four colours, and the two screens built from them."""

from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["pattern_tables", "screens"]

# Digits of 3x5 pixels: each row is an octal digit.
_DIGITS: Final = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717".split()
_BLANK: Final = ["." * 8] * 8
_SOLID: Final = ["3" * 8] * 8
_BRICK: Final = ["22222222", "11121111"] * 2 + ["22222222", "11111112"] * 2
_HILL: Final = ["." * (8 - width) + "3" * width for width in range(1, 9)]
_POST: Final = ["..1111.."] * 8
_CLOUD: Final = ["..3333..", ".333333.", *["33333333"] * 3, "22222222", *["........"] * 2]
# Numbers of those tiles in the first pattern table.
_BAND_TILE, _FLOOR_TILE, _POST_TILE, _CLOUD_TILE = 1, 2, 4, 5


def pattern_tables() -> bytes:
    """Return 8 KB: the tiles of the background, then those of the sprites."""
    background = b"".join(map(_tiles, (_BLANK, _SOLID, _BRICK, _HILL, _POST, _CLOUD)))
    player, enemy = _disc(8, "1", "2", eyes=True), _disc(8, "2", "1", eyes=True)
    figures = _tiles(player) + _tiles(enemy) + _tiles(_disc(6, "2", "3"))
    digits = b"".join(_tiles(_digit(rows)) for rows in _DIGITS)
    sprites = figures.ljust(16 * 16, b"\0") + digits  # digits begin at tile 16
    return background.ljust(4096, b"\0") + sprites.ljust(4096, b"\0")


def screens() -> bytes:
    """Return 2 KB: two adjacent screens, each with a status band, sky, posts and a brick floor."""
    # Two bits select the palette of 16x16 pixels; all four pairs of a byte are the same here.
    palettes = bytes([0b10101010] * 8 + [0] * 40 + [0b01010101] * 16)
    return b"".join(
        bytes(_tile_at(screen, row, column) for row in range(30) for column in range(32)) + palettes
        for screen in (0, 1)
    )


def _tile_at(screen: int, row: int, column: int) -> int:
    if row < 4:
        return _BAND_TILE
    if row >= 26:
        return _FLOOR_TILE
    if row >= 22 and column % 8 == (1, 3)[screen]:
        return _POST_TILE
    if (row, column % 16) in ((7, 2), (7, 3), (10, 9 + 3 * screen)):
        return _CLOUD_TILE
    return 0


def _tiles(rows: Sequence[str]) -> bytes:
    """Encode a picture drawn in '.123' for the console: tiles of two bit planes, row-major."""
    return b"".join(
        _plane((row[x : x + 8] for row in rows[y : y + 8]), bit)
        for y in range(0, len(rows), 8)
        for x in range(0, len(rows[0]), 8)
        for bit in (0, 1)
    )


def _plane(rows: Iterable[str], bit: int) -> bytes:
    """Pack one bit of each pixel; the leftmost pixel is the highest bit of its row's byte."""
    return bytes(
        sum((".123".index(pixel) >> bit & 1) << (7 - x) for x, pixel in enumerate(row))
        for row in rows
    )


def _disc(radius: int, body: str, edge: str, *, eyes: bool = False) -> list[str]:
    """Draw a disc in 16x16 pixels."""

    def pixel(x: int, y: int) -> str:
        if eyes and 5 <= y <= 7 and x in (5, 6, 10, 11):
            return "3"
        squared = (x - 7.5) ** 2 + (y - 7.5) ** 2
        return body if squared < (radius - 2) ** 2 else edge if squared < radius**2 else "."

    return ["".join(pixel(x, y) for x in range(16)) for y in range(16)]


def _digit(octal_rows: str) -> list[str]:
    rows = [format(int(row, 8), "03b").replace("0", "..").replace("1", "11") for row in octal_rows]
    return [row + ".." for row in rows] + ["." * 8] * 3
