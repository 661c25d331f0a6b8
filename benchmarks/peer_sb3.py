"""Stable-Baselines3: a ring of whole observations and next observations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.lib.stride_tricks import sliding_window_view

from peers import Call, Draw, Rows

__all__ = ["transitions", "writing"]

_MOST_ROWS = 20_000  # every frame is stored eight times


def transitions(rows: Rows, stack: int, *, saves_memory: bool = False) -> Draw:
    """Whole stacks, stored twice, which is its default and faster, or once.

    Args:
        rows: Single frames.
        stack: Frames of an observation.
        saves_memory: `optimize_memory_usage`.
    """
    count = min(_MOST_ROWS, len(rows.action) - stack)
    shape, dtype = (stack, *rows.observation.shape[1:]), rows.observation.dtype
    buffer = _buffer(count, shape, dtype, 1, saves_memory=saves_memory)
    stacks = np.moveaxis(sliding_window_view(rows.observation[: count + stack], stack, 0), -1, 1)
    for t in range(count):
        buffer.add(
            stacks[t : t + 1],
            stacks[t + 1 : t + 2],
            rows.action[t : t + 1, None],
            rows.reward[t : t + 1],
            rows.is_end[t : t + 1],
            [{}],
        )
    sample: Draw = buffer.sample
    return sample


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Add one vector step to a full ring."""
    before = next(steps)
    observation = before["observation"]
    buffer = _buffer(capacity, observation.shape[1:], observation.dtype, num_envs)
    infos: list[dict[str, object]] = [{} for _ in range(num_envs)]

    def add() -> None:
        nonlocal before
        step = next(steps)
        buffer.add(
            before["observation"],
            step["observation"],
            before["action"][:, None],
            step["reward"],
            step["terminated"],
            infos,
        )
        before = step

    for _ in range(capacity // num_envs):
        add()
    return add


def _buffer(
    capacity: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    num_envs: int,
    *,
    saves_memory: bool = False,
) -> Any:
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    return buffers.ReplayBuffer(
        capacity,
        spaces.Box(0, 255, shape, dtype.type),
        spaces.Discrete(6),
        device="cpu",
        n_envs=num_envs,
        optimize_memory_usage=saves_memory,
        handle_timeout_termination=False,
    )
