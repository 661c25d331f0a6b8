"""Checks of arguments that are numbers: counts, sizes, lengths, probabilities."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

import numpy as np

from .untrusted_json import MOST

MOST_ENVS = 1 << 16
"""Envs of a vector env whose envs are objects of Python or of an emulator."""


def is_whole(value: object) -> TypeGuard[int]:
    """True for integers of Python and NumPy, but not for booleans.

    Example:
        >>> is_whole(3), is_whole(np.int64(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole_number(
    name: str,  # of the argument, for the message
    value: Any,
    least: int,
) -> int:
    """The value as an int up to MOST; a float without a fraction, such as 1e6, is accepted."""
    try:
        fits = not isinstance(value, bool) and value >= least and value % 1 == 0
    except TypeError:  # of something that is no number
        fits = False
    if not fits:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
    if value > MOST:
        raise ValueError(f"{name}: expected a whole number up to {MOST}, got {value!r}")
    return int(value)


def check_whole(
    name: str, value: object, least: int, most: int | None = None, hint: str = ""
) -> None:
    """Refuse a value that is not an integer from ``least`` to ``most``."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {allowed}, got {value!r}{hint}")


def is_real(value: object) -> TypeGuard[float]:
    """Return True for real numbers of Python and NumPy, but not for booleans."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


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
