"""The emulators of a console: the protocol, the installed ones, and an adapter for each."""

from __future__ import annotations

import importlib
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

import numpy as np

from ...buffers.base.optional_libraries import installed_version, version_numbers
from ..pixels import rgb_of_bgrx
from .buttons import Button
from .cartridge import PICTURE, RAM_BYTES, Cartridge, Image


class ClosedEmulator:
    """Replaces a closed emulator: every call raises an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the console is closed: expected an open one; open a new one")

    __getitem__ = __getattr__


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

    def screen(self) -> Image:
        """Return a copy of the screen after the last frame: RGB [H, W, 3], C-contiguous."""

    def peek(self, address: int) -> int:
        """Return one byte of the RAM; the address is 0 to 0x7FF."""

    def ram(self) -> Image:
        """Return a copy of the RAM, [2048]."""

    def save(self) -> object:
        """Return the state of the console, without the screen, for `load`."""

    def load(self, state: object) -> None:
        """Restore a state of the same backend and cartridge."""

    def close(self) -> None:
        """Release the emulator."""


def _checked_state(backend: str, state: object, count: int) -> bytes:
    if not isinstance(state, bytes) or len(state) != count:
        got = f"{len(state)} bytes" if isinstance(state, bytes) else type(state).__name__
        raise ValueError(
            f"state: expected {count} bytes that {backend} saved, got {got}; a state goes with the "
            "backend and the cartridge that it was saved from"
        )
    return state


class _CynesConsole:
    """A `Console` on cynes, whose bits of the buttons are those of `Button`."""

    # It corrects cynes 0.1.2: its first step may play no frame, since a flag of the emulator is not
    # initialized; `load` accepts arrays of any length; the screen is a view of the emulator's
    # memory.

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
        """Step until a frame was played, which changes more than one byte of the state."""
        for _ in range(10):
            before = self._nes.save()
            view: Image = self._nes.step()
            if np.count_nonzero(before != self._nes.save()) > 1:
                return view
        raise RuntimeError(
            f"cynes plays no frame of {self._title}: expected its state to change within 10 "
            "steps, got no change; the program of the cartridge may be damaged"
        )

    def frame(self, buttons: int) -> None:
        nes = self._nes
        nes.controller = buttons
        nes.step()
        if nes.has_crashed:
            raise RuntimeError(
                f"{self._title} has crashed: expected an instruction of the console's processor, "
                "got none; reset the env, and check the dump of the cartridge"
            )

    def screen(self) -> Image:
        return self._view.copy()

    def peek(self, address: int) -> int:
        return int(self._nes[address])

    def ram(self) -> Image:
        nes = self._nes
        return np.fromiter((nes[address] for address in range(RAM_BYTES)), np.uint8, RAM_BYTES)

    def save(self) -> bytes:
        return bytes(self._nes.save().tobytes())

    def load(self, state: object) -> None:
        saved = _checked_state("cynes", state, self._state_bytes)
        self._nes.load(np.frombuffer(saved, np.uint8).copy())  # a writeable array

    def close(self) -> None:
        self._nes = ClosedEmulator()


# nes-py has the bits of the buttons in reverse order: A is the lowest, RIGHT the highest.
_MIRRORED = tuple(int(f"{bits:08b}"[::-1], 2) for bits in range(256))


class _NesPyConsole:
    # It corrects nes-py 9.0.1: screens and RAM are views of the emulator's memory, screens with
    # negative strides; an emulator must be reset before its first frame. Its states cannot be
    # pickled or written to a file.

    name = "nes-py"
    screen_shape = (*PICTURE, 3)
    hidden = (0, 0, 0, 0)

    def __init__(self, cartridge: Cartridge, path: str, version: str) -> None:
        nes_py: Any = importlib.import_module("nes_py")

        self.version = version
        self._title = cartridge.name
        self._env: Any = nes_py.NESEnv(path)
        # Its first frame ends where the second frame of the others does, so none is played here.
        self._env.reset()
        self._ram: Any = memoryview(self._env.ram)
        self._pixels = _bgrx_view(self._env.screen)
        self._state_type = type(self._env.dump_state())

    def frame(self, buttons: int) -> None:
        self._env._frame_advance(_MIRRORED[buttons])

    def screen(self) -> Image:
        if self._pixels is None:
            image: Image = self._env.observation("rgb_array_contiguous")
            return image
        # Half the time of nes-py's own loop over the pixels.
        return rgb_of_bgrx(self._pixels)

    def peek(self, address: int) -> int:
        return int(self._ram[address])

    def ram(self) -> Image:
        return np.array(self._ram, np.uint8)

    def save(self) -> object:
        state: object = self._env.dump_state()
        return state

    def load(self, state: object) -> None:
        if not isinstance(state, self._state_type):
            raise ValueError(
                f"state: expected one that nes-py saved in this process, got "
                f"{type(state).__name__}; a state goes with the backend and the cartridge that it "
                "was saved from"
            )
        self._env.load_state(state)

    def close(self) -> None:
        self._env = self._ram = ClosedEmulator()
        self._pixels = None


def _bgrx_view(view: Image) -> Image | None:
    """Return nes-py's screen memory [H, W, 4], blue first; None if the layout differs."""
    rows, columns = PICTURE
    if view.shape != (rows, columns, 3) or view.strides != (4 * columns, 4, -1):
        return None
    blue_first = view[:, :, ::-1]
    return np.lib.stride_tricks.as_strided(blue_first, (rows, columns, 4), (4 * columns, 4, 1))


EDGE = 8  # pixels that its screens omit on each side
# Order of its button mask; the second bit has no effect.
_ORDER = ("B", "", "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
_MASKS = tuple(
    np.array([bool(name) and bool(bits & Button[name]) for name in _ORDER], np.uint8)
    for bits in range(256)
)


class _SharedEmulator:
    """The one emulator that stable-retro allows in a process."""

    def __init__(self, cartridge: Cartridge, path: str) -> None:
        stable_retro: Any = importlib.import_module("stable_retro")

        self.sha256 = cartridge.sha256
        self.process = os.getpid()
        self.users: weakref.WeakSet[_RetroConsole] = weakref.WeakSet()
        self.player: weakref.ref[_RetroConsole] | None = None
        self.emulator: Any = stable_retro.RetroEmulator(path)
        self._data: Any = stable_retro.data.GameData()
        self.emulator.configure_data(self._data)
        self.emulator.step()  # the first frame of the program, as on the other emulators
        self.memory: Any = self._data.memory
        self.ram_starts = sorted(start for start in self.memory.blocks if start < RAM_BYTES)
        self.first: bytes = self.emulator.get_state()

    def release(self) -> None:
        """Free the emulator, even if consoles still refer to this machine."""
        self.emulator = self.memory = self._data = ClosedEmulator()

    def swap_in(self, console: _RetroConsole) -> None:
        """Give the emulator to a console, after saving state and screen of the previous one."""
        player = None if self.player is None else self.player()
        if player is console:
            return
        if player is not None:
            player.swapped_out(self.emulator)
        self.player = weakref.ref(console)
        self.emulator.set_state(console.state)


class _RetroConsole:
    # It corrects stable-retro 1.0.1: a process may hold one emulator, so consoles of one cartridge
    # share it, each with its own state (another cartridge is a RuntimeError); the screen is not
    # part of the state; the RAM is a dict of copies.

    name = "stable-retro"
    screen_shape = (PICTURE[0] - 2 * EDGE, PICTURE[1] - 2 * EDGE, 3)
    hidden = (EDGE, EDGE, EDGE, EDGE)
    _shared: ClassVar[_SharedEmulator | None] = None

    def __init__(self, cartridge: Cartridge, path: str, version: str) -> None:
        self.version = version
        machine = self._of_process(cartridge, path)
        machine.users.add(self)
        self._emulator_here: Any = machine
        self.state = machine.first
        self._screen: Image = np.zeros(self.screen_shape, np.uint8)
        self._is_read = True  # the cached screen is that of the last frame
        self._ram = b""  # of the last frame; empty if not read yet

    @classmethod
    def _of_process(cls, cartridge: Cartridge, path: str) -> _SharedEmulator:
        machine = _RetroConsole._shared
        if machine is not None and machine.process != os.getpid():
            machine.release()  # the parent's, inherited by a fork
        elif machine is not None:
            if machine.sha256 == cartridge.sha256:
                return machine
            if machine.users:
                raise RuntimeError(
                    f"stable-retro plays one cartridge at a time in a process: expected the envs "
                    f"of the other one to be closed, got {len(machine.users)} open; close them, or "
                    f"make the envs of {cartridge.name} in worker processes (num_workers)"
                )
        _RetroConsole._shared = machine = None  # free the old emulator first
        _RetroConsole._shared = machine = _SharedEmulator(cartridge, path)
        return machine

    def _playing(self) -> _SharedEmulator:
        """Return the machine after giving its emulator to this console."""
        machine: _SharedEmulator = self._emulator_here
        machine.swap_in(self)
        return machine

    def swapped_out(self, emulator: Any) -> None:
        """Save state and screen before another console uses the emulator."""
        self.state = emulator.get_state()
        if not self._is_read:
            self._screen, self._is_read = emulator.get_screen(), True

    def frame(self, buttons: int) -> None:
        emulator = self._playing().emulator
        emulator.set_button_mask(_MASKS[buttons], 0)
        emulator.step()
        self._is_read = False
        self._ram = b""

    def screen(self) -> Image:
        if not self._is_read:
            self._screen, self._is_read = self._playing().emulator.get_screen(), True
        return self._screen.copy()

    def peek(self, address: int) -> int:
        return (self._ram or self._read_ram())[address]

    def ram(self) -> Image:
        return np.frombuffer(self._ram or self._read_ram(), np.uint8).copy()

    def _read_ram(self) -> bytes:
        """Read the whole RAM and cache it for the frame; reading bytes separately is slower."""
        machine = self._playing()
        blocks = machine.memory.blocks
        self._ram = b"".join([blocks[start] for start in machine.ram_starts])
        return self._ram

    def save(self) -> bytes:
        return bytes(self._playing().emulator.get_state())

    def load(self, state: object) -> None:
        machine = self._playing()
        machine.emulator.set_state(_checked_state("stable-retro", state, len(machine.first)))
        self._is_read = True  # the state does not contain the screen
        self._ram = b""

    def close(self) -> None:
        machine, self._emulator_here = self._emulator_here, ClosedEmulator()
        self._ram = b""
        if not isinstance(machine, _SharedEmulator):
            return
        machine.users.discard(self)
        if machine.player is not None and machine.player() is self:
            machine.player = None
        if not machine.users and _RetroConsole._shared is machine:
            _RetroConsole._shared = None


NesBackend: TypeAlias = Literal["cynes", "nes-py", "stable-retro"]


@dataclass(frozen=True, slots=True)
class _Emulator:
    install: str  # the command, for error messages
    least: tuple[int, ...]  # version of the package, which has the name of the backend
    mappers: frozenset[int]  # supported cartridge boards
    console: Callable[[Cartridge, str, str], Console]


# It accepts these without an error and shows a constant screen; found by trying all 256.
_UNKNOWN_TO_RETRO = {
    20, 28, 29, 31, 39, 54, 55, 56, 63, 81, 84, 98, 100, 102, 109, 110, 111, 122, 124, 126, 127,
    128, 129, 130, 131, 135, 161, 169, 174, 179, 182, 218, 223, 224, 236, 237, 239, 247, 248, 251,
    255,
}  # fmt: skip
BACKENDS: dict[NesBackend, _Emulator] = {
    "cynes": _Emulator(
        install="pip install 'stepwell[nes]'",
        least=(0, 1, 2),
        mappers=frozenset({0, 1, 2, 3, 4, 7, 9, 10, 66, 71}),
        console=_CynesConsole,
    ),
    "nes-py": _Emulator(
        install="pip install 'stepwell[nes-py]' (Python 3.13 or newer; not with stable-retro)",
        least=(9, 0, 1),
        mappers=frozenset({0, 1, 2, 3, 4, 5, 7, 9, 69}),
        console=_NesPyConsole,
    ),
    "stable-retro": _Emulator(
        install="pip install 'stepwell[retro]' (Linux or macOS; not with nes-py)",
        least=(1, 0, 1),
        mappers=frozenset(range(256)) - _UNKNOWN_TO_RETRO,
        console=_RetroConsole,
    ),
}


def installed_backends() -> dict[NesBackend, str]:
    """Return the backends that can be used, each with the version of its package.

    Example:
        >>> "cynes" in installed_backends()
        True
    """
    versions = {name: installed_version(name) or "" for name in BACKENDS}
    return {k: v for k, v in versions.items() if version_numbers(v) >= BACKENDS[k].least}


def missing_backends() -> dict[NesBackend, str]:
    """Return the backends that cannot be used, each with the command that installs it."""
    installed = installed_backends()
    return {name: one.install for name, one in BACKENDS.items() if name not in installed}


def open_console(cartridge: Cartridge, backend: NesBackend) -> Console:
    """Start a console with a cartridge, on "cynes", "nes-py" or "stable-retro"."""
    # It is at the start of the game's program: after the number of frames of the emulator from
    # which the same buttons give the same RAM on every backend.
    if backend not in get_args(NesBackend):
        raise ValueError(
            f"backend: expected {', '.join(map(repr, BACKENDS))}, got {backend!r}; cynes is the "
            "one that installs everywhere"
        )
    emulator, found = BACKENDS[backend], installed_version(backend)
    if found is None:
        raise ImportError(
            f"backend {backend!r} needs the package {backend}, which is not installed: "
            f"{emulator.install}"
        )
    if version_numbers(found) < emulator.least:
        least = ".".join(map(str, emulator.least))
        raise ImportError(
            f"backend {backend!r}: expected {backend} {least} or newer, got {found}; "
            f"{emulator.install}, or pass the old env to stepwell.wrappers.from_gym"
        )
    cartridge.check_playable(backend, emulator.mappers)
    # The emulators only accept a path. They read the file when they open it.
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        path = os.path.join(folder, "cartridge.nes")
        with open(path, "wb") as file:
            file.write(cartridge.cleaned())
        return emulator.console(cartridge, path, found)
