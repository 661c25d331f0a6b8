"""Tell whether what was given is a number of the kind that is needed."""

from __future__ import annotations

import numbers

__all__ = ["check_whole", "is_real", "is_whole"]


def is_whole(value: object) -> bool:
    """Whether it is an integer, Python's or numpy's; True and False are none.

    Example:
        >>> is_whole(3), is_whole(True), is_whole(3.0)
        (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether it is a number, Python's or numpy's; True and False are none.

    Example:
        >>> is_real(0.5), is_real(False), is_real("0.5")
        (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(name: str, value: int, least: int, hint: str = "") -> None:
    """Raise unless the value is a whole number of at least `least`.

    Raises:
        ValueError: It is not.
    """
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}: expected a whole number from {least}, got {value!r}{hint}")
