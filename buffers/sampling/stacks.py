"""Frame stacks, rebuilt from frames of which each is stored once."""

from __future__ import annotations

import numpy as np

from stepwell.buffers.spec import Field

__all__ = ["pad_before", "stack_copies", "stack_views"]


def stack_views(frames: np.ndarray, k: int, first: int, count: int) -> np.ndarray:
    """Stacks ``[B, count, k, ...]`` as views into frames ``[B, C, ...]``, C-contiguous.

    Args:
        frames: Single frames.
        k: Frames of a stack.
        first: Place of the first stack's first frame.
        count: Number of stacks.
    """
    batch, frame = frames.strides[:2]
    shape = (len(frames), count, k, *frames.shape[2:])
    strides = (batch, frame, frame, *frames.strides[2:])
    # A bare ndarray: as_strided takes as long as a small batch.
    return np.ndarray(shape, frames.dtype, frames, first * frame, strides)


def pad_before(frames: np.ndarray, missing: np.ndarray, field: Field) -> None:
    """Fill in what the env put before an episode's first frame.

    Args:
        frames: [B, C, ...]; changed.
        missing: [B] how many frames are not there.
        field: What they are.
    """
    for b in np.flatnonzero(missing).tolist():
        count = int(missing[b])
        frames[b, :count] = frames[b, count] if field.stack_padding == "repeat" else 0


def stack_copies(frames: np.ndarray, rows: np.ndarray, field: Field, out: np.ndarray) -> None:
    """Stacks that reach neither across a reset nor into padding.

    Args:
        frames: [B, C + k - 1, ...] single frames, the newest of the first stack at k - 1.
        rows: [B, C] each row's place in its episode, or -1 where there is no row.
        field: What they are.
        out: [B, C, k, ...] memory for the stacks.
    """
    k, (batch, columns) = field.stack, rows.shape
    age = np.arange(k)[::-1]
    row, place = rows[:, :, None], np.arange(columns)[None, :, None] + (k - 1)
    is_there = row >= age
    back = np.minimum(age, np.maximum(row, 0)) if field.stack_padding == "repeat" else age
    number = np.arange(batch)[:, None, None] * frames.shape[1] + place - back
    flat = frames.reshape(batch * frames.shape[1], *field.shape)
    target = out.reshape(batch * columns * k, *field.shape)
    flat.take(number.ravel(), axis=0, out=target, mode="clip")
    if field.stack_padding == "repeat":
        is_there = np.broadcast_to(row >= 0, is_there.shape)
    empty = np.flatnonzero(~is_there)
    if len(empty):
        target[empty] = 0
