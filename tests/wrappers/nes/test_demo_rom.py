"""The demonstration's cartridge: the same bytes everywhere, and a RAM map that fits it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from demo_rom import RAM, build_rom, write_demo
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.ram_map.game import Game
from support.programs import run_python
from support.source_tree import CHECKOUT

SHA256 = "ecd0b80eb430b597f7f7ab7db875b39990393ce6d8d99725d90fbecf74eb48b9"


def test_the_bytes_of_the_cartridge_do_not_change() -> None:
    rom = build_rom()
    assert len(rom) == 24_592
    assert hashlib.sha256(rom).hexdigest() == SHA256


def test_its_map_is_of_this_cartridge_and_names_its_variables_as_the_program_does(
    tmp_path: Path,
) -> None:
    rom, ram_map = write_demo(tmp_path / "a" / "b")
    game = Game.load(ram_map)
    game.check_cartridge(Cartridge.read(rom))
    first_byte = {"frame": "frame_lo", "score": "score_tens", "world_x": "world_x_lo"}
    for name, variable in game.variables.items():
        assert variable.address == RAM[first_byte.get(name, name)], name


def test_the_script_writes_the_files_and_says_what_to_do_next(tmp_path: Path) -> None:
    script = CHECKOUT / "examples" / "make_demo_rom.py"
    run = run_python(script, tmp_path / "here")
    assert Cartridge.read(tmp_path / "here" / "game.nes").sha256 == SHA256
    assert f"stepwell collect {tmp_path / 'here' / 'game.nes'} --game" in run.stdout
