"""The protocol of a console, which every emulator implements."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

PICTURE = (240, 256)  # rows and columns of a console's screen
RAM_BYTES = 0x800


class ClosedEmulator:
    """Replaces a closed emulator: every call raises an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the console is closed: expected an open one; open a new one")

    def __getitem__(self, address: int) -> int:
        raise RuntimeError("the console is closed: expected an open one; open a new one")


class Console(Protocol):
    """A running console with a cartridge."""

    # Emulators differ in the picture (palette, edges, one frame of phase), in the order of the
    # buttons' bits, and in whether they reuse the array of the screen, but not in the RAM. With
    # this protocol screens are copies and buttons are `Button` bits.

    name: str  # of the backend, as in `make_nes`
    version: str  # of its package
    screen_shape: tuple[int, int, int]  # [H, W, 3]
    # Rows and columns of the console's 240 x 256 picture that its screens omit: top, bottom, left,
    # right
    hidden: tuple[int, int, int, int]

    def frame(self, buttons: int) -> None:
        """Play one frame with these `Button` bits held; RuntimeError: the game has crashed."""
        ...

    def screen(self) -> Image:
        """Return a copy of the screen after the last frame: RGB [H, W, 3], C-contiguous."""
        ...

    def peek(self, address: int) -> int:
        """Return one byte of the RAM; the address is 0 to 0x7FF."""
        ...

    def ram(self) -> Image:
        """Return a copy of the RAM, [2048]."""
        ...

    def save(self) -> object:
        """Return the state of the console, without the screen, for `load`."""
        ...

    def load(self, state: object) -> None:
        """Restore a state of the same backend and cartridge."""
        ...

    def close(self) -> None:
        """Release the emulator."""
        ...
