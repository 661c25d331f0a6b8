"""A console that stable-retro emulates; several of one cartridge share its one emulator."""

from __future__ import annotations

import importlib
import os
import weakref
from typing import Any, ClassVar

import numpy as np

from stepwell.wrappers.nes.buttons import Button
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.console import PICTURE, RAM_BYTES, ClosedEmulator, Image

__all__ = ["RetroConsole"]

EDGE = 8  # pixels that its screens leave out on each side
# The order of its mask of buttons; the second one does nothing.
_ORDER = ("B", "", "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
_MASKS = tuple(
    np.array([bool(name) and bool(bits & Button[name]) for name in _ORDER], np.uint8)
    for bits in range(256)
)


class _Machine:
    """The one emulator that stable-retro allows in a process.

    Args:
        cartridge: What it plays.
        path: The file; it is read at once.
    """

    def __init__(self, cartridge: Cartridge, path: str) -> None:
        stable_retro: Any = importlib.import_module("stable_retro")

        self.sha256 = cartridge.sha256
        self.process = os.getpid()
        self.users: weakref.WeakSet[RetroConsole] = weakref.WeakSet()
        self.player: weakref.ref[RetroConsole] | None = None
        self.emulator: Any = stable_retro.RetroEmulator(path)
        self._data: Any = stable_retro.data.GameData()
        self.emulator.configure_data(self._data)
        self.emulator.step()  # where the other emulators' programs begin as well
        self.memory: Any = self._data.memory
        self.ram_starts = sorted(start for start in self.memory.blocks if start < RAM_BYTES)
        self.first: bytes = self.emulator.get_state()

    def let_go(self) -> None:
        """Free the emulator, whoever still knows this machine."""
        self.emulator = self.memory = self._data = ClosedEmulator()

    def swap_in(self, console: RetroConsole) -> None:
        """Let this console play on; the one that played keeps its state and its screen."""
        player = None if self.player is None else self.player()
        if player is console:
            return
        if player is not None:
            player.swapped_out(self.emulator)
        self.player = weakref.ref(console)
        self.emulator.set_state(console.state)


class RetroConsole:
    """A `Console` on stable-retro's FCEUmm.

    What stable-retro 1.0.1 does otherwise than one would expect, and is put right here: a process
    may hold one emulator, so that consoles of one cartridge take turns in it, each with its state;
    the picture is not part of the state; the RAM comes in a dict of copies.

    Args:
        cartridge: What is in the file.
        path: The file; it is read at once.
        version: Of stable-retro.

    Raises:
        RuntimeError: Consoles with another cartridge are open in this process.
    """

    name = "stable-retro"
    screen_shape = (PICTURE[0] - 2 * EDGE, PICTURE[1] - 2 * EDGE, 3)
    hidden = (EDGE, EDGE, EDGE, EDGE)
    _machine: ClassVar[_Machine | None] = None

    def __init__(self, cartridge: Cartridge, path: str, version: str) -> None:
        self.version = version
        machine = self._of_process(cartridge, path)
        machine.users.add(self)
        self._machine_here: Any = machine
        self.state = machine.first
        self._screen: Image = np.zeros(self.screen_shape, np.uint8)
        self._is_read = True  # the kept screen is the last frame's
        self._ram = b""  # as of the last frame; empty when it was not asked for

    @classmethod
    def _of_process(cls, cartridge: Cartridge, path: str) -> _Machine:
        machine = RetroConsole._machine
        if machine is not None and machine.process != os.getpid():
            machine.let_go()  # a fork brought the parent's along, with consoles that play there
        elif machine is not None:
            if machine.sha256 == cartridge.sha256:
                return machine
            if machine.users:
                raise RuntimeError(
                    f"stable-retro plays one cartridge at a time in a process: expected the envs "
                    f"of the other one to be closed, got {len(machine.users)} open; close them, or "
                    f"make the envs of {cartridge.name} in processes of their own (num_workers)"
                )
        RetroConsole._machine = machine = None  # the old emulator goes before the new one comes
        RetroConsole._machine = machine = _Machine(cartridge, path)
        return machine

    def _playing(self) -> _Machine:
        """The machine, in which it is this console's turn."""
        machine: _Machine = self._machine_here
        machine.swap_in(self)
        return machine

    def swapped_out(self, emulator: Any) -> None:
        """Keep what the emulator will forget."""
        self.state = emulator.get_state()
        if not self._is_read:
            self._screen, self._is_read = emulator.get_screen(), True

    def frame(self, buttons: int) -> None:
        """Play one frame with these buttons held."""
        emulator = self._playing().emulator
        emulator.set_button_mask(_MASKS[buttons], 0)
        emulator.step()
        self._is_read = False
        self._ram = b""

    def screen(self) -> Image:
        """The screen after the last frame."""
        if not self._is_read:
            self._screen, self._is_read = self._playing().emulator.get_screen(), True
        return self._screen.copy()

    def peek(self, address: int) -> int:
        """One byte of the RAM."""
        return (self._ram or self._read_ram())[address]

    def ram(self) -> Image:
        """The whole RAM."""
        return np.frombuffer(self._ram or self._read_ram(), np.uint8).copy()

    def _read_ram(self) -> bytes:
        """All of it at once, kept for the frame: a byte at a time costs more from the second on."""
        machine = self._playing()
        blocks = machine.memory.blocks
        self._ram = b"".join([blocks[start] for start in machine.ram_starts])
        return self._ram

    def save(self) -> bytes:
        """The state of the console."""
        return bytes(self._playing().emulator.get_state())

    def load(self, state: object) -> None:
        """Go back to a state."""
        machine = self._playing()
        expected = len(machine.first)
        if not isinstance(state, bytes) or len(state) != expected:
            got = f"{len(state)} bytes" if isinstance(state, bytes) else type(state).__name__
            raise ValueError(
                f"state: expected {expected} bytes that stable-retro saved, got {got}; a state "
                "goes with the backend and the cartridge that it was saved from"
            )
        machine.emulator.set_state(state)
        self._is_read = True  # the picture does not come back with the state
        self._ram = b""

    def close(self) -> None:
        """Let go of the emulator, which goes with its last console."""
        machine, self._machine_here = self._machine_here, ClosedEmulator()
        self._ram = b""
        if not isinstance(machine, _Machine):
            return
        machine.users.discard(self)
        if machine.player is not None and machine.player() is self:
            machine.player = None
        if not machine.users and RetroConsole._machine is machine:
            RetroConsole._machine = None
