"""The replay beneath a buffer that is a ring of so many steps."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Codec, Field

__all__ = ["check_whole", "checked_shape", "new_replay", "row_field"]


def new_replay(
    size: int,
    path: str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
) -> SequenceReplayBuffer:
    """A replay that always keeps at least the newest ``size`` steps.

    It keeps up to a fifteenth more of them: a sixteenth of what it may keep goes at a time.

    Args:
        size: Steps.
        path: Folder of the store; None keeps everything in RAM.
        seed: Seed of all draws.

    Raises:
        ValueError: ``size`` is no whole number >= 1.
    """
    check_whole("size", size, 1)
    return SequenceReplayBuffer(path, capacity=size + size // 15 + 2, seed=seed)


def row_field(
    name: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    *,
    path: str | os.PathLike[str] | None,
    codec: Codec | None = None,
    stack: int = 1,
) -> Field:
    """A field that is kept for speed in RAM and for room on a disk, unless a codec is named.

    Args:
        name: Its name.
        dtype: Its dtype.
        shape: Shape of one row.
        path: Folder of the store; None in RAM.
        codec: How the rows are kept.
        stack: Frames that are stacked when it is drawn.
    """
    is_image = dtype.itemsize == 1
    chosen: Codec = codec or ("zstd" if path is not None and is_image else "raw")
    return Field(name, dtype.name, shape, chosen, stack)


def checked_shape(name: str, shape: object) -> tuple[int, ...]:
    """The shape of an array.

    Raises:
        ValueError: It is no sequence of whole numbers >= 1.
    """
    sizes: Sequence[object] | None = list(shape) if isinstance(shape, Sequence) else None
    whole = [
        int(size)
        for size in sizes or ()
        if isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 1
    ]
    if sizes is None or len(whole) < len(sizes):
        raise ValueError(
            f"{name}: expected a tuple of whole numbers >= 1, as in (3, 64, 64), got {shape!r}"
        )
    return tuple(whole)


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Raises:
        ValueError: It is.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or int(value) < least:  # type: ignore[call-overload]
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
