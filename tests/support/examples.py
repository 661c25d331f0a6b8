"""Numbers that depend on the tier of the run: the default one, ``--proofs``, or ``--full``."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["by_tier", "examples"]


def by_tier(default: int, proofs: int, full: int) -> int:
    """The number for the tier of this run."""
    number = settings().max_examples  # the profile that tests/conftest.py has loaded
    return default if number < 40 else proofs if number < 400 else full


def examples(number: int) -> int:
    """The number of examples of a property test that does not take the run's own.

    It is `number` with ``--proofs`` and ``--full``; a tenth of it, at least ten, by default.
    """
    return by_tier(min(number, max(10, number // 10)), number, number)
