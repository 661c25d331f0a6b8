"""The NES backends, as tests are run on each, and what else they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from demo_rom import RAM, build_rom
from stepwell.wrappers.nes.buttons import Button
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.console import Console
from stepwell.wrappers.nes.emulators import BACKENDS, NesBackend, installed_backends, open_console

INSTALLED = tuple(installed_backends())
ANY: NesBackend = INSTALLED[0] if INSTALLED else "cynes"  # where the emulator does not matter
NAMES = tuple(BACKENDS)

each_backend = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=[] if name in INSTALLED else pytest.mark.skip(f"needs {name}"))
        for name in NAMES
    ],
)
needs_a_backend = pytest.mark.skipif(not INSTALLED, reason="needs an emulator: cynes, say")

NOOP, START, SELECT, A = 0, int(Button.START), int(Button.SELECT), int(Button.A)
RIGHT, LEFT, UP, DOWN = int(Button.RIGHT), int(Button.LEFT), int(Button.UP), int(Button.DOWN)
# From power-on past the title: the boot script of the game's map, a frame each.
BOOT = (NOOP,) * 20 + (START,) * 3 + (NOOP,) * 5


@contextmanager
def console_of(backend: NesBackend, data: bytes | None = None) -> Iterator[Console]:
    """A console that was just switched on, with the demonstration's cartridge in it."""
    console = open_console(Cartridge.read(data or build_rom()), backend)
    try:
        yield console
    finally:
        console.close()


def play(console: Console, frames: Iterable[int]) -> None:
    for buttons in frames:
        console.frame(buttons)


def peek(console: Console, name: str) -> int:
    """A variable of the demonstration, by its name."""
    return console.peek(RAM[name])


def random_frames(count: int, seed: int) -> list[int]:
    """Buttons held for `count` frames; mostly moving right, never START or SELECT."""
    pads = (RIGHT, RIGHT | A, RIGHT | UP, RIGHT | DOWN, LEFT, UP, DOWN, NOOP)
    rng = np.random.default_rng(seed)
    return [pads[index] for index in rng.integers(len(pads), size=-(-count // 8)).repeat(8)][:count]


def trajectory(console: Console, frames: list[int]) -> list[tuple[bytes, bytes]]:
    """RAM and screen after each frame."""
    seen = []
    for buttons in frames:
        console.frame(buttons)
        seen.append((console.ram().tobytes(), console.screen().tobytes()))
    return seen


def fingerprint(console: Console, frames: list[int]) -> str:
    """Hash of every RAM and screen on the way."""
    digest = hashlib.sha256()
    for ram, screen in trajectory(console, frames):
        digest.update(ram + screen)
    return digest.hexdigest()


def fingerprint_of(backend: NesBackend, frames: list[int], data: bytes | None = None) -> str:
    with console_of(backend, data) as console:
        return fingerprint(console, frames)
