"""One summand of a game's reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.wrappers.nes.ram_map.measured import OPERATIONS, Measured, Values
from stepwell.wrappers.nes.ram_map.variable import Variable

__all__ = ["RewardTerm"]

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
