"""Variables in the console's RAM, and the rewards and conditions that are computed from them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from stepwell.wrappers.nes.console import RAM_BYTES

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


Measurement = Literal["delta", "absolute"]
Values = Sequence[int]
# The values that were read in this frame and in the one before.
Gauge = Callable[[Values, Values], int]

# Those of stable-retro, by its names. They give 0 or 1, but for the last.
COMPARING: dict[str, Callable[[int, int], int]] = {
    "equal": operator.eq,
    "not-equal": operator.ne,
    "negative-equal": lambda value, reference: value == -reference,
    "less-than": operator.lt,
    "less-or-equal": operator.le,
    "greater-than": operator.gt,
    "greater-or-equal": operator.ge,
}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    **COMPARING,
    "zero": lambda value, _: value == 0,
    "nonzero": lambda value, _: value != 0,
    "positive": lambda value, _: value > 0,
    "negative": lambda value, _: value < 0,
    "sign": lambda value, _: (value > 0) - (value < 0),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A value or its change since the frame before, as it is or through an operation.

    Args:
        var: Name of the variable.
        measurement: "absolute" is its value, "delta" the change (on an episode's first frame 0).
        op: One of `OPERATIONS`, or None for the number itself.
        reference: What the comparing operations compare with.

    Example:
        >>> Measured("lives", "delta", "negative").gauge(0, Variable(0x13, "|u1"))([2], [3])
        True
    """

    var: str
    measurement: Measurement
    op: str | None = None
    reference: int = 0

    def number(self, index: int, variable: Variable) -> Gauge:
        """A function that gives the value or its change, without the operation.

        Args:
            index: Place of the variable in the lists that the function is given.
            variable: Says how a change is taken.
        """
        if self.measurement == "absolute":
            return lambda new, _: new[index]
        if variable.wrap is None:
            return lambda new, old: new[index] - old[index]
        change = variable.change
        return lambda new, old: change(new[index], old[index])

    def gauge(self, index: int, variable: Variable) -> Gauge:
        """A function that measures; see `number` for the arguments."""
        number, reference = self.number(index, variable), self.reference
        if self.op is None:
            return number
        operation = OPERATIONS[self.op]
        return lambda new, old: operation(number(new, old), reference)

    def recipe(self) -> dict[str, object]:
        """The arguments, as JSON has them; what does not matter is left out."""
        found: dict[str, object] = {"var": self.var, "measurement": self.measurement}
        if self.op is not None:
            found["op"] = self.op
        if self.op in COMPARING:
            found["reference"] = self.reference
        return found


Pay = Callable[[Values, Values], float]


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """What a measured number is worth, frame by frame, by stable-retro's rule.

    A number m above zero pays `m * reward`, one below zero `m * penalty`: a positive penalty makes
    the reward of a loss negative, and a weight of 0 makes one direction not count.

    Args:
        name: Name of the term.
        measured: What is measured.
        reward: Weight of numbers above zero.
        penalty: Weight of numbers below zero.
        limit: A change larger than this, either way, pays nothing; None: every change counts.

    Example:
        >>> term = RewardTerm("score", Measured("score", "delta"), reward=10.0)
        >>> term.pay(0, Variable(0x15, ">n2"))([7], [5])
        20.0
    """

    name: str
    measured: Measured
    reward: float = 0.0
    penalty: float = 0.0
    limit: float | None = None

    def pay(self, index: int, variable: Variable) -> Pay:
        """A function that gives the reward from the values of two frames.

        Args:
            index: Place of the variable in the lists that the function is given.
            variable: The variable.
        """
        gauge, reward, penalty = self._gauge(index, variable), self.reward, self.penalty

        def pay(new: Values, old: Values) -> float:
            number = gauge(new, old)
            if number > 0:
                return number * reward
            return number * penalty if number else 0.0

        return pay

    def _gauge(self, index: int, variable: Variable) -> Callable[[Values, Values], int]:
        if self.limit is None:
            return self.measured.gauge(index, variable)
        limit, number = self.limit, self.measured.number(index, variable)
        operation = OPERATIONS[self.measured.op] if self.measured.op else None
        reference = self.measured.reference

        def gauge(new: Values, old: Values) -> int:
            change = number(new, old)
            if abs(change) > limit:
                return 0
            return change if operation is None else operation(change, reference)

        return gauge

    def recipe(self) -> dict[str, object]:
        """The term without its name, as JSON has it and as a RAM map writes it."""
        found = {**self.measured.recipe(), "reward": self.reward, "penalty": self.penalty}
        if self.limit is not None:
            found["limit"] = self.limit
        return found


Test = Callable[[Values, Values], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests that are combined; a test holds when what it measures is above zero.

    Args:
        combine: "any" holds when one part does, "all" when each does.
        tests: (name, test) of the parts that look at a variable.
        nodes: (name, condition) of the parts that are conditions themselves.

    Example:
        >>> over = Condition("any", (("lives", Measured("lives", "absolute", "zero")),))
        >>> over.test({"lives": 0}, {"lives": Variable(0x13, "|u1")})([0], [1])
        True
    """

    combine: Literal["any", "all"]
    tests: tuple[tuple[str, Measured], ...] = ()
    nodes: tuple[tuple[str, Condition], ...] = ()

    def variables(self) -> Iterator[str]:
        """Names of the variables that are looked at, with repetitions."""
        yield from (test.var for _, test in self.tests)
        for _, node in self.nodes:
            yield from node.variables()

    def test(self, indices: Mapping[str, int], variables: Mapping[str, Variable]) -> Test:
        """A function that tells from the values of two frames whether the condition holds.

        Args:
            indices: Places of the variables in the lists that the function is given.
            variables: The variables by name.
        """
        gauges = [test.gauge(indices[test.var], variables[test.var]) for _, test in self.tests]
        parts: list[Test] = [_above_zero(gauge) for gauge in gauges]
        parts += [node.test(indices, variables) for _, node in self.nodes]
        if len(parts) == 1:
            return parts[0]
        return _any(parts) if self.combine == "any" else _all(parts)

    def recipe(self) -> dict[str, object]:
        """The whole tree, as JSON has it and as a RAM map writes it."""
        found: dict[str, object] = {"condition": self.combine}
        found.update((name, test.recipe()) for name, test in self.tests)
        if self.nodes:
            found["nodes"] = {name: node.recipe() for name, node in self.nodes}
        return found


def _above_zero(gauge: Callable[[Values, Values], int]) -> Test:
    return lambda new, old: gauge(new, old) > 0


def _any(parts: list[Test]) -> Test:
    def test(new: Values, old: Values) -> bool:
        for part in parts:  # any() of a generator costs more than the tests
            if part(new, old):
                return True
        return False

    return test


def _all(parts: list[Test]) -> Test:
    def test(new: Values, old: Values) -> bool:
        for part in parts:
            if not part(new, old):
                return False
        return True

    return test
