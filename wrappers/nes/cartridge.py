"""The user's ROM file: read, and checked before any emulator sees it."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from stepwell.wrappers.nes.cartridge_header import HEADER_BYTES, Header, parse_header

__all__ = ["Cartridge"]

LARGEST = 16 * 2**20  # bytes; the largest cartridges ever made are a tenth of it
# Boards whose submappers 1 and 2 say only whether two chips may talk at once: a game made for
# either plays on an emulator that knows neither.
_BUS_CONFLICT_MAPPERS = frozenset({2, 3, 7})
_HONOURS_SUBMAPPERS = "stable-retro"
# It maps four screens onto two, whatever the header says, so that a game would scroll into garbage.
_WITHOUT_FOUR_SCREENS = "cynes"


@dataclass(frozen=True, slots=True)
class Cartridge:
    r"""A ROM file whose header makes sense.

    Emulators do not agree on what they make of an odd file: one crashes, the next one shows a
    blank screen, a third plays it at the wrong speed. So it is judged here, for all of them alike.

    Args:
        name: Name of the file, without folders; "bytes" if it was given as bytes.
        data: The file as it is.
        sha256: Of `data`, in hexadecimal.
        mapper: Number of the cartridge's board.
        submapper: Its variant; 0 if the header does not tell.
        prg_bytes: Size of the program.
        chr_bytes: Size of the tiles; 0 if the program draws them itself.
        header: "iNES" or "NES 2.0".
        has_battery: The cartridge keeps its RAM when it is switched off.
        has_four_screens: It has RAM for four background screens, where a console has two.
        region: "NTSC" (60 frames a second), or "multi" for both kinds of television.

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
        """Read a ROM file, or what is in one.

        Args:
            rom: Path of a .nes file, or of a .zip with one .nes file in it; or the bytes of either;
                a cartridge comes back as it is.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is no cartridge image, is cut short, or needs another machine than a
                60 Hz console with two pads.
            TypeError: `rom` is neither a path nor bytes.
        """
        if isinstance(rom, Cartridge):
            return rom
        name, data = _content(rom)
        header = parse_header(data, name)
        return cls(
            name=name,
            data=data,
            sha256=hashlib.sha256(data).hexdigest(),
            mapper=header.mapper,
            submapper=header.submapper,
            prg_bytes=header.prg_bytes,
            chr_bytes=header.chr_bytes,
            header=header.kind,
            has_battery=header.has_battery,
            has_four_screens=header.has_four_screens,
            region=header.region,
        )

    def groomed(self) -> bytes:
        """What an emulator is given: the file without what does not belong in it.

        Old dumping tools left their names in header bytes that later got a meaning ("DiskDude!"),
        which emulators take for another board or refuse; and some files have text or padding
        behind the last bank. A clean file comes back as it is.
        """
        header: Header = parse_header(self.data, self.name)
        end = HEADER_BYTES + self.prg_bytes + self.chr_bytes
        return header.clean + self.data[HEADER_BYTES:end]

    def check_playable(self, backend: str, mappers: frozenset[int]) -> None:
        """See that a backend plays the cartridge's board right.

        Args:
            backend: Its name.
            mappers: The boards that it knows.

        Raises:
            ValueError: It does not.
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
        """What identifies the cartridge, as JSON has it."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "mapper": self.mapper,
            "header": self.header,
        }


def _content(rom: str | os.PathLike[str] | bytes) -> tuple[str, bytes]:
    """(name, bytes) of the ROM file, out of its .zip if it is in one."""
    if isinstance(rom, bytes):
        name, data = "bytes", rom
    elif isinstance(rom, str | os.PathLike):
        path = Path(rom)
        name, data = path.name, _file(path)
    else:
        raise TypeError(
            f"rom is of the wrong kind: expected a path or bytes, got {type(rom).__name__}"
        )
    return _unzipped(name, data) if data.startswith(b"PK\x03\x04") else (name, data)


def _file(path: Path) -> bytes:
    if not path.exists():
        raise FileNotFoundError(
            f"there is no ROM file {path}: expected the path of a .nes file; none comes with "
            "Stepwell, so it must be one of yours"
        )
    if not path.is_file():
        raise ValueError(f"{path} cannot be played: expected a .nes file, got a folder")
    with path.open("rb") as file:
        return _read_up_to_limit(file, path.name)


def _read_up_to_limit(file: IO[bytes], name: str) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(
            f"{name} is no cartridge image: expected at most {LARGEST:,} bytes, got more; check "
            "the path"
        )
    return data


def _unzipped(name: str, data: bytes) -> tuple[str, bytes]:
    """The one .nes file in a .zip."""
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
    """0, 1, 2, 3, 7 as "0-3, 7"."""
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
