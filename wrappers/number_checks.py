"""Checks of arguments that are numbers: counts, sizes, probabilities."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

__all__ = ["check_size", "check_sticky", "check_whole", "is_real", "is_whole"]


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for integers of Python and NumPy, but not for booleans.

    Example:
        >>> is_whole(3), is_whole(True), is_whole(3.0)
        (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Return True for real numbers of Python and NumPy, but not for booleans.

    Example:
        >>> is_real(0.5), is_real(False), is_real("0.5")
        (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(
    name: str, value: object, least: int, hint: str = "", *, most: int | None = None
) -> None:
    """Raise unless the value is a whole number from `least` to `most`.

    Raises:
        ValueError: It is another value.
    """
    if not is_whole(value) or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {allowed}, got {value!r}{hint}")


def check_size(size: Any, hint: str = "") -> None:
    """Raise unless the value is (rows, columns), each at least 1.

    Raises:
        ValueError: It is another value.
    """
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(is_whole(n) and n >= 1 for n in size):
        raise ValueError(f"size: expected (rows, columns), each at least 1, got {size!r}{hint}")


def check_sticky(sticky: object) -> None:
    """Raise unless the value is a probability below 1.

    Raises:
        ValueError: It is another value.
    """
    if not is_real(sticky) or not 0 <= sticky < 1:
        raise ValueError(
            f"sticky: expected a probability from 0 to below 1, got {sticky!r}; 0 is off"
        )
