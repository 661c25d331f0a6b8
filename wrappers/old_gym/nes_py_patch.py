"""Patch nes-py below 9 for NumPy 2, on request."""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np
import numpy.typing as npt

RamArray = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
# Sizes of a ROM: (byte of the header with the count, KB per count).
_ROM_SIZES = {"prg_rom_size": (4, 16), "chr_rom_size": (5, 8)}


class RamView(RamArray):
    """A view of RAM bytes that returns single bytes as Python ints."""

    # With NumPy 2 arithmetic on a byte gives a byte: `ram[0x6D] * 256` raises and `ram[0x10] - 1`
    # may overflow. With Python ints it does not, and assigned values wrap to a byte, as with NumPy
    # 1. Slices are views of the same type.

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return int(found) if isinstance(found, np.integer) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value & 0xFF if isinstance(value, int) else value)


def patch_nes_py() -> None:
    """Patch the installed nes-py, below version 9, in this process, so that it works with NumPy 2.

    On Python 3.12 and below pip installs nes-py 8.2.1, since version 9 needs Python 3.13. It was
    written for NumPy 1. With NumPy 2 it cannot load a ROM (`OverflowError: Python integer 1024 out
    of bounds for uint8`), and games built on it, such as gym-super-mario-bros 7.4.0, fail in the
    same way when they compute with bytes of the RAM. Two things are patched: the sizes of a ROM are
    computed with Python ints, and the `ram` of envs that are built afterwards is a `RamView`.

    Call it before envs are built; a second call has no effect. The env still has the API of the old
    `gym`: pass it to `from_gym`.

    Raises:
        ImportError: nes-py, or one of its dependencies, is not installed.
        ValueError: nes-py 9 or newer is installed, which needs no patch.

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
            f"nes-py cannot be imported ({error}): expected nes-py 8 and its dependencies; "
            "reinstall it: pip install --force-reinstall 'nes-py<9'"
        ) from error
    for name, (byte, kilobytes) in _ROM_SIZES.items():
        setattr(rom, name, _rom_size(byte, kilobytes))
    if not isinstance(env.__dict__.get("_ram_buffer"), _PatchedRam):
        env._ram_buffer = _PatchedRam(env._ram_buffer)


def _check_version() -> None:
    # Imported here because it takes 10 ms.
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("nes-py")
    except PackageNotFoundError:
        raise ImportError(
            "nes-py is not installed: expected a version below 9, got none; on Python 3.13 and "
            "newer `pip install 'stepwell[nes-py]'` installs nes-py 9, which needs no patch"
        ) from None
    if int(found.partition(".")[0]) >= 9:
        raise ValueError(
            f"nes-py needs no patch: expected a version below 9, got {found}; omit patch_nes_py"
        )


def _rom_size(byte: int, kilobytes: int) -> property:
    def size(rom: Any) -> int:
        return kilobytes * int(rom.header[byte])

    return property(size)


class _PatchedRam:
    """Descriptor of an env's RAM method that wraps the result of the original in a `RamView`."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, env: object, kind: type | None = None) -> Any:
        if env is None:
            return self
        return lambda: cast("npt.NDArray[np.uint8]", self._original(env)).view(RamView)
