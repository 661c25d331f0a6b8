"""`Cartridge.read`: accepted files, errors, and the bytes for the emulators."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demo_rom import build_rom
from stepwell.wrappers.nes.cartridge import LARGEST, Cartridge
from stepwell.wrappers.nes.emulators import NesBackend

ROM = build_rom()
BANKS = ROM[16:]
PRG, CHR = 0x4000, 0x2000
EVERY = frozenset(range(256))
TRAINER = bytes(index * 7 & 0xFF for index in range(512))


def header(**changed: int) -> bytes:
    """The header of the demonstration with other bytes: `header(b7=8)`."""
    found = bytearray(ROM[:16])
    for place, value in changed.items():
        found[int(place[1:])] = value
    return bytes(found)


def zipped(**files: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("_", "."), data)
    return whole.getvalue()


def one_sentence(message: str) -> bool:
    """True for a short message of one line that has "expected" or "got"."""
    return (
        "\n" not in message and len(message) < 400 and ("expected" in message or "got" in message)
    )


# --- what is read ---


def test_a_path_and_its_bytes_give_the_same_cartridge(tmp_path: Path) -> None:
    path = tmp_path / "folder.of" / "My Game.nes"
    path.parent.mkdir()
    path.write_bytes(ROM)
    of_bytes = Cartridge.read(ROM)
    assert of_bytes.name == "bytes"
    for rom in (path, str(path)):
        assert Cartridge.read(rom) == dataclasses.replace(of_bytes, name="My Game.nes")


def test_a_class_of_ones_own_reads_its_own_kind() -> None:
    class Mine(Cartridge):
        pass

    assert type(Mine.read(ROM)) is Mine


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        (ROM, {"mapper": 0, "prg_bytes": PRG, "chr_bytes": CHR, "header": "iNES"}),
        (header(b4=2, b6=0x10) + bytes(2 * PRG + CHR), {"mapper": 1, "prg_bytes": 2 * PRG}),
        (header(b6=0x51, b7=0x40) + BANKS, {"mapper": 69}),
        (header(b6=0xF1, b7=0xF0) + BANKS, {"mapper": 255}),
        (header(b5=0) + bytes(PRG), {"chr_bytes": 0}),
        (header(b4=255, b5=255) + bytes(255 * (PRG + CHR)), {"chr_bytes": 255 * CHR}),
        (header(b6=3) + BANKS, {"has_battery": True, "has_four_screens": False}),
        (header(b6=9) + BANKS, {"has_battery": False, "has_four_screens": True}),
        (header(b7=8) + BANKS, {"header": "NES 2.0", "mapper": 0, "region": "NTSC"}),
        (header(b7=8, b12=2) + BANKS, {"region": "multi"}),
        (header(b6=0x11, b7=0x48, b8=0x52) + BANKS, {"mapper": 0x241, "submapper": 5}),
        (header(b4=2, b7=8, b9=1) + bytes(0x102 * PRG + CHR), {"prg_bytes": 0x102 * PRG}),
        (header(b7=8, b9=0x10) + bytes(PRG + 0x101 * CHR), {"chr_bytes": 0x101 * CHR}),
        (header(b8=1) + BANKS, {"mapper": 0, "submapper": 0}),  # iNES: the size of its RAM
        (header(b10=2) + BANKS, {"region": "NTSC"}),  # unofficial, and no emulator reads it
    ],
)
def test_the_header_is_read(data: bytes, facts: dict[str, object]) -> None:
    cartridge = Cartridge.read(data)
    assert {name: getattr(cartridge, name) for name in facts} == facts
    assert cartridge.cleaned() == data


def named(name: bytes) -> bytes:
    """The demonstration with a dumping tool's name in its header."""
    return ROM[:7] + name.ljust(9, b"\0")[:9] + BANKS


@pytest.mark.parametrize(
    ("dirty", "mapper", "head"),
    [
        *(
            (named(name), 0, ROM[:16])
            for name in (b"DiskDude!", b"Disk", b"demiforce", b"NI 2.1\0\0\0", b"\0\0\0\0\0aster")
        ),
        # Byte 7 may belong to a name or to the mapper, so it is not used; garbage in byte 11 alone
        # is no name.
        (header(b6=0x41, b7=0x40, b12=0x61, b15=0x72) + BANKS, 4, header(b6=0x41)),
        (header(b6=0x21, b7=0x40, b11=9) + BANKS, 66, header(b6=0x21, b7=0x40)),
        # Behind the last bank.
        *(
            (ROM + tail, 0, ROM[:16])
            for tail in (b"\0", bytes(128), b"Title of the game".ljust(128, b"\0"))
        ),
    ],
    ids=range(10),
)
def test_what_is_no_part_of_the_game_is_left_out(dirty: bytes, mapper: int, head: bytes) -> None:
    cartridge = Cartridge.read(dirty)
    assert (cartridge.mapper, cartridge.header, cartridge.region) == (mapper, "iNES", "NTSC")
    assert cartridge.cleaned() == head + BANKS
    assert cartridge.data == dirty
    assert cartridge.sha256 == hashlib.sha256(dirty).hexdigest()


def test_a_zip_with_one_game_in_it_is_read(tmp_path: Path) -> None:
    packed = zipped(readme_txt=b"hello", game_NES=ROM)
    (tmp_path / "packed.zip").write_bytes(packed)
    for rom in (tmp_path / "packed.zip", packed):
        cartridge = Cartridge.read(rom)
        assert (cartridge.name, cartridge.data) == ("game.NES", ROM)


# --- what is refused ---


def damaged_zip() -> bytes:
    data = bytearray(zipped(a_nes=ROM))
    data[30 + len("a.nes")] |= 0b110  # a kind of block that does not exist
    return bytes(data)


def locked_zip() -> bytes:
    data = bytearray(zipped(a_nes=ROM))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + flags] |= 1
    return bytes(data)


# The data, and the parts of the error message, in order.
REFUSED = {
    "empty": (b"", "'NES' and 0x1A, got an empty file"),
    "magic alone": (b"NES\x1a", "16 bytes|got 4;"),
    "cut in the header": (ROM[:15], "16 bytes|got 15;"),
    "header alone": (ROM[:16], "24,592 bytes|got 16;"),
    "cut in the last bank": (ROM[:-1], "24,592 bytes|got 24,591;"),
    "zip of nothing": (zipped(), "got a .zip"),
    "zip without a game": (zipped(readme_txt=b"x"), "one .nes file in the .zip|got 0;"),
    "zip of two": (zipped(a_nes=ROM, b_nes=ROM), "one .nes file in the .zip|got 2;"),
    "zip of a broken game": (zipped(a_nes=ROM[:-1]), "a.nes|24,592 bytes|got 24,591;"),
    "zip of a zip": (zipped(a_nes=zipped(a_nes=ROM)), "a.nes|got a .zip"),
    "broken zip": (zipped(a_nes=ROM)[:200], ".zip|got: File is not a zip file"),
    "damaged zip": (damaged_zip(), ".zip|invalid block type"),
    "locked zip": (locked_zip(), ".zip|password"),
    "unif": (b"UNIF" + bytes(40), "UNIF"),
    "fds": (b"FDS\x1a" + bytes(40), "Famicom Disk System"),
    "bare disk": (b"\x01*NINTENDO-HVC*" + bytes(40), "Famicom Disk System"),
    "music": (b"NESM\x1a" + bytes(40), "music"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(40), "7z"),
    "rar": (b"Rar!\x1a\x07" + bytes(40), "rar"),
    "gz": (b"\x1f\x8b\x08" + bytes(40), "gz"),
    "web page": (b"<!DOCTYPE html>" + bytes(40), "web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "text": (b"not a game, but a long note", "not a game, but "),
    "other bytes": (bytes([0xCA, 0xFE, 0xBA, 0xBE]) * 10, "ca fe ba be"),
    "lower case": (b"nes\x1a" + ROM[4:], "6e 65 73 1a"),
    "no program": (header(b4=0) + BANKS, "no program|16 KB, got 0;"),
    "no program, new": (header(b4=0, b7=8) + BANKS, "no program|16 KB, got 0;"),
    "PAL": (header(b9=1) + BANKS, "NTSC|got PAL"),
    "PAL, new": (header(b7=8, b12=1) + BANKS, "NTSC|got PAL"),
    "Dendy": (header(b7=8, b12=3) + BANKS, "NTSC|got Dendy"),
    "Vs.": (header(b7=1) + BANKS, "type 0|got 1 (a Vs. System"),
    "Vs., new": (header(b7=9) + BANKS, "type 0|got 1 (a Vs. System"),
    "PlayChoice": (header(b7=2) + BANKS, "type 0|got 2 (a PlayChoice-10"),
    "PlayChoice, new": (header(b7=10) + BANKS, "type 0|got 2 (a PlayChoice-10"),
    "extended": (header(b7=11) + BANKS, "type 0|got 3"),
    "both arcades": (header(b7=3) + BANKS, "type 0|got 3"),
    "trainer": (header(b6=5) + TRAINER + BANKS, "trainer|512 bytes"),
    "trainer, new": (header(b6=5, b7=8) + TRAINER + BANKS, "trainer|512 bytes"),
    "ROMs of other kinds": (header(b7=8, b14=1) + BANKS, "ROMs|got 1 "),
    "PRG exponent": (header(b4=14 << 2, b7=8, b9=0x0F) + BANKS, "exponent|got 0x0f in byte 9"),
    "CHR exponent": (header(b5=13 << 2, b7=8, b9=0xF0) + BANKS, "exponent|got 0xf0 in byte 9"),
    "PRG high nibble": (header(b7=8, b9=1) + BANKS, "4,218,896 bytes|got 24,592;"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_playable_cartridge_is_refused_in_one_sentence(
    kind: str, tmp_path: Path
) -> None:
    """C5: one clear error for every backend, before any emulator sees the file."""
    data, parts = REFUSED[kind]
    message = ".*".join(map(re.escape, parts.split("|")))
    path = tmp_path / "what.nes"
    path.write_bytes(data)
    for rom in (path, data):
        with pytest.raises(ValueError, match=message) as error:
            Cartridge.read(rom)
        assert one_sentence(str(error.value)), error.value


@pytest.mark.parametrize(
    ("rom", "error", "words"),
    [
        (Path("nowhere.nes"), FileNotFoundError, r"nowhere\.nes"),
        (Path(), ValueError, r"\.nes.*folder"),
        *(
            (rom, TypeError, rf"rom .*path or bytes.*got {type(rom).__name__}")
            for rom in (None, 3, bytearray(ROM), [ROM])
        ),
    ],
    ids=range(6),
)
def test_what_is_no_file_is_refused(rom: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Cartridge.read(rom)
    assert one_sentence(str(caught.value))


@pytest.mark.proof
def test_a_file_larger_than_any_cartridge_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "film.nes"
    with path.open("wb") as file:
        file.write(ROM)
        file.truncate(20 * LARGEST)
    bomb = zipped(bomb_nes=ROM + bytes(20 * LARGEST))
    tracemalloc.start()
    try:
        for rom in (path, bomb):
            with pytest.raises(ValueError, match=r"(film|bomb)\.nes.*16,777,216 bytes"):
                Cartridge.read(rom)
        assert tracemalloc.get_traced_memory()[1] < 4 * LARGEST
    finally:
        tracemalloc.stop()


# --- which backend plays it ---


CYNES = frozenset({0, 1, 2, 3, 4, 7, 9, 10, 66, 71})


@pytest.mark.parametrize(
    ("changed", "backend", "mappers", "words"),
    [
        ({"b6": 0x51}, "cynes", CYNES, r"0-4, 7, 9-10, 66, 71, got 5; .*stable-retro"),
        ({"b6": 0x51}, "cynes", frozenset({5}), ""),
        # Four screens.
        ({"b6": 0x48}, "nes-py", frozenset({4}), ""),
        ({"b6": 0x48}, "cynes", frozenset({4}), "cynes.*two screens.*four.*stable-retro"),
        # Variants of boards.
        *(
            (
                {"b6": mapper << 4, "b7": 8, "b8": submapper << 4},
                "cynes",
                EVERY,
                "" if plays else f"submapper 0 of mapper {mapper}, got {submapper}",
            )
            for mapper, submapper, plays in (
                *((1, 0, True), (1, 5, False), (4, 1, False)),
                *((2, 1, True), (3, 2, True), (2, 3, False)),
            )
        ),
    ],
)
def test_a_board_that_only_stable_retro_knows_is_named_with_those_that_are_known(
    changed: dict[str, int], backend: NesBackend, mappers: frozenset[int], words: str
) -> None:
    cartridge = Cartridge.read(header(**changed) + BANKS)
    cartridge.check_playable("stable-retro", EVERY)
    if not words:
        cartridge.check_playable(backend, mappers)
        return
    with pytest.raises(ValueError, match=words) as error:
        cartridge.check_playable(backend, mappers)
    assert one_sentence(str(error.value))


# --- nothing else ever happens ---


def cartridge_or_sentence(data: bytes) -> Cartridge | None:
    """Return the cartridge, or None if it was refused with a proper error."""
    try:
        return Cartridge.read(data)
    except ValueError as error:
        if not one_sentence(str(error)):
            raise AssertionError(f"not one sentence: {error}") from error
        return None


INTERESTING = st.sampled_from([0, 1, 2, 3, 4, 8, 9, 0x0F, 0x10, 0x40, 0xF0, 0xFF, ord("D")])
HEADERS = st.builds(
    lambda tail: b"NES\x1a" + bytes(tail),
    st.lists(st.one_of(INTERESTING, st.integers(0, 255)), min_size=12, max_size=12),
)


@given(HEADERS, st.integers(-40, 40), st.sampled_from([0, 1, 2, 3]), st.sampled_from([0, 1, 2]))
def test_any_header_over_any_length_gives_a_cartridge_or_one_sentence(
    head: bytes, off: int, prg: int, tiles: int
) -> None:
    data = head + bytes(max(0, prg * PRG + tiles * CHR + off))
    cartridge = cartridge_or_sentence(data)
    if cartridge is None:
        return
    cleaned = cartridge.cleaned()
    assert len(cleaned) == 16 + cartridge.prg_bytes + cartridge.chr_bytes <= len(data)
    assert cartridge.prg_bytes >= PRG
    again = Cartridge.read(cleaned)  # the bytes for the emulators are equivalent, and clean
    assert again.cleaned() == cleaned
    same = ("mapper", "submapper", "prg_bytes", "chr_bytes", "header", "has_battery", "region")
    assert [getattr(again, name) for name in same] == [getattr(cartridge, name) for name in same]


@given(st.binary(max_size=64))
@example(b"PK\x03\x04")
def test_any_bytes_give_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^bytes\b.*expected .*got\b") as error:
        Cartridge.read(data)
    assert one_sentence(str(error.value)), error.value


ZIP = zipped(a_nes=ROM)


@given(st.integers(4, len(ZIP) - 1), st.integers(1, 255), st.integers(len(ZIP) // 2, len(ZIP)))
def test_a_damaged_zip_gives_the_cartridge_or_one_sentence(
    place: int, change: int, length: int
) -> None:
    damaged = bytearray(ZIP)
    damaged[place] ^= change
    cartridge = cartridge_or_sentence(bytes(damaged[:length]))
    assert cartridge is None or cartridge.data == ROM
