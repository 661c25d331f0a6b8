"""Variables in the console's RAM, and the rewards and conditions that are computed from them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..cartridge import RAM_BYTES

LARGEST = 2**63 - 1  # stable-retro computes in signed 64-bit integers
TYPE = re.compile(r"(<>|><|<=|>=|[<>=|])([uidn])([1-8])")
BASE = {"u": 256, "i": 256, "d": 100, "n": 10}  # factor between neighboring bytes

Peek = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Variable:
    """A number in the console's RAM, decoded like stable-retro."""

    # The type is text of three parts: byte order, kind and number of bytes, as in "<u2".
    # Orders, from the lowest address: "<", "=", "<=" and "|" have the least significant byte first,
    # ">" the most significant one. "<>" is two halves, the less significant one first, with the
    # most significant byte first in each; "><" and ">=" are the reverse.
    # Kinds: a byte of "u" is 8 bits of an unsigned number (a set top bit of "u8" makes it
    # negative), of "i" 8 bits of one in two's complement, of "d" two decimal digits, the high one
    # in the high four bits, of "n" one decimal digit in the low four bits; the high four bits do
    # not matter. Four bits above 9 count modulo 10.

    address: int  # of the first byte, 0 to 0x7FF
    type: str
    # The value counts modulo this, and changes are the shortest distance: with 65,536 a "<u2" that
    # goes from 65,535 to 0 changes by 1. None: a plain difference.
    wrap: int | None = None
    mask: int | None = None  # the value is ANDed with this, for games that pack flags into a byte

    def __post_init__(self) -> None:
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
                    f"omit {name} to use the plain value"
                )

    @property
    def width(self) -> int:
        """Number of bytes."""
        return int(self.type[-1])

    def decode(self, ram: Sequence[int]) -> int:
        """Return the value in a copy of the RAM: `bytes`, or an array uint8, of 2,048."""
        return self.reader(lambda address: int(ram[address]))()

    def reader(self, peek: Peek) -> Callable[[], int]:
        """Return a function that reads the current value, to be called in every frame."""
        # ``peek`` returns the byte at an address as a Python int.
        mask = self.mask
        read = _reader(self.address, _tables(self.type), peek)
        return read if mask is None else lambda: read() & mask

    def change(self, new: int, old: int) -> int:
        """Return the change from `old` to `new`, modulo `wrap` if it is set."""
        if self.wrap is None:
            return new - old
        half = self.wrap // 2
        return (new - old + half) % self.wrap - half

    def recipe(self) -> dict[str, object]:
        """Return the arguments that are not None as JSON data."""
        optional = {"wrap": self.wrap, "mask": self.mask}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"address": self.address, "type": self.type, **present}


def _check_address(address: int, width: int) -> None:
    last = RAM_BYTES - width
    if 0 <= address <= last:
        return
    hint = "battery RAM and the cartridge's own cannot be read"
    if 0 <= address % RAM_BYTES <= last and last < address < 0x2000:
        hint = f"0x{address:X} mirrors 0x{address % RAM_BYTES:X}: write that"
    elif 0 <= address < RAM_BYTES:
        hint = f"{width} bytes from there end after the RAM"
    raise ValueError(
        f"address: expected 0 to 0x{last:X} for {width} byte{'s' * (width > 1)} of the console's "
        f"RAM, got {hex(address)}; {hint}"
    )


def _offsets(order: str, width: int) -> list[int]:
    """Return the offsets of the bytes, the least significant first."""
    rising, half = list(range(width)), width // 2
    if order == ">":
        return rising[::-1]
    if order == "<>":
        return rising[:half][::-1] + rising[half:][::-1]
    if order in ("><", ">="):
        return rising[half:] + rising[:half]
    return rising


def _tables(type_: str) -> list[tuple[int, ...]]:
    """Return for each byte, from the lowest address, what its 256 values add to the number."""
    order, kind, width = type_[:-2], type_[-2], int(type_[-1])
    tables: list[tuple[int, ...]] = [()] * width
    for rank, offset in enumerate(_offsets(order, width)):
        # Only the top byte of `i`, and bit 63 as in stable-retro, can make a number negative.
        signed = rank == width - 1 and (kind == "i" or (kind == "u" and width == 8))
        weight = BASE[kind] ** rank
        tables[offset] = tuple(weight * _byte_value(byte, kind, signed) for byte in range(256))
    return tables


def _byte_value(byte: int, kind: str, signed: bool) -> int:
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
# Called with the values of this frame and of the previous one.
NumberReader = Callable[[Values, Values], int]

# The operations of stable-retro, with its names. All but the last return 0 or 1.
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
    """A value or its change since the previous frame, with or without an operation."""

    var: str
    measurement: Measurement  # "absolute" is the value, "delta" the change (0 in the first frame)
    op: str | None = None  # of `OPERATIONS`, or None for the number itself
    reference: int = 0  # second operand of the comparing operations

    def number(self, index: int, variable: Variable) -> NumberReader:
        """Return a function for the value or its change, without the operation."""
        # ``index`` is that of the variable in the arguments of the function.
        if self.measurement == "absolute":
            return lambda new, _: new[index]
        if variable.wrap is None:
            return lambda new, old: new[index] - old[index]
        change = variable.change
        return lambda new, old: change(new[index], old[index])

    def measure(self, index: int, variable: Variable) -> NumberReader:
        """Return the function with the operation; see `number` for the arguments."""
        number, reference = self.number(index, variable), self.reference
        if self.op is None:
            return number
        operation = OPERATIONS[self.op]
        return lambda new, old: operation(number(new, old), reference)

    def recipe(self) -> dict[str, object]:
        """Return the arguments that have an effect as JSON data."""
        found: dict[str, object] = {"var": self.var, "measurement": self.measurement}
        if self.op is not None:
            found["op"] = self.op
        if self.op in COMPARING:
            found["reference"] = self.reference
        return found


Pay = Callable[[Values, Values], float]


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """A term of the reward, computed in every frame by stable-retro's rule."""

    # A number m above zero gives `m * reward`, one below zero `m * penalty`: a positive penalty
    # makes the reward of a loss negative, and with a weight of 0 one direction does not count.

    name: str
    measured: Measured
    reward: float = 0.0
    penalty: float = 0.0
    # A change with a larger absolute value gives 0; None: every change counts
    limit: float | None = None

    def pay(self, index: int, variable: Variable) -> Pay:
        """Return a function that computes the reward from the values of two frames."""
        # ``index`` is that of the variable in the arguments of the function.
        measure, reward, penalty = self._measure(index, variable), self.reward, self.penalty

        def pay(new: Values, old: Values) -> float:
            number = measure(new, old)
            if number > 0:
                return number * reward
            return number * penalty if number else 0.0

        return pay

    def _measure(self, index: int, variable: Variable) -> Callable[[Values, Values], int]:
        measure = self.measured.measure(index, variable)
        if self.limit is None:
            return measure
        limit, number = self.limit, self.measured.number(index, variable)
        return lambda new, old: measure(new, old) if abs(number(new, old)) <= limit else 0

    def recipe(self) -> dict[str, object]:
        """Return the term without its name as JSON data, in the form of a RAM map."""
        found = {**self.measured.recipe(), "reward": self.reward, "penalty": self.penalty}
        if self.limit is not None:
            found["limit"] = self.limit
        return found


Test = Callable[[Values, Values], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """A combination of tests; a test is true if its measured number is above zero."""

    combine: Literal["any", "all"]  # true if one part is, or if each part is
    # (name, test) of the parts that measure a variable
    tests: tuple[tuple[str, Measured], ...] = ()
    nodes: tuple[tuple[str, Condition], ...] = ()  # (name, condition) of the nested conditions

    def variables(self) -> Iterator[str]:
        """Yield the names of the measured variables, with repetitions."""
        yield from (test.var for _, test in self.tests)
        for _, node in self.nodes:
            yield from node.variables()

    def test(self, indices: Mapping[str, int], variables: Mapping[str, Variable]) -> Test:
        """Return a function that evaluates the condition from the values of two frames."""
        # ``indices`` are those of the variables in the arguments of the function.
        measures = [test.measure(indices[test.var], variables[test.var]) for _, test in self.tests]
        parts: list[Test] = [_above_zero(measure) for measure in measures]
        parts += [node.test(indices, variables) for _, node in self.nodes]
        if len(parts) == 1:
            return parts[0]
        return _any(parts) if self.combine == "any" else _all(parts)

    def recipe(self) -> dict[str, object]:
        """Return the condition as JSON data, in the form of a RAM map."""
        found: dict[str, object] = {"condition": self.combine}
        found.update((name, test.recipe()) for name, test in self.tests)
        if self.nodes:
            found["nodes"] = {name: node.recipe() for name, node in self.nodes}
        return found


def _above_zero(measure: Callable[[Values, Values], int]) -> Test:
    return lambda new, old: measure(new, old) > 0


def _any(parts: list[Test]) -> Test:
    def test(new: Values, old: Values) -> bool:
        for part in parts:  # any() of a generator is slower than the tests
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
