"""Stacks along the channels hold the frames' values, whatever a frame is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from stepwell.buffers.dropin.channel_stacks import ChannelStacks, RecentFrames

DTYPES = ("uint8", "bool", "int16", "float16", "int32", "float32", "float64", "int64")
SHAPES = ((5, 7, 1), (5, 7), (5, 7, 2), (5, 7, 3), (3, 2, 4), (3, 2, 5), (4, 4, 150), (1, 1, 3))


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 256, (*shape, 8), dtype=np.uint8)
    if dtype == "bool":
        return np.asarray(bits[..., 0] > 127)
    return bits.view(np.uint64)[..., 0].astype(np.int64).astype(dtype, casting="unsafe")


def stacked(frames: np.ndarray, is_flat: bool) -> np.ndarray:
    """Frames [B, k, H, W, C] (or without the C) side by side in the channels, slowly."""
    return np.stack(
        [
            np.concatenate([f[..., None] if is_flat else f for f in sequence], axis=-1)
            for sequence in frames
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_stacks_are_those_of_concatenated_frames(dtype: str) -> None:
    for shape, k, contiguous, batch in product(SHAPES, (2, 3, 4, 8), (True, False), (1, 3)):
        frames = numbers((batch, k + 1, *shape), dtype)
        stacks = ChannelStacks(shape, frames.dtype, k, contiguous=contiguous)
        pair = stacks.pair(frames)
        for got, first in zip(pair, (0, 1), strict=True):
            expected = stacked(frames[:, first : first + k], len(shape) == 2)
            assert got.dtype == frames.dtype
            assert got.shape == expected.shape
            assert np.ascontiguousarray(got).tobytes() == expected.tobytes()
            assert got.flags.c_contiguous or not contiguous
        if not contiguous:
            turned = np.transpose(pair[0], (0, 3, 1, 2))
            assert all(stack.flags.c_contiguous for stack in turned)


@pytest.mark.parametrize("shape", SHAPES)
def test_recent_frames_are_padded_at_a_reset_and_belong_to_the_caller(
    shape: tuple[int, ...],
) -> None:
    k, frames = 3, numbers((8, *shape), "uint8")
    stacks = ChannelStacks(shape, frames.dtype, k)
    recent = RecentFrames(stacks, shape, frames.dtype)
    assert not recent.has_any
    shown: list[np.ndarray] = []
    earlier: list[tuple[np.ndarray, np.ndarray]] = []
    for step, frame in enumerate(frames):
        shown = [*([] if step in (0, 5) else shown), frame]
        given = frame.copy()
        recent.push(given, is_first=step in (0, 5))
        given[...] = 0
        padded = [*(np.zeros(shape, np.uint8) for _ in range(k)), *shown][-k:]
        expected = stacked(np.stack(padded)[None], len(shape) == 2)[0]
        assert (recent.stack() == expected).all()
        assert (recent.newest == frame).all()
        earlier.append((recent.stack(), expected))
    assert all((stack == expected).all() for stack, expected in earlier)
