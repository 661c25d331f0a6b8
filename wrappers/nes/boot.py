"""A boot script: which buttons are held for how many frames, from power-on to the game's start."""

from __future__ import annotations

from typing import TypeAlias

from stepwell.wrappers.nes.buttons import parse_buttons
from stepwell.wrappers.nes.consoles.console import Console

__all__ = ["Boot", "parse_boot", "play_boot"]

# Parts of a script: `Button` bits and a number of frames.
Boot: TypeAlias = tuple[tuple[int, int], ...]

LONGEST = 100_000  # frames of a script: near half an hour of play


def parse_boot(script: str) -> Boot:
    """Read a boot script such as "NOOP 20, START 3, NOOP 5".

    Args:
        script: Parts with commas (or line ends) between; each is buttons ("START", "RIGHT+A",
            "NOOP") and a number of frames.

    Returns:
        (`Button` bits, frames) of each part.

    Raises:
        ValueError: A part is not like that.

    Example:
        >>> parse_boot("NOOP 20, START 3")
        ((0, 20), (16, 3))
    """
    parts = [part.strip() for part in script.replace("\n", ",").split(",")]
    boot = tuple(_part(part) for part in parts if part)
    total = sum(frames for _, frames in boot)
    if total > LONGEST:
        raise ValueError(f"boot: expected at most {LONGEST:,} frames in all, got {total:,}")
    return boot


def _part(part: str) -> tuple[int, int]:
    words = part.split()
    if len(words) != 2 or not words[1].isdecimal() or int(words[1]) < 1:
        raise ValueError(
            f"boot: expected parts such as 'START 3' (buttons, then frames, at least 1), "
            f"got {part!r}; a whole script reads 'NOOP 20, START 3, NOOP 5'"
        )
    try:
        return parse_buttons(words[0]), int(words[1])
    except ValueError as error:
        raise ValueError(f"boot, part {part!r}: {error}") from None


def play_boot(console: Console, boot: Boot) -> None:
    """Play a script; one of no parts is no frame."""
    for buttons, frames in boot:
        for _ in range(frames):
            console.frame(buttons)
