"""What every emulator is asked for, and nothing else of it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

PICTURE = (240, 256)  # rows and columns that a console draws
RAM_BYTES = 0x800


class ClosedEmulator:
    """What stands where an emulator stood: it answers every call with a sentence."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the console is closed: expected an open one; open a new one")

    def __getitem__(self, address: int) -> int:
        raise RuntimeError("the console is closed: expected an open one; open a new one")


class Console(Protocol):
    """A console that is switched on, with a cartridge in it.

    Emulators differ in what a frame looks like (palette, edges, one frame of phase), in the order
    of the buttons' bits, in whether the screen that they hand out is alive; not in what is in the
    RAM. Behind this protocol screens are copies and buttons are `Button` bits.

    Attributes:
        name: The backend, as `make_nes` calls it.
        version: Of the package behind it.
        screen_shape: Shape [H, W, 3] of its screens.
        hidden: Rows and columns of the console's 240 x 256 picture that its screens leave out:
            top, bottom, left, right.
    """

    name: str
    version: str
    screen_shape: tuple[int, int, int]
    hidden: tuple[int, int, int, int]

    def frame(self, buttons: int) -> None:
        """Play one frame with these buttons (`Button` bits) held.

        Raises:
            RuntimeError: The game has crashed the console's processor.
        """
        ...

    def screen(self) -> Image:
        """The screen after the last frame: RGB [H, W, 3], C-contiguous, the caller's own."""
        ...

    def peek(self, address: int) -> int:
        """One byte of the RAM; the address is 0 to 0x7FF."""
        ...

    def ram(self) -> Image:
        """The whole RAM, [2048], the caller's own."""
        ...

    def save(self) -> object:
        """The state of the console, for `load`; the screen is not in it."""
        ...

    def load(self, state: object) -> None:
        """Go back to a state of the same backend and cartridge.

        Raises:
            ValueError: It cannot be one.
        """
        ...

    def close(self) -> None:
        """Let go of the emulator."""
        ...
