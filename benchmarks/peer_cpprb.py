"""cpprb: ring buffers in C++ and Cython."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from peers import Call, Draw, Rows

__all__ = ["prioritized", "transitions", "writing"]

_ALPHA, _BETA = 0.6, 0.4


def transitions(rows: Rows, stack: int, *, compressed: bool) -> Draw:
    """Stacked transitions, the next observation shared (`next_of`).

    Args:
        rows: Single frames.
        stack: Frames of an observation.
        compressed: Share the frames of stacks too (`stack_compress`, along the last axis).
    """
    frame = rows.observation.shape[1:]
    shape = (*frame, stack) if compressed else (stack, *frame)
    buffer = _buffer("ReplayBuffer", rows, shape, "obs" if compressed else None)
    _fill(buffer, rows, stack, last_axis=compressed)
    sample: Draw = buffer.sample
    return sample


def prioritized(rows: Rows, stack: int) -> Draw:
    """Draw by priority with importance weights, and update the priorities of the drawn items."""
    shape = rows.observation.shape[1:]
    if stack > 1:
        shape = (stack, *shape)
    buffer = _buffer("PrioritizedReplayBuffer", rows, shape, None, alpha=_ALPHA)
    _fill(buffer, rows, stack, last_axis=False)
    rng = np.random.default_rng(0)
    buffer.update_priorities(np.arange(len(rows.action)), rng.random(len(rows.action)))
    priorities = rng.random(1_000)

    def run(batch: int) -> object:
        drawn = buffer.sample(batch, beta=_BETA)
        buffer.update_priorities(drawn["indexes"], priorities[:batch])
        return drawn

    return run


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Add one vector step to a full ring; observation and next observation, as documented."""
    cpprb = importlib.import_module("cpprb")
    first = next(steps)
    shape, dtype = first["observation"].shape[1:], first["observation"].dtype
    buffer = cpprb.ReplayBuffer(
        capacity,
        {
            "obs": {"shape": shape, "dtype": dtype},
            "next_obs": {"shape": shape, "dtype": dtype},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {"dtype": np.bool_},
        },
    )
    before = first

    def add() -> None:
        nonlocal before
        step = next(steps)
        buffer.add(
            obs=before["observation"],
            next_obs=step["observation"],
            act=before["action"],
            rew=step["reward"],
            done=step["terminated"],
        )
        before = step

    for _ in range(capacity // num_envs):
        add()
    return add


def _buffer(
    kind: str, rows: Rows, shape: tuple[int, ...], stack_compress: str | None, **alpha: float
) -> Any:
    cpprb = importlib.import_module("cpprb")
    return getattr(cpprb, kind)(
        len(rows.action),
        {
            "obs": {"shape": shape, "dtype": rows.observation.dtype},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {"dtype": np.bool_},
        },
        next_of="obs",
        stack_compress=stack_compress,
        **alpha,
    )


def _fill(buffer: Any, rows: Rows, stack: int, *, last_axis: bool) -> None:
    """Add all, episode by episode, in parts that fit into memory."""
    ends = (np.flatnonzero(rows.is_end) + 1).tolist()
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        frames = rows.observation[start:stop]
        if stack > 1:
            frames = np.concatenate([frames[:1].repeat(stack - 1, 0), frames])
            frames = sliding_window_view(frames, stack, 0)
            if not last_axis:
                frames = np.moveaxis(frames, -1, 1)
        for low in range(0, stop - start - 1, 500):
            high = min(low + 500, stop - start - 1)
            buffer.add(
                obs=frames[low:high],
                next_obs=frames[low + 1 : high + 1],
                act=rows.action[start + low : start + high],
                rew=rows.reward[start + low : start + high],
                done=rows.is_end[start + low + 1 : start + high + 1],
            )
        buffer.on_episode_end()
