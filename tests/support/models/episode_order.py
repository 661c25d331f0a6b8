"""The order of episodes by any value, as a slow model has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cmp_to_key
from typing import Any, TypeVar

_T = TypeVar("_T")


def in_order(
    items: Iterable[_T], value_of: Callable[[_T], Any], *, descending: bool = False
) -> list[_T]:
    """Numbers, then texts, then all others, whichever way the values are sorted."""

    def compare(a: _T, b: _T) -> int:
        one, other = value_of(a), value_of(b)
        if _rank(one) != _rank(other):
            return _rank(one) - _rank(other)
        if _rank(one) == 2 or one == other:
            return 0
        return 1 if (one > other) != descending else -1

    return sorted(items, key=cmp_to_key(compare))


def _rank(value: Any) -> int:
    if isinstance(value, str):
        return 1
    return 0 if isinstance(value, int | float) and value == value else 2
