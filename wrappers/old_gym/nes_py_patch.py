"""Make the old nes-py, below 9, work with numpy 2; only when asked to."""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np
import numpy.typing as npt

RamArray = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
# Sizes of a ROM in KB: byte of its header, and KB for each count.
_ROM_SIZES = {"prg_rom_size": (4, 16), "chr_rom_size": (5, 8)}


class RamView(RamArray):
    """A live view of RAM bytes whose single bytes read as Python ints.

    With numpy 2 a byte stays a byte in arithmetic: `ram[0x6D] * 256` is an error and `ram[0x10]
    - 1` may wrap. As an int it counts on, and what is written wraps to a byte, as it did with
    numpy 1. Slices are views of the same kind.

    Example:
        >>> ram = np.zeros(4, np.uint8)
        >>> view = ram.view(RamView)
        >>> view[1] = -1
        >>> view[1] * 256 + view[0], ram
        (65280, array([  0, 255,   0,   0], dtype=uint8))
    """

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return int(found) if isinstance(found, np.integer) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value & 0xFF if isinstance(value, int) else value)


def patch_nes_py() -> None:
    """Repair the installed nes-py, below 9, in this process, so that it works with numpy 2.

    On Python 3.12 and below pip installs nes-py 8.2.1 without a word, since 9 needs Python 3.13.
    It was written for numpy 1. With numpy 2 it loads no ROM at all (`OverflowError: Python integer
    1024 out of bounds for uint8`), and games built on it, gym-super-mario-bros 7.4.0 among them,
    fail the same way as they compute with bytes of the RAM. Two things are replaced: the sizes of a
    ROM are counted in Python ints, and the `ram` of an env built from now on is a `RamView`.

    Call it before envs are built; a second call changes nothing. The env is still one of the old
    `gym`: give it to `from_gym`.

    Raises:
        ImportError: nes-py, or something that it needs, is not there.
        ValueError: It is nes-py 9 or newer, which needs no mending.

    Example:
        >>> patch_nes_py()  # doctest: +SKIP
        >>> env = from_gym(nes_py.NESEnv("game.nes"))  # doctest: +SKIP
    """
    _check_version()
    try:
        rom = importlib.import_module("nes_py._rom").ROM
        env = importlib.import_module("nes_py.nes_env").NESEnv
    except ImportError as error:
        raise ImportError(
            f"nes-py cannot be imported ({error}): expected nes-py 8 and what it needs, got less; "
            "reinstall it: pip install --force-reinstall 'nes-py<9'"
        ) from error
    for name, (byte, kilobytes) in _ROM_SIZES.items():
        setattr(rom, name, _rom_size(byte, kilobytes))
    if not isinstance(env.__dict__.get("_ram_buffer"), _MendedRam):
        env._ram_buffer = _MendedRam(env._ram_buffer)


def _check_version() -> None:
    # Loads in some 10 ms, which `import stepwell` need not take.
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("nes-py")
    except PackageNotFoundError:
        raise ImportError(
            "nes-py is not installed: expected one below 9 to mend, got none; on Python 3.13 and "
            "newer `pip install 'stepwell[nes-py]'` brings nes-py 9, which needs no mending"
        ) from None
    if int(found.partition(".")[0]) >= 9:
        raise ValueError(
            f"nes-py needs no mending: expected one below 9, got {found}; leave patch_nes_py out"
        )


def _rom_size(byte: int, kilobytes: int) -> property:
    def size(rom: Any) -> int:
        return kilobytes * int(rom.header[byte])

    return property(size)


class _MendedRam:
    """The method that makes an env's view of the RAM, by way of the one that was there."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, env: object, kind: type | None = None) -> Any:
        if env is None:
            return self
        return lambda: cast("npt.NDArray[np.uint8]", self._original(env)).view(RamView)
