"""NES cartridges as Gymnasium envs: a ROM file, an emulator, and a RAM map."""

from typing import TYPE_CHECKING

from ...buffers.base.package import lazy_names

if TYPE_CHECKING:  # imported on first use
    from .cartridge import Cartridge
    from .emulators import installed_backends
    from .env import NesEnv
    from .ram_map.game import Game
    from .retro_env import from_retro
    from .snapshot import Snapshot
    from .vector import make_nes

__all__ = [
    "Cartridge",
    "Game",
    "NesEnv",
    "Snapshot",
    "from_retro",
    "installed_backends",
    "make_nes",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cartridge": ["Cartridge"],
            "emulators": ["installed_backends"],
            "env": ["NesEnv"],
            "ram_map.game": ["Game"],
            "retro_env": ["from_retro"],
            "snapshot": ["Snapshot"],
            "vector": ["make_nes"],
        },
    )
