"""NES cartridges as Gymnasium envs: the user's ROM, an emulator behind one protocol, a RAM map."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.wrappers.nes.cartridge import Cartridge
    from stepwell.wrappers.nes.consoles.backends import installed_backends
    from stepwell.wrappers.nes.env import NesEnv
    from stepwell.wrappers.nes.ram_map.game import Game
    from stepwell.wrappers.nes.retro_env import from_retro
    from stepwell.wrappers.nes.snapshot import Snapshot
    from stepwell.wrappers.nes.vector import make_nes

__all__ = [
    "Cartridge",
    "Game",
    "NesEnv",
    "Snapshot",
    "from_retro",
    "installed_backends",
    "make_nes",
]

_LATER = {
    "Cartridge": "cartridge",
    "Game": "ram_map.game",
    "NesEnv": "env",
    "Snapshot": "snapshot",
    "from_retro": "retro_env",
    "installed_backends": "consoles.backends",
    "make_nes": "vector",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
