"""Reads untrusted JSON within limits, and checks the types of its values.

A file may contain anything, also with a right checksum. So every value is checked here before it is
used; a wrong one is a ValueError that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np

MOST = 1 << 62
"""No count, id or offset is larger: so the sum of two fits 64 bits."""

_MOST_BYTES = 64 << 20
_MOST_DEPTH = 100


def check_extent(data: bytes, value: object, most_depth: int = _MOST_DEPTH) -> None:
    """Refuse JSON that is too long, or nested too deeply, to be read again."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"expected at most {_MOST_BYTES} bytes of JSON, got {len(data)}")
    if data.count(b"[") + data.count(b"{") <= most_depth:
        return  # the common case
    level = [value]
    for _ in range(most_depth + 1):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise ValueError(f"expected JSON of at most {most_depth} levels, got more")


def json_text(
    value: object,
    most_depth: int = _MOST_DEPTH,  # of nested lists and objects, as far as it can be read again
    name: str = "value",  # for the message
) -> bytes:
    """Compact JSON that can be read again; TypeError for other values."""
    try:
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        check_extent(data, value, most_depth)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{name}: expected plain JSON values, got others: {error}; convert them first"
        ) from error
    return data


def text_for_all(value: object, separators: tuple[str, str] | None = None) -> str:
    """JSON for any reader: numbers that are not finite become the texts "nan", "inf" and "-inf"."""
    try:
        return json.dumps(value, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_with_texts(value), separators=separators, allow_nan=False)


def _with_texts(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _with_texts(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_with_texts(one) for one in cast("Sequence[object]", value)]
    return value


def parse(data: bytes, *, is_finite: bool = True) -> dict[str, object]:
    """The JSON object in some bytes; `is_finite` refuses infinite numbers and nan."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"expected at most {_MOST_BYTES} bytes of JSON, got {len(data)}")
    try:
        if is_finite:
            value = json.loads(data, parse_constant=_refuse, parse_float=_finite)
        else:
            value = json.loads(data)
    except RecursionError:
        raise ValueError(f"expected JSON of at most {_MOST_DEPTH} levels, got more") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"expected JSON in UTF-8, got other bytes at {error.start}") from None
    except ValueError as error:
        raise ValueError(f"expected JSON, got something else: {error}") from None
    check_extent(data, value)
    return mapping(value, "JSON")


def member(data: Mapping[str, object], key: str) -> object:
    """The value of a key."""
    if key not in data:
        raise ValueError(f"{key}: expected a value, got none")
    return data[key]


def whole(value: object, name: str, least: int = 0, most: int = MOST) -> int:
    """The value, if it is a whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(
            f"{name}: expected a whole number from {least} to {most}, got {_short(value)}"
        )
    return value


def text(value: object, name: str) -> str:
    """The value, if it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a text, got {_short(value)}")
    return value


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping; else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def mapping(value: object, name: str) -> dict[str, object]:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object, got {_short(value)}")
    return cast("dict[str, object]", value)


def items(value: object, name: str, count: int | None = None) -> list[object]:
    """The value, if it is a list, of ``count`` values where that is given."""
    found = cast("list[object]", value) if isinstance(value, list) else None
    if found is None or count not in (None, len(found)):
        expected = "a list" if count is None else f"a list of {count} values"
        raise ValueError(f"{name}: expected {expected}, got {_short(value)}")
    return found


def array_like(value: object, name: str, other: np.ndarray) -> np.ndarray:
    """The value, if it is an array of the dtype and shape of another one."""
    if isinstance(value, np.ndarray) and (value.dtype, value.shape) == (other.dtype, other.shape):
        return value
    raise ValueError(f"{name}: expected an array {other.dtype} {other.shape}, got another value")


def _parts(value: object) -> list[object]:
    """The lists and objects in a list or an object."""
    if isinstance(value, dict):
        inner = list(cast("dict[str, object]", value).values())
    else:
        inner = list(cast("list[object]", value)) if isinstance(value, list | tuple) else []
    return [part for part in inner if isinstance(part, dict | list | tuple)]


def _short(value: object) -> str:
    """A short form of any value, for messages."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return f"a number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refuse(digits)
    return number


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"the number {number[:20]}, which is not finite")
