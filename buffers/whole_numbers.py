"""Checks of arguments that are whole numbers: counts, sizes and lengths."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from .json_values import MOST

__all__ = ["check_whole", "is_whole", "whole_number"]


def is_whole(value: object) -> TypeGuard[int]:
    """True for integers of Python and NumPy, but not for booleans.

    Example:
        >>> is_whole(3), is_whole(np.int64(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a value that is not an integer from ``least`` to ``most``."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {allowed}, got {value!r}")


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
