"""Checks of arguments that are numbers: counts, sizes, probabilities."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

__all__ = ["MOST_ENVS", "check_size", "check_sticky", "check_whole", "is_real", "is_whole"]

MOST_ENVS = 1 << 16
"""Envs of a vector env whose envs are objects of Python or of an emulator."""


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for integers of Python and NumPy, but not for booleans."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Return True for real numbers of Python and NumPy, but not for booleans."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(
    name: str, value: object, least: int, hint: str = "", *, most: int | None = None
) -> None:
    """Raise unless the value is a whole number from `least` to `most`."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {allowed}, got {value!r}{hint}")


def check_size(size: Any, hint: str = "") -> None:
    """Raise unless the value is (rows, columns), each at least 1."""
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(is_whole(n) and n >= 1 for n in size):
        raise ValueError(f"size: expected (rows, columns), each at least 1, got {size!r}{hint}")


def check_sticky(sticky: object) -> None:
    """Raise unless the value is a probability below 1."""
    if not is_real(sticky) or not 0 <= sticky < 1:
        raise ValueError(
            f"sticky: expected a probability from 0 to below 1, got {sticky!r}; 0 is off"
        )
