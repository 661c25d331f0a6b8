"""Chooses between numpy and the optional compiled core, ``_native.c``.

Both give the same results, bit for bit. ``STEPWELL_PURE=1`` in the environment chooses numpy.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

_NAME = "stepwell.buffers.base._native"
_INTERFACE = 6  # as in _native.c
_Memory: TypeAlias = np.ndarray | memoryview
Forms: TypeAlias = tuple[Any, ...]


class Core(Protocol):
    """The functions of the compiled core, with what they return."""

    # `_native.c` says what each takes, and checks it: a call that cannot be right raises an error
    # before anything is written. Memory is contiguous.

    INTERFACE: int
    HAS_FAST_CRC: int
    tree_set: Callable[..., int]
    tree_draw: Callable[..., None]
    copy_runs: Callable[..., None]
    apply_deltas: Callable[..., None]
    find_patches: Callable[..., int]
    apply_patches: Callable[..., list[int]]
    draw_items: Callable[..., None]
    find_steps: Callable[..., tuple[int, bool] | None]
    find_runs: Callable[..., int | None]
    crc32: Callable[..., int]
    is_chunk: Callable[..., bool]
    stepping: Callable[..., Callable[[Any], Any]]
    are_usual: Callable[..., bool]


def _core() -> Core | None:
    wanted = os.environ.get("STEPWELL_PURE", "")
    if wanted not in ("", "0", "1"):
        raise ValueError(
            f"STEPWELL_PURE: expected 1 for numpy, or 0 or nothing for the compiled core where it "
            f"was built, got {wanted!r}"
        )
    if wanted == "1":
        return None
    try:
        found = cast("Core", importlib.import_module(_NAME))
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        return None
    if found.INTERFACE != _INTERFACE:
        raise ImportError(
            f"{_NAME}: expected interface {_INTERFACE}, got {found.INTERFACE} of an older build; "
            f"install stepwell again, or set STEPWELL_PURE=1",
            name=_NAME,
        )
    return found


core = _core()
"""The compiled core; None where numpy is used."""


def forms_of(*forms: tuple[np.dtype[Any] | None, tuple[int, ...] | None]) -> Forms:
    """Dtypes and shapes of arrays, as the compiled core takes them."""
    array = np.ndarray
    return (array, array.dtype, array.shape, *(part for form in forms for part in form))


def crc32(data: _Memory | bytes | bytearray, value: int = 0) -> int:
    """The CRC-32 of some bytes, as of `zlib.crc32`, by the quicker of the two."""
    if core is None or not core.HAS_FAST_CRC:
        return zlib.crc32(cast("bytes", data), value)
    return core.crc32(data, value)


def path() -> str:
    """The path that is taken, in words."""
    return "numpy alone" if core is None else "compiled core"
