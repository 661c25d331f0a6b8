"""A number that a game keeps in RAM: where it lies and how its bytes are to be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stepwell.wrappers.nes.consoles.console import RAM_BYTES

__all__ = ["LARGEST", "Variable"]

LARGEST = 2**63 - 1  # stable-retro computes in signed 64-bit integers
TYPE = re.compile(r"(<>|><|<=|>=|[<>=|])([uidn])([1-8])")
BASE = {"u": 256, "i": 256, "d": 100, "n": 10}  # how much a byte is worth in the next lower one

Peek = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Variable:
    r"""A number in the console's RAM, read as stable-retro reads it.

    The type is text of three parts: byte order, kind and number of bytes, as in `"<u2"`.

    | order | the bytes are, from the lowest address |
    |---|---|
    | `<`, `=`, `<=`, `\|` | least significant first |
    | `>` | most significant first |
    | `<>` | two halves, the less significant one first; most significant first in each |
    | `><`, `>=` | two halves, the more significant one first; least significant first in each |

    | kind | a byte holds |
    |---|---|
    | `u` | 8 bits of an unsigned number (a set top bit of `u8` makes it negative) |
    | `i` | 8 bits of a number in two's complement |
    | `d` | two decimal digits, the high one in the high four bits |
    | `n` | one decimal digit in the low four bits; the high four bits do not matter |

    Four bits above 9 count modulo 10.

    Args:
        address: Address of the first byte, 0 to 0x7FF.
        type: See above.
        wrap: The value counts modulo this, so a change is the shortest way round: with 65,536
            a `"<u2"` that goes from 65,535 to 0 changes by 1. None: a plain difference.
        mask: The value is ANDed with this, for games that pack flags into a byte.

    Raises:
        ValueError: A type that is none, bytes outside of the RAM, or a `wrap` or `mask` below 1.

    Example:
        >>> Variable(0x10, "<u2").decode(bytes(16) + b"\x34\x12" + bytes(2030)) == 0x1234
        True
        >>> Variable(0x10, "<u2", wrap=65536).change(3, 65535)
        4
    """

    address: int
    type: str
    wrap: int | None = None
    mask: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        if not TYPE.fullmatch(self.type):
            raise ValueError(
                f"type: expected an order (< > | = <> ><), a kind (u i d n) and 1 to 8 bytes, "
                f"got {self.type!r}; write it as in '|u1', '<u2' or '>n6'"
            )
        _check_address(self.address, self.width)
        for name, value in (("wrap", self.wrap), ("mask", self.mask)):
            if value is not None and not 1 <= value <= LARGEST:
                raise ValueError(
                    f"{name}: expected a whole number from 1 to {LARGEST}, got {value}; "
                    f"leave {name} out if the value is to be taken as it is"
                )

    @property
    def width(self) -> int:
        """Number of bytes."""
        return int(self.type[-1])

    def decode(self, ram: Sequence[int]) -> int:
        """The value in a copy of the RAM.

        Args:
            ram: The console's 2,048 bytes: `bytes`, or an array uint8 [2048].
        """
        return self.reader(lambda address: int(ram[address]))()

    def reader(self, peek: Peek) -> Callable[[], int]:
        """A function that reads the value now, made once because it is called every frame.

        Args:
            peek: Gives the byte at an address as a Python int.
        """
        mask = self.mask
        read = _reader(self.address, _tables(self.type), peek)
        return read if mask is None else lambda: read() & mask

    def change(self, new: int, old: int) -> int:
        """How far the value went from `old` to `new`, round the corner if it wraps."""
        if self.wrap is None:
            return new - old
        half = self.wrap // 2
        return (new - old + half) % self.wrap - half

    def recipe(self) -> dict[str, object]:
        """The arguments, as JSON has them; those that are None are left out."""
        optional = {"wrap": self.wrap, "mask": self.mask}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"address": self.address, "type": self.type, **given}


def _check_address(address: int, width: int) -> None:
    last = RAM_BYTES - width
    if 0 <= address <= last:
        return
    cure = "battery RAM and the cartridge's own cannot be read"
    if 0 <= address % RAM_BYTES <= last and last < address < 0x2000:
        cure = f"0x{address:X} shows the same byte as 0x{address % RAM_BYTES:X}: write that"
    elif 0 <= address < RAM_BYTES:
        cure = f"{width} bytes from there end behind the RAM"
    raise ValueError(
        f"address: expected 0 to 0x{last:X} for {width} byte{'s' * (width > 1)} of the console's "
        f"RAM, got {hex(address)}; {cure}"
    )


def _offsets(order: str, width: int) -> list[int]:
    """Offsets of the bytes, the least significant first."""
    rising, half = list(range(width)), width // 2
    if order == ">":
        return rising[::-1]
    if order == "<>":
        return rising[:half][::-1] + rising[half:][::-1]
    if order in ("><", ">="):
        return rising[half:] + rising[:half]
    return rising


def _tables(type_: str) -> list[tuple[int, ...]]:
    """For each byte, from the lowest address: what its 256 values add to the number."""
    order, kind, width = type_[:-2], type_[-2], int(type_[-1])
    tables: list[tuple[int, ...]] = [()] * width
    for rank, offset in enumerate(_offsets(order, width)):
        # Only a top byte can make a number negative: that of `i`, and bit 63 of stable-retro's.
        signed = rank == width - 1 and (kind == "i" or (kind == "u" and width == 8))
        weight = BASE[kind] ** rank
        tables[offset] = tuple(weight * _worth(byte, kind, signed) for byte in range(256))
    return tables


def _worth(byte: int, kind: str, signed: bool) -> int:
    if kind == "d":
        return byte % 16 % 10 + byte // 16 % 10 * 10
    if kind == "n":
        return byte % 16 % 10
    return byte - 256 if signed and byte >= 128 else byte


def _reader(address: int, tables: list[tuple[int, ...]], peek: Peek) -> Callable[[], int]:
    if len(tables) == 1:
        (only,) = tables
        if only[-1] == 255:  # an unsigned byte is its own value
            return partial(peek, address)
        return lambda: only[peek(address)]
    if len(tables) == 2:
        first, second = tables
        behind = address + 1
        return lambda: first[peek(address)] + second[peek(behind)]
    places = tuple(enumerate(tables, address))

    def read() -> int:
        value = 0
        for place, table in places:
            value += table[peek(place)]
        return value

    return read
