"""The number of examples of a property test that does not take the run's own."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(number: int) -> int:
    """That many with --proofs and --full; a quarter of them, at least five, by default."""
    return number if settings().max_examples >= 40 else max(5, number // 4)
