"""The demonstration's cartridge: the same bytes everywhere, and a RAM map that fits it."""

from __future__ import annotations

import doctest
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import demo_rom.assembler
import demo_rom.rom
from demo_rom import RAM, build_rom, write_demo
from demo_rom.assembler import assemble
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.ram_map.game import Game
from support.source_tree import CHECKOUT

SHA256 = "ecd0b80eb430b597f7f7ab7db875b39990393ce6d8d99725d90fbecf74eb48b9"


def test_the_bytes_of_the_cartridge_do_not_change() -> None:
    rom = build_rom()
    assert len(rom) == 24_592
    assert hashlib.sha256(rom).hexdigest() == SHA256


def test_it_is_a_plain_cartridge() -> None:
    cartridge = Cartridge.read(build_rom())
    assert (cartridge.mapper, cartridge.prg_bytes, cartridge.chr_bytes) == (0, 0x4000, 0x2000)
    assert cartridge.cleaned() == cartridge.data


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
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(tmp_path / "here")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Cartridge.read(tmp_path / "here" / "game.nes").sha256 == SHA256
    assert f"stepwell collect {tmp_path / 'here' / 'game.nes'} --game" in run.stdout


def test_the_examples_in_its_docstrings_are_true() -> None:
    assert doctest.testmod(demo_rom.rom).failed == 0


# Each addressing mode once, with the bytes that the processor's manual gives.
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("LDA #$3F", "a9 3f"),
        ("LDA #10", "a9 0a"),
        ("LDA here", "a5 40"),
        ("LDA here+1", "a5 41"),
        ("STA here,X", "95 40"),
        ("LDA far", "ad 34 12"),
        ("STA far,X", "9d 34 12"),
        ("LDA far,Y", "b9 34 12"),
        ("LDA (here),Y", "b1 40"),
        ("LDA #<far", "a9 34"),
        ("LDA #>far", "a9 12"),
        ("LSR A", "4a"),
        ("RTS", "60"),
        ("x: BNE x", "d0 fe"),
        ("JMP x\nx: RTI", "4c 03 80 40"),
        ("BEQ x\nNO: .byte 1,$FF\nx: CLC ; done", "f0 02 01 ff 18"),
        ("; nothing", ""),
    ],
)
def test_the_assembler_translates(line: str, code: str) -> None:
    assert assemble(line, 0x8000, {"here": 0x40, "far": 0x1234})[0] == bytes.fromhex(code)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("LDA nowhere", "nowhere"),
        ("MUL #1", "MUL #1"),
        ("STA #1", "STA #1"),
        ("x: .byte 0\n" + "NO: .byte 0\n" * 130 + "BNE x", "BNE x"),
    ],
)
def test_the_assembler_refuses(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assemble(line, 0x8000, {})
