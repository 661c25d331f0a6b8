"""A console that cynes emulates."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.console import PICTURE, RAM_BYTES, ClosedEmulator, Image

__all__ = ["CynesConsole"]


class CynesConsole:
    """A `Console` on cynes; its bits of the buttons are `Button`'s.

    What cynes 0.1.2 does otherwise than one would expect, and is put right here: its first step may
    play no frame at all, since a flag of the emulator starts with whatever was in memory; `load`
    takes arrays of any length; screens are one view into the emulator that changes under the
    reader's hands.

    Args:
        cartridge: What is in the file, for messages.
        path: The file; it is read at once.
        version: Of cynes.
    """

    name = "cynes"
    screen_shape = (*PICTURE, 3)
    hidden = (0, 0, 0, 0)

    def __init__(self, cartridge: Cartridge, path: str, version: str) -> None:
        cynes: Any = importlib.import_module("cynes")

        self.version = version
        self._title = cartridge.name
        self._nes: Any = cynes.NES(path)
        self._view: Image = self._first_frame()
        self._state_bytes = len(self.save())

    def _first_frame(self) -> Image:
        """Step until a frame has really been played: then more than one byte has changed."""
        for _ in range(10):
            before = self._nes.save()
            view: Image = self._nes.step()
            if np.count_nonzero(before != self._nes.save()) > 1:
                return view
        raise RuntimeError(
            f"cynes plays no frame of {self._title}: expected its state to change within 10 "
            "steps, got none; the cartridge's program may be damaged"
        )

    def frame(self, buttons: int) -> None:
        """Play one frame with these buttons held."""
        nes = self._nes
        nes.controller = buttons
        nes.step()
        if nes.has_crashed:
            raise RuntimeError(
                f"{self._title} has crashed: expected an instruction of the console's processor, "
                "got none; reset the env, and look whether the dump is a good one"
            )

    def screen(self) -> Image:
        """The screen after the last frame."""
        return self._view.copy()

    def peek(self, address: int) -> int:
        """One byte of the RAM."""
        return int(self._nes[address])

    def ram(self) -> Image:
        """The whole RAM."""
        nes = self._nes
        return np.fromiter((nes[address] for address in range(RAM_BYTES)), np.uint8, RAM_BYTES)

    def save(self) -> bytes:
        """The state of the console."""
        return bytes(self._nes.save().tobytes())

    def load(self, state: object) -> None:
        """Go back to a state."""
        if not isinstance(state, bytes) or len(state) != self._state_bytes:
            got = f"{len(state)} bytes" if isinstance(state, bytes) else type(state).__name__
            raise ValueError(
                f"state: expected {self._state_bytes} bytes that cynes saved, got {got}; a state "
                "goes with the backend and the cartridge that it was saved from"
            )
        self._nes.load(np.frombuffer(state, np.uint8).copy())  # it wants a writeable one

    def close(self) -> None:
        """Let go of the emulator."""
        self._nes = ClosedEmulator()
