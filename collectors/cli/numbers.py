"""Numbers as people write them on a command line."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["info_field", "number_of_bytes", "screen_size", "whole_number"]

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


def whole_number(option: str, text: str, least: int = 1) -> int:
    """Read a count.

    Args:
        option: Name for the error message.
        text: What was written.
        least: The smallest number that makes sense.

    Raises:
        ValueError: It is no whole number, or too small or large.

    Example:
        >>> [whole_number("--steps", text) for text in ("100_000", "1e5", "100k", "0.1M")]
        [100000, 100000, 100000, 100000]
    """
    number = _read(option, text, _COUNTS)
    if number is None or number < least:
        raise ValueError(
            f"{option}: expected a whole number >= {least}, such as 100_000, 1e5 or 100k, "
            f"got {text!r}"
        )
    return number


def number_of_bytes(option: str, text: str) -> int:
    """Read a number of bytes.

    Raises:
        ValueError: It is none.

    Example:
        >>> number_of_bytes("--capacity-bytes", "2GB"), number_of_bytes("--capacity-bytes", "1 MiB")
        (2000000000, 1048576)
    """
    number = _read(option, text, _BYTES)
    if number is None or number < 1:
        raise ValueError(f"{option}: expected bytes such as 500MB or 2GiB, got {text!r}")
    return number


def screen_size(option: str, text: str) -> tuple[int, int] | None:
    """Read rows and columns; None stands for the screen as it is.

    Raises:
        ValueError: It is neither two numbers, nor one, nor "screen".

    Example:
        >>> [screen_size("--size", text) for text in ("84x96", "64", "screen")]
        [(84, 96), (64, 64), None]
    """
    if text == "screen":
        return None
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    if match is None:
        raise ValueError(
            f"{option}: expected ROWSxCOLUMNS such as 84x84, one number for both, or 'screen' to "
            f"keep the screen's, got {text!r}"
        )
    return int(match[1]), int(match[2] or match[1])


def info_field(option: str, text: str) -> tuple[str, int | float | bool | None]:
    """Read the name of an info field, and the value that stands for "not there"; None: not said.

    Raises:
        ValueError: There is no name, or the value is no number and neither true nor false.

    Example:
        >>> info_field("--info", "lives"), info_field("--info", "raw_reward=nan")
        (('lives', None), ('raw_reward', nan))
    """
    name, equals, value = text.partition("=")
    if name and not equals:
        return name, None
    words = {"true": True, "false": False}
    for kind in (int, float, lambda word: words[word.lower()]):
        try:
            if name:
                return name, kind(value)
        except (ValueError, KeyError):
            continue
    raise ValueError(
        f"{option}: expected a field's name, or with it the value for 'not there' as in "
        f"lives=-1, speed=nan or won=false, got {text!r}"
    )


def _read(option: str, text: str, units: dict[str, int]) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    number = Decimal(match[1].replace("_", "").replace(",", "")) * units[match[2].lower()]
    if number >= _TOO_MANY:
        raise ValueError(
            f"{option}: expected a number below 2**63, got {text!r}; give a smaller one"
        )
    return int(number) if number == number.to_integral_value() else None
