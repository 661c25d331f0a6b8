"""Numbers as text, such as 100k and 2GB: of the command line, and of settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

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
    if text is None:
        return None
    number = _parsed(option, text, _COUNTS)
    if number is None or number < least:
        raise ValueError(
            f"{option}: expected a whole number >= {least}, such as 100_000, 1e5 or 100k, "
            f"got {text!r}"
        )
    return number


def number_of_bytes(option: str, text: str | None) -> int | None:
    """Parse a number of bytes, such as "2GB" or "1 MiB"."""
    if text is None:
        return None
    number = _parsed(option, text, _BYTES)
    if number is None or number < 1:
        raise ValueError(f"{option}: expected bytes such as 500MB or 2GiB, got {text!r}")
    return number


def _parsed(option: str, text: str, units: Mapping[str, int]) -> int | None:
    """Parse a number with a unit; None if it is something else."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    number = Decimal(match[1].replace("_", "").replace(",", "")) * units[match[2].lower()]
    if number >= _TOO_MANY:
        raise ValueError(
            f"{option}: expected a number below 2**63, got {text!r}; give a smaller one"
        )
    return int(number) if number == number.to_integral_value() else None
