"""The sixteen bytes at the head of a ROM file: iNES and NES 2.0.

As described at https://www.nesdev.org/wiki/INES and https://www.nesdev.org/wiki/NES_2.0

    byte  iNES                                NES 2.0
    0-3   "NES" and 0x1A                      the same
    4, 5  16 KB banks of program, 8 KB        the same, low byte
          banks of tiles
    6     mapper low nibble; mirroring, battery (2), trainer (4), four screens (8)
    7     mapper high nibble; console         the same, and the mark of NES 2.0: bits 3, 2 are 1, 0
    8     (size of RAM)                       submapper, mapper bits 8-11
    9     bit 0: PAL                          high nibbles of the banks; 15: sizes by exponent
    12    unused, zero                        bits 0, 1: NTSC, PAL, both, Dendy
    14    unused, zero                        how many ROMs of other kinds follow
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

__all__ = ["HEADER_BYTES", "Header", "parse_header"]

HEADER_BYTES = 16
MAGIC = b"NES\x1a"
PRG_BANK, CHR_BANK = 0x4000, 0x2000
BATTERY, TRAINER, FOUR_SCREENS = 2, 4, 8  # bits of byte 6
# What else people have in a file that they take for a ROM: {its first bytes: what it is}.
LOOKS_LIKE = {
    b"PK": "a .zip file that is empty or broken",
    b"UNIF": "a UNIF image, another format for cartridges",
    b"FDS\x1a": "a disk of the Famicom Disk System",
    b"\x01*NINTENDO-HVC*": "a disk of the Famicom Disk System",
    b"NESM\x1a": "the music of a game (NSF)",
    b"7z\xbc\xaf": "a .7z file",
    b"Rar!": "a .rar file",
    b"\x1f\x8b": "a .gz file",
    b"<": "a web page",
    b"version https://git-lfs": "a placeholder of Git LFS",
}
CONSOLES = {1: "a Vs. System arcade machine", 2: "a PlayChoice-10 arcade machine"}
REGIONS = {1: "PAL", 3: "Dendy"}


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says.

    Args:
        kind: Which format it is in.
        mapper: Number of the board.
        submapper: Its variant; 0 in iNES, which has none.
        prg_bytes: Size of the program.
        chr_bytes: Size of the tiles.
        has_battery: Whether RAM is kept.
        has_four_screens: Whether the board has RAM for two screens more.
        region: What televisions the game is for.
        clean: The header without garbage in its unused bytes.
    """

    kind: Literal["iNES", "NES 2.0"]
    mapper: int
    submapper: int
    prg_bytes: int
    chr_bytes: int
    has_battery: bool
    has_four_screens: bool
    region: Literal["NTSC", "multi"]
    clean: bytes


def parse_header(data: bytes, name: str) -> Header:
    r"""Read the header of a ROM file, and compare it with the file's length.

    Args:
        data: The whole file.
        name: What messages call it.

    Raises:
        ValueError: It is no ROM file, is cut short, or asks for what no backend does right.

    Example:
        >>> parse_header(b"NES\x1a\2\0\x10" + bytes(9) + bytes(0x8000), "game.nes").mapper
        1
    """
    if not data.startswith(MAGIC):
        raise ValueError(
            f"{name} is no cartridge image: expected it to begin with 'NES' and 0x1A, got "
            f"{_likeness(data)}; give a .nes file"
        )
    if len(data) < HEADER_BYTES:
        _refuse_short(name, HEADER_BYTES, len(data), "for the header alone")
    clean = _clean(data[:HEADER_BYTES])
    is_new = clean[7] & 0x0C == 0x08
    _check_machine(clean, name, is_new)
    prg_banks, chr_banks = clean[4], clean[5]
    if is_new:
        prg_banks, chr_banks = _new_banks(clean, name)
    if prg_banks == 0:
        raise ValueError(
            f"{name} has no program: expected at least one bank of 16 KB, got 0; the file is "
            "damaged, take another dump of the cartridge"
        )
    header = Header(
        kind="NES 2.0" if is_new else "iNES",
        mapper=clean[6] >> 4 | clean[7] & 0xF0 | ((clean[8] & 0x0F) << 8 if is_new else 0),
        submapper=clean[8] >> 4 if is_new else 0,
        prg_bytes=prg_banks * PRG_BANK,
        chr_bytes=chr_banks * CHR_BANK,
        has_battery=bool(clean[6] & BATTERY),
        has_four_screens=bool(clean[6] & FOUR_SCREENS),
        region="multi" if is_new and clean[12] & 3 == 2 else "NTSC",
        clean=clean,
    )
    expected = HEADER_BYTES + header.prg_bytes + header.chr_bytes
    if len(data) < expected:
        sizes = f"for {prg_banks} x 16 KB of program and {chr_banks} x 8 KB of tiles"
        _refuse_short(name, expected, len(data), sizes)
    return header


def _clean(header: bytes) -> bytes:
    """The header with zeros where iNES has no meaning for what is there.

    Bytes 12 to 15 must be zero. If they are not, an old dumping tool has written its name over
    the bytes from 7 on, and the high nibble of the mapper in byte 7 means nothing either; so too
    if bits 2 and 3 of byte 7, whose only meaning is NES 2.0, are set otherwise.
    """
    mark = header[7] & 0x0C
    if mark == 0x08:
        return header
    if mark or any(header[12:]):
        return header[:7] + bytes(9)
    return header[:11] + bytes(5)


def _check_machine(header: bytes, name: str, is_new: bool) -> None:
    """Refuse what is not for a 60 Hz console with two pads and nothing else."""
    console = header[7] & 3
    if console:
        machine = "a machine of another kind"
        if console in CONSOLES:
            machine = CONSOLES[console]
        raise ValueError(
            f"{name} is not for an NES: expected console type 0 in its header, got {console} "
            f"({machine}); no backend plays it right"
        )
    region = REGIONS.get(header[12] & 3) if is_new else "PAL" if header[9] & 1 else None
    if region:
        raise ValueError(
            f"{name} is made for another television standard: expected an NTSC game, got {region}; "
            "it would run at the wrong speed, take the NTSC release"
        )
    if header[6] & TRAINER:
        raise ValueError(
            f"{name} has a trainer: expected no 512 bytes of patches before the program, got "
            "them; not every backend runs them, take an unpatched dump"
        )
    if is_new and header[14] & 3:
        raise ValueError(
            f"{name} has ROMs of other kinds: expected program and tiles alone, got "
            f"{header[14] & 3} more; no backend plays it right"
        )


def _new_banks(header: bytes, name: str) -> tuple[int, int]:
    """(banks of program, banks of tiles) of a NES 2.0 header."""
    high_prg, high_chr = header[9] & 0x0F, header[9] >> 4
    if 0x0F in (high_prg, high_chr):
        raise ValueError(
            f"{name} gives its sizes by an exponent: expected whole banks of 16 and 8 KB, got "
            f"{header[9]:#04x} in byte 9 of the NES 2.0 header; no backend reads it right"
        )
    return header[4] | high_prg << 8, header[5] | high_chr << 8


def _likeness(data: bytes) -> str:
    """What a file without the mark of a cartridge is, as far as its first bytes tell."""
    if not data:
        return "an empty file"
    for start, what in LOOKS_LIKE.items():
        if data.startswith(start):
            return what
    head = data[:HEADER_BYTES]
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return f"a text ({head.decode('ascii')!r})"
    return f"the bytes {head[:4].hex(' ')}"


def _refuse_short(name: str, expected: int, got: int, sizes: str) -> NoReturn:
    raise ValueError(
        f"{name} is cut short: expected at least {expected:,} bytes {sizes}, got {got:,}; take a "
        "whole dump of the cartridge"
    )
