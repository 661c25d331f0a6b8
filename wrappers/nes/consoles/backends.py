"""The emulators that a console may be played with: which there are, and how each is opened."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.console import Console

__all__ = [
    "BACKENDS",
    "NesBackend",
    "check_backend",
    "how_to_install",
    "installed_backends",
    "missing_backends",
    "open_console",
]

NesBackend: TypeAlias = Literal["cynes", "nes-py", "stable-retro"]


@dataclass(frozen=True, slots=True)
class _Emulator:
    """Facts about a package.

    Args:
        package: Its name for pip, and for its version.
        extra: Of Stepwell's.
        needs: What it needs besides.
        least: The first version that works here.
        mappers: The cartridge boards that it knows.
        opener: "module:class" of Stepwell's that speaks to it.
    """

    package: str
    extra: str
    needs: str
    least: tuple[int, ...]
    mappers: frozenset[int]
    opener: str


_ROOM = "stepwell.wrappers.nes.consoles"
# It takes these without a word and shows one dead screen for ever; found by trying all 256.
_UNKNOWN_TO_RETRO = {
    20, 28, 29, 31, 39, 54, 55, 56, 63, 81, 84, 98, 100, 102, 109, 110, 111, 122, 124, 126, 127,
    128, 129, 130, 131, 135, 161, 169, 174, 179, 182, 218, 223, 224, 236, 237, 239, 247, 248, 251,
    255,
}  # fmt: skip
BACKENDS: dict[NesBackend, _Emulator] = {
    "cynes": _Emulator(
        package="cynes",
        extra="nes",
        needs="",
        least=(0, 1, 2),
        mappers=frozenset({0, 1, 2, 3, 4, 7, 9, 10, 66, 71}),
        opener=f"{_ROOM}.cynes_console:CynesConsole",
    ),
    "nes-py": _Emulator(
        package="nes-py",
        extra="nes-py",
        needs="Python 3.13 or newer; not beside stable-retro",
        least=(9, 0, 1),
        mappers=frozenset({0, 1, 2, 3, 4, 5, 7, 9, 69}),
        opener=f"{_ROOM}.nes_py_console:NesPyConsole",
    ),
    "stable-retro": _Emulator(
        package="stable-retro",
        extra="retro",
        needs="Linux or macOS; not beside nes-py",
        least=(1, 0, 1),
        mappers=frozenset(range(256)) - _UNKNOWN_TO_RETRO,
        opener=f"{_ROOM}.retro_console:RetroConsole",
    ),
}


def installed_backends() -> dict[NesBackend, str]:
    """The backends that can be used here, each with the version of its package.

    Example:
        >>> "cynes" in installed_backends()
        True
    """
    found: dict[NesBackend, str] = {}
    for name, emulator in BACKENDS.items():
        version = _version(emulator.package)
        if version is not None and _numbers(version) >= emulator.least:
            found[name] = version
    return found


def how_to_install(backend: NesBackend) -> str:
    """What to type for a backend, in the words of an error message.

    Example:
        >>> how_to_install("cynes")
        "pip install 'stepwell[nes]'"
    """
    emulator = BACKENDS[backend]
    needs = f" ({emulator.needs})" if emulator.needs else ""
    return f"pip install 'stepwell[{emulator.extra}]'{needs}"


def check_backend(backend: NesBackend) -> None:
    """See that a backend is there, without loading it.

    Raises:
        ValueError: There is no such backend.
        ImportError: Its package is not installed, or is too old.
    """
    if backend not in get_args(NesBackend):
        raise ValueError(
            f"backend: expected {', '.join(map(repr, BACKENDS))}, got {backend!r}; cynes is the "
            "one that installs everywhere"
        )
    emulator = BACKENDS[backend]
    found = _version(emulator.package)
    if found is None:
        raise ImportError(
            f"backend {backend!r} needs the package {emulator.package}, which is not installed: "
            f"{how_to_install(backend)}"
        )
    if _numbers(found) < emulator.least:
        least = ".".join(map(str, emulator.least))
        raise ImportError(
            f"backend {backend!r}: expected {emulator.package} {least} or newer, got {found}; "
            f"{how_to_install(backend)}, or hand the old env that you have to "
            "stepwell.wrappers.from_gym"
        )


def missing_backends() -> dict[NesBackend, str]:
    """The backends that cannot be used here, each with what to install.

    Example:
        >>> "cynes" in missing_backends()
        False
    """
    return {name: how_to_install(name) for name in BACKENDS if name not in installed_backends()}


def open_console(cartridge: Cartridge, backend: NesBackend) -> Console:
    """Switch a console on with a cartridge in it.

    It stands where the game's program begins: after as many frames of the emulator as it takes for
    the same buttons to give the same RAM on every backend.

    Args:
        cartridge: What to play.
        backend: "cynes", "nes-py" or "stable-retro".

    Raises:
        ValueError: There is no such backend, or it does not know the cartridge's board.
        ImportError: Its package is not installed, or is too old.

    Example:
        >>> console = open_console(Cartridge.read("game.nes"), "cynes")
        >>> console.frame(0)
        >>> console.screen().shape, console.peek(0x10)
        ((240, 256, 3), 0)
    """
    check_backend(backend)
    cartridge.check_playable(backend, BACKENDS[backend].mappers)
    module, _, name = BACKENDS[backend].opener.partition(":")
    opener = getattr(importlib.import_module(module), name)
    make = cast("Callable[[Cartridge, str, str], Console]", opener)
    # All of the emulators take nothing but a path. The file is read when they open it.
    with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
        path = os.path.join(folder, "cartridge.nes")
        with open(path, "wb") as file:
            file.write(cartridge.groomed())
        return make(cartridge, path, _version(BACKENDS[backend].package) or "")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        parts.append(int(part))
    return tuple(parts)
