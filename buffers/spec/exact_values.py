"""Numbers as they are declared: the one rule for every value that enters a store.

A value stays what it is: whole numbers and flags exactly, floats rounded to the declared precision.
Where the declared dtype cannot hold a value so, it is refused: numbers out of its range, and finite
ones that would become infinite. So are floats where whole numbers are declared, texts, None, other
objects, and arrays with masked entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_SHOWN = 60
_FLOATS, _BOOLS = (float, np.float32), (bool, np.bool_)
_MOST_BITS = 1024  # of a whole number below the largest float64
_OTHER_KINDS = ("fi", "fu", "ci", "cu", "cf", "cb")
"""Floats are not taken for whole numbers, also where they are whole: the next one is a fraction."""
_FLOAT, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)


class BadValue(ValueError):
    """An env, or a caller, gave what cannot be stored as it is."""


def exactly(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> Array:
    """The value as an array of that dtype and shape, not copied where it is one."""
    # It is a number or an array of numbers, also nested in lists. BadValue: it has another shape,
    # or the dtype cannot hold a value of it; ``name`` says what it is.
    array = numbers_in(value, name, dtype, shape)
    if array.shape != shape:
        raise BadValue(
            f"{name}: expected {_form(dtype, shape)}, got {shown(array)}; give values of the "
            f"declared space"
        )
    if array.dtype == dtype:
        return array
    kinds = array.dtype.kind + dtype.kind
    if kinds in _OTHER_KINDS:
        first = f" that begins with {array.flat[0]}" if array.size else ""
        raise BadValue(
            f"{name}: expected {_form(dtype, shape)}, got {_form(array.dtype, shape)}{first}; "
            f"declare another dtype, or convert it in a wrapper"
        )
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if kinds == "ff" and np.count_nonzero(np.isfinite(cast)) == cast.size:
        return cast  # rounded at most, as nearly always
    changed = _changed(array, cast)
    if changed.any():
        place = tuple(np.argwhere(changed)[0].tolist())
        at = f" at index {list(place)}" if place else ""
        raise BadValue(
            f"{name}: expected values that {dtype} can hold, got {array[place]} of "
            f"{array.dtype}{at}; declare another dtype, or convert it in a wrapper"
        )
    return cast


def numbers_in(
    value: Any, name: str, dtype: np.dtype[Any] | None = None, shape: tuple[int, ...] = ()
) -> Array:
    """The value, also nested in lists, as an array of numbers of any dtype and shape, unmasked."""
    # ``name`` and the declared ``dtype``, if any, and ``shape`` are for error messages.
    if type(value) is np.ndarray:
        array: Array = value
    elif isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise BadValue(
                f"{name}: expected {_form(dtype, shape)}, got a masked array with masked entries, "
                f"which have no values; give them values with filled()"
            )
        array = value.data
    else:
        try:
            array = np.asarray(value)
        except Exception as error:  # of any library whose object it is
            raise BadValue(
                f"{name}: expected {_form(dtype, shape)}, got {type(value).__qualname__} that is "
                f"no array of numbers ({error}); convert it in a wrapper"
            ) from None
    if array.dtype.kind not in "biufc":
        raise BadValue(
            f"{name}: expected {_form(dtype, shape)}, got "
            f"{shown(value if array.ndim == 0 else array.tolist())}; correct the env, or convert "
            f"it in a wrapper"
        )
    return array


def one_number(value: Any, name: str) -> float:
    """A reward as a float: a number, or an array of one."""
    if isinstance(value, _FLOATS):
        return float(value)
    if isinstance(value, int) and value.bit_length() < _MOST_BITS and float(value) == value:
        return float(value)
    array = numbers_in(value, name, _FLOAT, ())
    if array.size != 1:
        raise BadValue(
            f"{name}: expected one number, got {shown(value)}; make one of them, as "
            f"stepwell.wrappers.VectorReward does, which keeps them all"
        )
    return float(exactly(array.reshape(()), _FLOAT, (), name))


def one_flag(value: Any, name: str) -> bool:
    """A flag as a bool: True or False, 1 or 0, or an array of one of them."""
    if isinstance(value, _BOOLS):
        return bool(value)
    array = numbers_in(value, name, _BOOL, ())
    if array.size != 1:
        raise BadValue(
            f"{name}: expected one flag, True or False, got {shown(value)}; make one of them in a "
            f"wrapper, with any() or all()"
        )
    return bool(exactly(array.reshape(()), _BOOL, (), name))


def rewards_of(value: Any, n: int, name: str = "reward") -> npt.NDArray[np.float64]:
    """The rewards of n envs as float64 [n], copied; also from an array of one for each env."""
    array = numbers_in(value, name, _FLOAT, (n,))
    if array.size != n or array.shape[:1] != (n,):
        raise BadValue(
            f"{name}: expected one number for each of {n} envs, got {shown(array)}; make one of "
            f"them, as stepwell.wrappers.VectorReward does for one env"
        )
    return np.array(exactly(array.reshape(n), _FLOAT, (n,), name))


def flags_of(value: Any, n: int, name: str) -> npt.NDArray[np.bool_]:
    """The flags of n envs as bool [n]; also from an array of one for each env."""
    array = numbers_in(value, name, _BOOL, (n,))
    if array.size != n or array.shape[:1] != (n,):
        raise BadValue(
            f"{name}: expected one flag for each of {n} envs, got {shown(array)}; make one of "
            f"them, with any() or all()"
        )
    return exactly(array.reshape(n), _BOOL, (n,), name)


def shown(value: Any) -> str:
    """A value as in error messages: arrays by dtype and shape, others by a short text."""
    if isinstance(value, np.ndarray) and value.ndim:
        return _form(value.dtype, value.shape)
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _changed(array: Array, cast: Array) -> Array:
    """Marks the values that a cast has changed by more than rounding."""
    if cast.dtype.kind not in "fc":
        changed: Array = cast != array
        return changed
    changed = np.array(~np.isfinite(cast) & np.isfinite(array))
    if array.dtype.kind in "iu" and array.size and not _are_small(array, cast.dtype):
        # Of Python's numbers: a dtype that holds both kinds rounds as the cast has.
        real, kept = np.broadcast_to(cast.real, array.shape), np.flatnonzero(~changed)
        changed.flat[kept] = [int(real.flat[i]) != int(array.flat[i]) for i in kept]
    return changed


def _are_small(numbers: Array, dtype: np.dtype[Any]) -> bool:
    """Whole numbers up to that size are all floats of the dtype."""
    most = 2 ** (np.finfo(dtype).nmant + 1)
    if np.iinfo(numbers.dtype).max <= most:
        return True
    return bool(-most <= int(numbers.min()) and int(numbers.max()) <= most)


def _form(dtype: np.dtype[Any] | None, shape: tuple[int, ...]) -> str:
    if dtype is None:
        return "numbers"
    return f"{dtype} {shape}" if shape else f"one {dtype}"


def part_of(value: Any, key: str | int, name: str) -> Any:
    """One part of a Dict's or a Tuple's value; BadValue where it is not there."""
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        got = f"the keys {[*value]}" if isinstance(value, Mapping) else shown(value)
        raise BadValue(
            f"{name}: expected {key!r}, which the space declares, got {got}; give all parts"
        ) from None
