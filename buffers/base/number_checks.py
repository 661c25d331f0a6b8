"""Arguments, checked: counts, sizes, probabilities, choices; and numbers as text, as 100k."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np

from .untrusted_json import MOST

MOST_ENVS = 1 << 16
"""Envs of a vector env whose envs are objects of Python or of an emulator."""


def is_whole(value: object) -> TypeGuard[int]:
    """True for integers of Python and NumPy, but not for booleans."""
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


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(map(repr, choices))}, got {value!r}")


def is_real(value: object) -> TypeGuard[float]:
    """Return True for real numbers of Python and NumPy, but not for booleans."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(name: str, value: object) -> None:
    """Refuse a value that is not a number above 0."""
    if not is_real(value) or not value > 0:
        raise ValueError(f"{name}: expected a number above 0, got {value!r}")


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


_NUMBER = re.compile(
    r"([+-]?[0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?) *([a-z]*)", re.IGNORECASE
)
_TOO_MANY = 2**63  # for the 64-bit counters of a store
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTES = {
    **{unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))},
    **{unit: 1024**power for power, unit in enumerate(("", "kib", "mib", "gib", "tib"))},
    **_COUNTS,
}


def count_in(option: str, text: str | None, least: int = 1) -> int | None:
    """Parse a count such as ``100_000``, ``1e5`` or ``100k``; None where it was not given."""
    expected = f"a whole number >= {least}, such as 100_000, 1e5 or 100k"
    return _parsed(option, text, _COUNTS, least, expected)


def number_of_bytes(option: str, text: str | None) -> int | None:
    """Parse a number of bytes, such as "2GB" or "1 MiB"; None where it was not given."""
    return _parsed(option, text, _BYTES, 1, "bytes such as 500MB or 2GiB")


def _parsed(
    option: str, text: str | None, units: Mapping[str, int], least: int, expected: str
) -> int | None:
    """Parse a number with a unit; ``expected`` is for the message."""
    if text is None:
        return None
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and match[2].lower() in units:
        number = Decimal(match[1].replace("_", "").replace(",", "")) * units[match[2].lower()]
        if number >= _TOO_MANY:
            expected = "a smaller number, below 2**63"
        elif number >= least and number == number.to_integral_value():
            return int(number)
    raise ValueError(f"{option}: expected {expected}, got {text!r}")
