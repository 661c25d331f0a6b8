"""What a reward or an end is computed from: a value in RAM or its change, through an operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stepwell.wrappers.nes.ram_map.variable import Variable

__all__ = ["COMPARING", "OPERATIONS", "Measured", "Measurement"]

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
