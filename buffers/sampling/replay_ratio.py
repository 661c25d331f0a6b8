"""How many gradient steps a learner owes for the env steps that were collected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

__all__ = ["ReplayRatio", "simplest_fraction"]

_MAX_DENOMINATOR = 1_000_000


class ReplayRatio:
    """Counts gradient steps owed for env steps, exactly: what is not whole yet is carried over.

    A call gives the gradient steps that have become due since the call before, so that after any
    number of calls their sum is ``floor(ratio * steps)``, of the steps that count. The steps that
    are there at the first call are the prefill: they count for nothing, and the first call gives 0.
    With ``start`` it is said from which step on they count: ``start=0`` owes for the prefill too.

    The `Ratio` of DreamerV3 gives 1 at its first call and leaves out what came before; sheeprl's
    owes for all of it, as ``start=0`` does here.

    Args:
        ratio: Gradient steps for each env step, >= 0; at 0 none is ever due. A float is taken as
            the simple fraction that it stands for: 0.3 is 3/10, and 1 / 3 is a third.
        start: Env steps after which counting begins; None: those of the first call.

    Raises:
        ValueError: A number is negative, or not finite.

    Example:
        >>> ratio = ReplayRatio(0.5)
        >>> [ratio(steps) for steps in (1000, 1003, 1004, 1064)]  # 1000: the prefill
        [0, 1, 1, 30]
        >>> ReplayRatio(0.5, start=0)(1000)
        500
    """

    def __init__(self, ratio: float | Fraction, *, start: int | None = None) -> None:
        self._ratio = simplest_fraction("ratio", ratio)
        self._start = None if start is None else _whole("start", start)
        self._steps: int | None = None
        self._owed = Fraction(0)

    @classmethod
    def from_train_ratio(
        cls, train_ratio: float, *, batch_size: int, length: int, start: int | None = None
    ) -> Self:
        """From DreamerV3's figure: replayed rows for each env step (Hafner et al. 2023).

        Args:
            train_ratio: Rows that the learner sees for each env step.
            batch_size: Sequences in a batch, B.
            length: Rows in a sequence, T.
            start: See the class.

        Example:
            >>> ReplayRatio.from_train_ratio(512, batch_size=16, length=64).ratio
            Fraction(1, 2)
        """
        for name, value in (("batch_size", batch_size), ("length", length)):
            if _whole(name, value) == 0:
                raise ValueError(f"{name}: expected a whole number >= 1, got 0")
        rows = simplest_fraction("train_ratio", train_ratio)
        return cls(rows / (batch_size * length), start=start)

    @property
    def ratio(self) -> Fraction:
        """Gradient steps for each env step."""
        return self._ratio

    def __call__(self, steps: int) -> int:
        """Gradient steps that have become due; they count as done from now on.

        Args:
            steps: Env steps ever collected, such as `SequenceReplayBuffer.steps`.

        Raises:
            ValueError: Fewer steps than at the call before.
        """
        steps = _whole("steps", steps)
        if self._steps is not None and steps < self._steps:
            raise ValueError(
                f"steps: expected at least the {self._steps:,} of the call before, got {steps:,}; "
                f"give the steps ever collected, and load the state that belongs to this replay"
            )
        if self._start is None:
            self._start = steps
        counted = max(steps, self._start) - max(self._steps or 0, self._start)
        self._steps = steps
        self._owed += self._ratio * counted
        due = math.floor(self._owed)
        self._owed -= due
        return due

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: where counting began, the steps of the last call, what is owed since."""
        return {"start": self._start, "steps": self._steps, "owed": str(self._owed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the one of `state_dict` would have.

        The ratio is not part of the state: another one holds for the steps from here on.

        Raises:
            ValueError: The state is none that `state_dict` gave.
        """
        try:
            start, steps = state["start"], state["steps"]
            start = None if start is None else _whole("start", start)
            steps = None if steps is None else _whole("steps", steps)
            owed = Fraction(str(state["owed"]))
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"state: expected what ReplayRatio.state_dict gave, got {dict(state)}; save it anew"
            ) from error
        self._start, self._steps, self._owed = start, steps, owed


def simplest_fraction(name: str, value: float | Fraction) -> Fraction:
    """The fraction that a number >= 0 stands for, such as 3/10 for 0.3.

    Args:
        name: What the error calls it.
        value: A float stands for the fraction of a denominator up to a million that rounds to it,
            if there is one, or else for its decimal digits.

    Raises:
        ValueError: It is negative or not finite.

    Example:
        >>> print(simplest_fraction("ratio", 0.3), simplest_fraction("ratio", 1 / 3))
        3/10 1/3
    """
    if isinstance(value, Fraction):
        exact = value
    elif math.isfinite(value):
        exact = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
        if float(exact) != value:
            exact = Fraction(repr(float(value)))
    else:
        exact = Fraction(-1)
    if exact < 0:
        raise ValueError(f"{name}: expected a finite number >= 0, got {value}; give one")
    return exact


def _whole(name: str, value: int) -> int:
    """A count as an int.

    Raises:
        ValueError: It is not a whole number >= 0.
    """
    if int(value) != value or value < 0:
        raise ValueError(f"{name}: expected a whole number >= 0, got {value}; give a count")
    return int(value)
