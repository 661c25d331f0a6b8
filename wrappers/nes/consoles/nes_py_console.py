"""A console that nes-py emulates."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.console import PICTURE, ClosedEmulator, Image
from stepwell.wrappers.opencv import rgb_of_bgrx

__all__ = ["NesPyConsole"]

# nes-py has the buttons the other way round: A in the lowest bit, RIGHT in the highest.
_MIRRORED = tuple(int(f"{bits:08b}"[::-1], 2) for bits in range(256))


class NesPyConsole:
    """A `Console` on nes-py.

    What nes-py 9.0.1 does otherwise than one would expect, and is put right here: screens and RAM
    are live views, the screens' with negative strides; an emulator that was not reset runs wild;
    its states cannot leave the process.

    Args:
        cartridge: What is in the file, for messages.
        path: The file; it is read at once.
        version: Of nes-py.
    """

    name = "nes-py"
    screen_shape = (*PICTURE, 3)
    hidden = (0, 0, 0, 0)

    def __init__(self, cartridge: Cartridge, path: str, version: str) -> None:
        nes_py: Any = importlib.import_module("nes_py")

        self.version = version
        self._title = cartridge.name
        self._env: Any = nes_py.NESEnv(path)
        # Its first frame ends where the others' second one does: none is played here.
        self._env.reset()
        self._ram: Any = memoryview(self._env.ram)
        self._pixels = _words(self._env.screen)
        self._state_type = type(self._env.dump_state())

    def frame(self, buttons: int) -> None:
        """Play one frame with these buttons held."""
        self._env._frame_advance(_MIRRORED[buttons])

    def screen(self) -> Image:
        """The screen after the last frame."""
        if self._pixels is None:
            image: Image = self._env.observation("rgb_array_contiguous")
            return image
        # Takes half the time of nes-py's own loop over the pixels.
        return rgb_of_bgrx(self._pixels)

    def peek(self, address: int) -> int:
        """One byte of the RAM."""
        return int(self._ram[address])

    def ram(self) -> Image:
        """The whole RAM."""
        return np.array(self._ram, np.uint8)

    def save(self) -> object:
        """The state of the console; it cannot be pickled or written to a file."""
        state: object = self._env.dump_state()
        return state

    def load(self, state: object) -> None:
        """Go back to a state."""
        if not isinstance(state, self._state_type):
            raise ValueError(
                f"state: expected one that nes-py saved in this process, got "
                f"{type(state).__name__}; a state goes with the backend and the cartridge that it "
                "was saved from"
            )
        self._env.load_state(state)

    def close(self) -> None:
        """Let go of the emulator."""
        self._env = self._ram = ClosedEmulator()
        self._pixels = None


def _words(view: Image) -> Image | None:
    """The screen's memory [H, W, 4] as nes-py has it, blue first; None if it has it otherwise."""
    rows, columns = PICTURE
    if view.shape != (rows, columns, 3) or view.strides != (4 * columns, 4, -1):
        return None
    blue_first = view[:, :, ::-1]
    return np.lib.stride_tricks.as_strided(blue_first, (rows, columns, 4), (4 * columns, 4, 1))
