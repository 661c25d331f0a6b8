"""ROM files: iNES and NES 2.0 headers, checked before an emulator loads them."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NoReturn

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
PICTURE = (240, 256)  # rows and columns of a console's screen
RAM_BYTES = 0x800

LARGEST = 16 * 2**20  # bytes; ten times the largest cartridges ever made
# Boards whose submappers 1 and 2 only describe bus conflicts: their games also run on emulators
# without submappers.
_BUS_CONFLICT_MAPPERS = frozenset({2, 3, 7})
_HONOURS_SUBMAPPERS = "stable-retro"
# It ignores four screens in the header, so a game would scroll into garbage.
_WITHOUT_FOUR_SCREENS = "cynes"


@dataclass(frozen=True, slots=True)
class Cartridge:
    r"""A ROM file with a valid header.

    Emulators treat an invalid file differently: one crashes, another shows a blank screen, a third
    plays it at the wrong speed. So files are checked here, equally for all of them.

    Args:
        name: Name of the file, without folders; "bytes" for bytes.
        data: Content of the file.
        sha256: SHA-256 of `data`, in hexadecimal.
        mapper: Number of the cartridge's board.
        submapper: Variant of the board; 0 if the header has none.
        prg_bytes: Size of the program.
        chr_bytes: Size of the tiles; 0 if the program draws them.
        header: "iNES" or "NES 2.0".
        has_battery: The cartridge has battery-backed RAM.
        has_four_screens: The cartridge has RAM for four background screens instead of two.
        region: "NTSC" (60 frames a second), or "multi" for NTSC and PAL.

    Example:
        >>> prg, chr = bytes(0x4000), bytes(0x2000)
        >>> cartridge = Cartridge.read(b"NES\x1a\1\1" + bytes(10) + prg + chr)
        >>> cartridge.mapper, cartridge.prg_bytes, cartridge.header
        (0, 16384, 'iNES')
    """

    name: str
    data: bytes = field(repr=False)
    sha256: str
    mapper: int
    submapper: int
    prg_bytes: int
    chr_bytes: int
    header: Literal["iNES", "NES 2.0"]
    has_battery: bool
    has_four_screens: bool
    region: Literal["NTSC", "multi"]

    @classmethod
    def read(cls, rom: Cartridge | str | os.PathLike[str] | bytes) -> Cartridge:
        """Read a ROM file.

        Args:
            rom: Path of a .nes file, or of a .zip file with one .nes file; or the bytes of either;
                or a `Cartridge`, which is returned unchanged.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is not a cartridge image, is truncated, or needs another machine than a
                60 Hz console with two pads.
            TypeError: `rom` is neither a path nor bytes.
        """
        return rom if isinstance(rom, Cartridge) else _parsed(cls, *_content(rom))

    def cleaned(self) -> bytes:
        """Return the file without garbage in the header and after the last bank.

        Old dumping tools wrote their names into header bytes that later got a meaning
        ("DiskDude!"), so that emulators see another board or raise; and some files have text or
        padding after the last bank. A clean file is returned unchanged.
        """
        end = HEADER_BYTES + self.prg_bytes + self.chr_bytes
        return _clean(self.data[:HEADER_BYTES]) + self.data[HEADER_BYTES:end]

    def check_playable(self, backend: str, mappers: frozenset[int]) -> None:
        """Check that a backend supports the cartridge's board.

        Args:
            backend: Name of the backend.
            mappers: Boards that it supports.

        Raises:
            ValueError: The backend does not support it.
        """
        if self.mapper not in mappers:
            raise ValueError(
                f"{self.name} cannot be played with {backend}: expected a board (mapper) that it "
                f"knows, {_ranges(mappers)}, got {self.mapper}; {_another(backend)}"
            )
        harmless = self.mapper in _BUS_CONFLICT_MAPPERS and self.submapper in (1, 2)
        if self.submapper and not harmless and backend != _HONOURS_SUBMAPPERS:
            raise ValueError(
                f"{self.name} cannot be played with {backend}, which knows no variants of boards: "
                f"expected submapper 0 of mapper {self.mapper}, got {self.submapper}; "
                f"{_another(backend)}"
            )

        if self.has_four_screens and backend == _WITHOUT_FOUR_SCREENS:
            raise ValueError(
                f"{self.name} cannot be played with {backend}: expected a game with two screens of "
                f"background, got one with four; {_another(backend)}"
            )

    def recipe(self) -> dict[str, object]:
        """Return JSON data that identifies the cartridge."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "mapper": self.mapper,
            "header": self.header,
        }


def _content(rom: str | os.PathLike[str] | bytes) -> tuple[str, bytes]:
    """Return name and bytes of the ROM file, unpacked if it is in a .zip."""
    if isinstance(rom, bytes):
        name, data = "bytes", rom
    elif isinstance(rom, str | os.PathLike):
        path = Path(rom)
        if not path.exists():
            raise FileNotFoundError(
                f"there is no ROM file {path}: expected the path of a .nes file; none comes with "
                "Stepwell, so it must be one of yours"
            )
        if not path.is_file():
            raise ValueError(f"{path} cannot be played: expected a .nes file, got a folder")
        with path.open("rb") as file:
            name, data = path.name, _read_up_to_limit(file, path.name)
    else:
        raise TypeError(
            f"rom has the wrong type: expected a path or bytes, got {type(rom).__name__}"
        )
    return _unzipped(name, data) if data.startswith(b"PK\x03\x04") else (name, data)


def _read_up_to_limit(file: IO[bytes], name: str) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(
            f"{name} is no cartridge image: expected at most {LARGEST:,} bytes, got more; check "
            "the path"
        )
    return data


def _unzipped(name: str, data: bytes) -> tuple[str, bytes]:
    """Return name and bytes of the only .nes file in a .zip."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            games = [info for info in archive.infolist() if info.filename.lower().endswith(".nes")]
            if len(games) == 1:
                with archive.open(games[0]) as file:
                    inner = Path(games[0].filename).name
                    return inner, _read_up_to_limit(file, inner)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as error:
        raise ValueError(
            f"{name} cannot be unpacked: expected a sound .zip without a password, got: {error}; "
            "unpack it yourself and give the path of the .nes file"
        ) from None
    raise ValueError(
        f"{name} leaves open which game is meant: expected one .nes file in the .zip, got "
        f"{len(games)}; unpack it and give the path of one"
    )


def _ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2, 3, 7 as "0-3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _another(backend: str) -> str:
    if backend == _HONOURS_SUBMAPPERS:
        return "none of the backends can play it"
    return f"backend={_HONOURS_SUBMAPPERS!r} knows the most"


HEADER_BYTES = 16
MAGIC = b"NES\x1a"
PRG_BANK, CHR_BANK = 0x4000, 0x2000
BATTERY, TRAINER, FOUR_SCREENS = 2, 4, 8  # bits of byte 6
# Other files that are mistaken for a ROM: {first bytes: description}.
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


def _parsed(kind: type[Cartridge], name: str, data: bytes) -> Cartridge:
    """Parse the header of a whole ROM file, and check the length of the file."""
    if not data.startswith(MAGIC):
        raise ValueError(
            f"{name} is no cartridge image: expected it to begin with 'NES' and 0x1A, got "
            f"{_description(data)}; give a .nes file"
        )
    if len(data) < HEADER_BYTES:
        _refuse_short(name, HEADER_BYTES, len(data), "for the header alone")
    clean = _clean(data[:HEADER_BYTES])
    is_new = clean[7] & 0x0C == 0x08
    _check_machine(clean, name, is_new)
    prg_banks, chr_banks = _new_banks(clean, name) if is_new else (clean[4], clean[5])
    if prg_banks == 0:
        raise ValueError(
            f"{name} has no program: expected at least one bank of 16 KB, got 0; the file is "
            "damaged, take another dump of the cartridge"
        )
    expected = HEADER_BYTES + prg_banks * PRG_BANK + chr_banks * CHR_BANK
    # A longer file has all that the header names.
    if len(data) < expected:
        sizes = f"for {prg_banks} x 16 KB of program and {chr_banks} x 8 KB of tiles"
        _refuse_short(name, expected, len(data), sizes)
    return kind(
        name=name,
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        mapper=clean[6] >> 4 | clean[7] & 0xF0 | ((clean[8] & 0x0F) << 8 if is_new else 0),
        submapper=clean[8] >> 4 if is_new else 0,
        prg_bytes=prg_banks * PRG_BANK,
        chr_bytes=chr_banks * CHR_BANK,
        header="NES 2.0" if is_new else "iNES",
        has_battery=bool(clean[6] & BATTERY),
        has_four_screens=bool(clean[6] & FOUR_SCREENS),
        region="multi" if is_new and clean[12] & 3 == 2 else "NTSC",
    )


def _clean(header: bytes) -> bytes:
    """Return the header with zeros in the bytes that iNES does not define."""
    # Bytes 12 to 15 must be zero. If they are not, an old dumping tool has written its name over
    # the bytes from 7 on, so the high nibble of the mapper in byte 7 is invalid too. The same holds
    # if bits 2 and 3 of byte 7, which mark NES 2.0, have another value.
    mark = header[7] & 0x0C
    if mark == 0x08:
        return header
    if mark or any(header[12:]):
        return header[:7] + bytes(9)
    return header[:11] + bytes(5)


def _check_machine(header: bytes, name: str, is_new: bool) -> None:
    """Raise unless the game is for a 60 Hz console with two pads."""
    console = header[7] & 3
    if console:
        machine = CONSOLES.get(console, "a machine of another kind")
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
    """Return the numbers of program banks and tile banks of a NES 2.0 header."""
    high_prg, high_chr = header[9] & 0x0F, header[9] >> 4
    if 0x0F in (high_prg, high_chr):
        raise ValueError(
            f"{name} gives its sizes by an exponent: expected whole banks of 16 and 8 KB, got "
            f"{header[9]:#04x} in byte 9 of the NES 2.0 header; no backend reads it right"
        )
    return header[4] | high_prg << 8, header[5] | high_chr << 8


def _description(data: bytes) -> str:
    """Describe a file that is not a cartridge image by its first bytes."""
    head = data[:HEADER_BYTES]
    if not head:
        return "an empty file"
    for start, what in LOOKS_LIKE.items():
        if data.startswith(start):
            return what
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return f"a text ({head.decode('ascii')!r})"
    return f"the bytes {head[:4].hex(' ')}"


def _refuse_short(name: str, expected: int, got: int, sizes: str) -> NoReturn:
    raise ValueError(
        f"{name} is cut short: expected at least {expected:,} bytes {sizes}, got {got:,}; take a "
        "whole dump of the cartridge"
    )
