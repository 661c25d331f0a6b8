"""Assembly of program, pictures and header into the game's files."""

import shutil
from pathlib import Path
from typing import Final

from demo_rom.assembler import assemble
from demo_rom.memory import RAM
from demo_rom.tiles import pattern_tables, screens

__all__ = ["build_rom", "write_demo"]

_HERE: Final = Path(__file__).parent
_PRG_START, _PRG_BYTES = 0xC000, 0x4000  # address of the only bank of mapper 0
_SCREENS: Final = 0xE000
_VECTORS: Final = {"nmi": 0xFFFA, "reset": 0xFFFC, "irq": 0xFFFE}  # addresses fixed by the CPU


def build_rom() -> bytes:
    """Build the game's iNES file: mapper 0, 16 KB of program, 8 KB of tiles, vertical mirroring.

    Returns:
        24,592 bytes, the same on every machine and Python.

    Example:
        >>> len(build_rom())
        24592
    """
    source = (_HERE / "game.s").read_text(encoding="utf-8")
    code, addresses = assemble(source, _PRG_START, {**RAM, "map": _SCREENS})
    prg = bytearray(_PRG_BYTES)
    parts = {_PRG_START: code, _SCREENS: screens()}
    parts |= {slot: addresses[name].to_bytes(2, "little") for name, slot in _VECTORS.items()}
    for address, part in parts.items():
        start = address - _PRG_START
        prg[start : start + len(part)] = part
    header = b"NES\x1a" + bytes([1, 1, 0x01, 0]) + bytes(8)
    return header + bytes(prg) + pattern_tables()


def write_demo(folder: str | Path) -> tuple[Path, Path]:
    """Write `game.nes` and its RAM map, the folder `game`, into a folder, which is created.

    Returns:
        The paths of the two.
    """
    folder = Path(folder)
    rom, game = folder / "game.nes", folder / "game"
    shutil.copytree(_HERE / "game", game, dirs_exist_ok=True)
    rom.write_bytes(build_rom())
    return rom, game
