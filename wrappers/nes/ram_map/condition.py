"""When a game is over: tests of variables, any or all of them, nested as deep as wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.wrappers.nes.ram_map.measured import Measured, Values
from stepwell.wrappers.nes.ram_map.variable import Variable

__all__ = ["Condition"]

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
