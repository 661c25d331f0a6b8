"""Chooses between numpy and the optional compiled core, ``_native.c``.

Both give the same results, bit for bit. ``STEPWELL_PURE=1`` in the environment chooses numpy.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

_NAME = "stepwell.buffers.base._native"
_INTERFACE = 6  # as in _native.c
_Memory: TypeAlias = np.ndarray | memoryview
Forms: TypeAlias = tuple[Any, ...]


class Core(Protocol):
    """The functions of the compiled core."""

    # Memory is contiguous. A call that cannot be right raises an error before anything is written.

    INTERFACE: int
    HAS_FAST_CRC: int

    def tree_set(
        self, tree: _Memory, capacity: int, low: int, stop: int, ids: _Memory, masses: _Memory, /
    ) -> int:
        """As `SumTree.update`, with the memory of the whole tree."""

    def tree_draw(
        self, tree: _Memory, capacity: int, low: int, points: _Memory, ids: _Memory, /
    ) -> None:
        """As `SumTree.draw`, with the memory of the whole tree and that of the ids."""

    def copy_runs(
        self,
        out: _Memory,
        sources: list[memoryview],
        begins: list[int],
        targets: list[int],
        sizes: list[int],
        /,
    ) -> None:
        """Copy ranges of bytes; see `PlainCopies`."""

    def apply_deltas(
        self,
        deltas: _Memory | bytes,
        rows: int,
        row_bytes: int,
        start: int,
        out: _Memory,
        /,
    ) -> None:
        """As `storage.patches.apply_deltas`."""

    def find_patches(self, rows: _Memory, row_bytes: int, out: _Memory, /) -> int:
        """As `storage.patches.patches_of`: the length of what is then in ``out``; 0: too long."""

    def apply_patches(
        self,
        out: _Memory,
        sources: list[memoryview] | list[bytes] | list[memoryview | bytes],
        places: _Memory,
        block_rows: int,
        row_bytes: int,
        columns: int,
        /,
    ) -> list[int]:
        """Restore rows of many chunks at once; see `CodedCopies`."""

    def draw_items(
        self, running: _Memory, shift: _Memory, known: int, shares: _Memory, found: _Memory, /
    ) -> None:
        """As `ItemCounts.drawn`."""

    def find_steps(
        self,
        table: _Memory,
        records: _Memory,
        base: int,
        chunk: _Memory,
        start: _Memory,
        n: int,
        frames: int,
        is_joined: int,
        found: _Memory,
        flags: _Memory,
        room: _Memory,
        /,
    ) -> tuple[int, bool] | None:
        """As `RowReader.steps`; None where numpy must look itself."""

    def find_runs(
        self,
        table: _Memory,
        records: _Memory,
        chunk: _Memory,
        place: _Memory,
        rows: _Memory,
        target: _Memory,
        room: _Memory,
        /,
    ) -> int | None:
        """As `RowReader.segments`; None where numpy must look itself."""

    def crc32(self, data: _Memory | bytes | bytearray, value: int, /) -> int:
        """As `zlib.crc32`, several times as fast where ``HAS_FAST_CRC`` is 1."""

    def is_chunk(
        self,
        buffer: _Memory | bytes | bytearray,
        origin: int,
        nbytes: int,
        rows: int,
        forms: bytes,
        /,
    ) -> bool:
        """True if `ChunkDecoder.check` accepts a chunk; False where that must look itself."""

    def stepping(
        self,
        envs: Sequence[Any],
        place: int,
        forms: Forms,
        others: Callable[[Any], Any],
        /,
    ) -> Callable[[Any], Any]:
        """As `EnvResults.stepping`."""

    def are_usual(
        self, arrays: tuple[Any, ...], forms: Forms, infos: object, count: int, key: str, /
    ) -> bool:
        """True if arrays have these forms, and ``count`` infos have no such key, or False there."""


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
