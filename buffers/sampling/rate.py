"""Fixed ratios of gradient steps, or samples, to env steps."""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NoReturn, Self

from ..base.errors import LimiterClosed, not_copied
from ..base.number_checks import whole_number

_MAX_DENOMINATOR = 1_000_000


class ReplayRatio:
    """Counts the gradient steps that are due for env steps, exactly: fractions are carried over.

    A call returns the gradient steps that have become due since the previous call; after any number
    of calls their sum is ``floor(ratio * steps)``. Env steps before the first call are the prefill:
    they do not count, and the first call returns 0. ``start`` sets the step from which to count:
    with ``start=0`` the prefill counts too.

    The `Ratio` of DreamerV3 returns 1 at its first call and ignores earlier steps; sheeprl's counts
    all of them, as ``start=0`` does here.

    Args:
        ratio: Gradient steps for each env step, >= 0; at 0 none is ever due. A float is taken as
            the simplest fraction that rounds to it: 0.3 is 3/10, and 1 / 3 is a third.
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
        self._start = None if start is None else whole_number("start", start, 0)
        self._steps: int | None = None
        self._owed = Fraction(0)

    @classmethod
    def from_train_ratio(
        cls, train_ratio: float, *, batch_size: int, length: int, start: int | None = None
    ) -> Self:
        """Convert DreamerV3's train ratio: replayed rows per env step (Hafner et al. 2023).

        Args:
            train_ratio: Rows that the learner sees for each env step.
            batch_size: Sequences in a batch, B.
            length: Rows in a sequence, T.
            start: See the class.

        Example:
            >>> ReplayRatio.from_train_ratio(512, batch_size=16, length=64).ratio
            Fraction(1, 2)
        """
        batch_size = whole_number("batch_size", batch_size, 1)
        length = whole_number("length", length, 1)
        rows = simplest_fraction("train_ratio", train_ratio)
        return cls(rows / (batch_size * length), start=start)

    @property
    def ratio(self) -> Fraction:
        """Gradient steps for each env step."""
        return self._ratio

    def __call__(self, steps: int) -> int:
        """Return the gradient steps that have become due; they count as done from now on.

        Args:
            steps: Env steps collected so far, such as `SequenceReplayBuffer.steps`.

        Raises:
            ValueError: ``steps`` is lower than in the previous call.
        """
        steps = whole_number("steps", steps, 0)
        if self._steps is not None and steps < self._steps:
            raise ValueError(
                f"steps: expected at least the {self._steps:,} of the last call, got {steps:,}; "
                f"pass all steps collected so far, and load the state saved with this replay"
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
        """The state as plain JSON data: the start, the last ``steps``, and the fraction owed."""
        return {"start": self._start, "steps": self._steps, "owed": str(self._owed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`.

        The ratio is not part of the state: this object's ratio applies to all further steps.

        Raises:
            ValueError: The state is not one of `state_dict`.
        """
        try:
            start, steps = state["start"], state["steps"]
            start = None if start is None else whole_number("start", start, 0)
            steps = None if steps is None else whole_number("steps", steps, 0)
            # Not from decimals: a short text may have a large exponent.
            owed = Fraction(*map(int, str(state["owed"]).split("/", 1)))
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise ValueError(
                f"state: expected one of ReplayRatio.state_dict, got {dict(state)}; save a new one"
            ) from error
        self._start, self._steps, self._owed = start, steps, owed


def simplest_fraction(name: str, value: float | Fraction) -> Fraction:
    """Return the simplest fraction for a number >= 0, such as 3/10 for 0.3."""
    # A float becomes the fraction with a denominator up to a million that rounds to it, or, if
    # there is none, the fraction of its decimal digits.
    if isinstance(value, Fraction):
        exact = value
    elif isinstance(value, numbers.Real) and math.isfinite(value):
        number = value if isinstance(value, numbers.Rational) else float(value)
        exact = Fraction(number).limit_denominator(_MAX_DENOMINATOR)
        if float(exact) != value:
            exact = Fraction(repr(float(value)))
    else:
        exact = Fraction(-1)
    if exact < 0:
        raise ValueError(f"{name}: expected a finite number >= 0, got {value!r}; give one")
    return exact


class SampleLimiter:
    """Blocks the actor or the learner, whichever is ahead, to keep a fixed ratio between them.

    Call it before each action, from any number of threads::

        limiter.wait_to_insert(64, timeout=60)       # the actor's thread
        collector.collect(steps=64)

        limiter.wait_to_sample(1, timeout=60)        # the learner's thread
        learn(replay.sample_sequences(16, length=64))

    The steps of a call count as stored when the same thread calls the limiter again. A thread that
    ends calls ``wait_to_insert(0)``.

    The rule is that of Reverb's `SampleToInsertRatio` (Cassirer et al. 2021): up to ``min_steps``
    only the learner waits; then ``(steps - min_steps) * samples_per_insert - samples``
    stays between ``-slack`` and ``slack``. One side can always continue: a call that
    would move the balance by more than ``slack`` at once is an error.

    Args:
        samples_per_insert: Samples for each env step, > 0. Samples are counted in whatever unit
            `wait_to_sample` is given: batches as in `ReplayRatio`, or rows as in DreamerV3.
        min_steps: Env steps that must be stored before the first sample.
        slack: Samples by which either side may be ahead; at least 1, and at least
            ``samples_per_insert``.

    Raises:
        ValueError: A number is out of range, or ``slack`` is so low that both sides could wait
            forever.

    Example:
        >>> limiter = SampleLimiter(0.5, min_steps=100, slack=32)
        >>> limiter.wait_to_insert(100)  # the prefill
        >>> limiter.wait_to_insert(64)  # 32 samples ahead of the learner from here on
        >>> limiter.wait_to_sample(10)
        >>> limiter.wait_to_insert(64, timeout=0)
        Traceback (most recent call last):
            ...
        TimeoutError: waited 0 s to insert 64 steps: expected 32 samples drawn, got 10 after 164
        steps; check that the learner still samples, or give more slack
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a limiter", "make one in the process whose threads it holds back")

    def __init__(
        self, samples_per_insert: float | Fraction, *, min_steps: int, slack: float | Fraction
    ) -> None:
        self._ratio = simplest_fraction("samples_per_insert", samples_per_insert)
        self._slack = simplest_fraction("slack", slack)
        self._min_steps = whole_number("min_steps", min_steps, 0)
        if self._ratio == 0:
            raise ValueError(
                "samples_per_insert: expected a number > 0, got 0; a learner that never samples "
                "needs no limiter"
            )
        least = max(Fraction(1), self._ratio)
        if self._slack < least:
            raise ValueError(
                f"slack: expected at least {_text(least)} samples, got {slack}: with less both "
                f"sides could wait forever; give the samples of one insert or one draw, or more"
            )
        self._changed = threading.Condition()
        self._stored = 0
        self._begun: dict[int, int] = {}
        self._sampled = 0
        self._is_closed = False

    def wait_to_insert(self, steps: int, timeout: float | None = None) -> None:
        """Wait until this number of env steps may be collected.

        Args:
            steps: Env steps, over all envs, that will be stored before this thread calls again;
                with 0 the call returns at once.
            timeout: Seconds to wait at most; None waits forever.

        Raises:
            TimeoutError: The learner did not sample enough in that time; nothing was counted.
            LimiterClosed: `close` was called before or during the wait.
            ValueError: ``steps`` are worth more samples than ``slack``.
        """
        steps = whole_number("steps", steps, 0)
        _check_timeout(timeout)
        with self._changed:
            self._count_previous()
            worth = self._worth(self._inserted + steps) - self._worth(self._inserted)
            if worth > self._slack:
                raise ValueError(
                    f"steps: {steps:,} are worth {_text(worth)} samples, expected at most the "
                    f"slack of {_text(self._slack)}; insert fewer at once, or give more slack"
                )
            self._wait(lambda: self._may_insert(steps), timeout, lambda: self._no_room(steps))
            if steps:
                self._begun[threading.get_ident()] = steps

    def wait_to_sample(self, samples: int = 1, timeout: float | None = None) -> None:
        """Wait until this number of samples may be drawn; they then count as drawn.

        Args:
            samples: Number of samples, in the unit of ``samples_per_insert``.
            timeout: Seconds to wait at most; None waits forever.

        Raises:
            TimeoutError: The actor did not store enough in that time; nothing was counted.
            LimiterClosed: `close` was called before or during the wait.
            ValueError: ``samples`` are more than ``slack``.
        """
        samples = whole_number("samples", samples, 1)
        _check_timeout(timeout)
        if samples > self._slack:
            raise ValueError(
                f"samples: expected at most the slack of {_text(self._slack)}, got {samples:,}; "
                f"draw fewer at once, or give more slack"
            )
        with self._changed:
            self._count_previous()
            self._wait(lambda: self._may_sample(samples), timeout, lambda: self._too_few(samples))
            self._sampled += samples
            self._changed.notify_all()

    def close(self) -> None:
        """Raise `LimiterClosed` in all waiting threads and in every later call that would wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """Env steps stored and samples drawn, as plain JSON data.

        Steps that an actor is collecting now are not included: for an exact restart, take the state
        between two collect calls.
        """
        with self._changed:
            self._count_previous()
            return {"steps": self._stored, "samples": self._sampled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`.

        Raises:
            ValueError: The state is not one of `state_dict`.
        """
        try:
            steps = whole_number("steps", state["steps"], 0)
            samples = whole_number("samples", state["samples"], 0)
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"state: expected one of SampleLimiter.state_dict, got {dict(state)}; save a new "
                f"one"
            ) from error
        with self._changed:
            self._stored, self._sampled, self._begun = steps, samples, {}
            self._changed.notify_all()

    @property
    def _inserted(self) -> int:
        """Env steps that are stored, or that actors are allowed to collect."""
        return self._stored + sum(self._begun.values())

    def _count_previous(self) -> None:
        """Count the steps of this thread's previous call as stored."""
        steps = self._begun.pop(threading.get_ident(), 0)
        if steps:
            self._stored += steps
            self._changed.notify_all()

    def _worth(self, steps: int) -> Fraction:
        """Samples that a number of env steps is worth."""
        return max(0, steps - self._min_steps) * self._ratio

    def _may_insert(self, steps: int) -> bool:
        return steps == 0 or self._worth(self._inserted + steps) - self._sampled <= self._slack

    def _may_sample(self, samples: int) -> bool:
        balance = self._worth(self._stored) - self._sampled - samples
        return self._stored >= self._min_steps and balance >= -self._slack

    def _wait(
        self, may_go: Callable[[], bool], timeout: float | None, why: Callable[[], str]
    ) -> None:
        went = self._changed.wait_for(lambda: self._is_closed or may_go(), timeout)
        if self._is_closed:
            raise LimiterClosed(
                "the SampleLimiter is closed: expected an open one; end this thread, or make a new "
                "one"
            )
        if not went:
            raise TimeoutError(f"waited {timeout:g} s to {why()}, or give more slack")

    def _no_room(self, steps: int) -> str:
        needed = math.ceil(self._worth(self._inserted + steps) - self._slack)
        return (
            f"insert {steps:,} steps: expected {needed:,} samples drawn, got {self._sampled:,} "
            f"after {self._inserted:,} steps; check that the learner still samples"
        )

    def _too_few(self, samples: int) -> str:
        missing = (self._sampled + samples - self._slack) / self._ratio
        needed = self._min_steps + max(0, math.ceil(missing))
        return (
            f"draw {samples:,} samples: expected {needed:,} stored steps, got {self._stored:,} "
            f"after {self._sampled:,} samples; check that the actor still collects"
        )


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not 0 <= timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"timeout: expected seconds >= 0, or None to wait forever, got {timeout}; give one"
        )


def _text(value: Fraction) -> str:
    """Format a fraction: 0.5, 32, 1/3."""
    decimal = f"{float(value):g}"
    return decimal if Fraction(decimal) == value else str(value)
