"""NES cartridges as Gymnasium envs: a ROM file, an emulator, and a RAM map."""

from typing import TYPE_CHECKING

from stepwell import lazy_names

if TYPE_CHECKING:  # imported on first use
    from stepwell.wrappers.nes.cartridge import Cartridge
    from stepwell.wrappers.nes.emulators import installed_backends
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
