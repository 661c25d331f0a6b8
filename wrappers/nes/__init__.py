"""NES cartridges as Gymnasium envs: a ROM file, an emulator, and a RAM map."""

from typing import TYPE_CHECKING

from ...buffers.base.package import lazy_names

if TYPE_CHECKING:  # imported on first use; `as`: for type checkers, too, they are public
    from .cartridge import Cartridge as Cartridge
    from .emulators import installed_backends as installed_backends
    from .env import NesEnv as NesEnv
    from .ram_map.game import Game as Game
    from .retro_env import from_retro as from_retro
    from .snapshot import Snapshot as Snapshot
    from .vector import make_nes as make_nes


if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    _HOMES = {
        "cartridge": ["Cartridge"],
        "emulators": ["installed_backends"],
        "env": ["NesEnv"],
        "ram_map.game": ["Game"],
        "retro_env": ["from_retro"],
        "snapshot": ["Snapshot"],
        "vector": ["make_nes"],
    }
    __all__ = sorted(name for names in _HOMES.values() for name in names)
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
