"""sheeprl: rows ``[time, envs, ...]`` in plain numpy arrays."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import numpy as np

from peers import Call, Rows

__all__ = ["episode_sequences", "sequential_sequences", "writing"]


def episode_sequences(rows: Rows, batch: int, length: int) -> Call:
    """EpisodeBuffer, as its DreamerV2 uses it: sequences inside episodes."""
    buffers = importlib.import_module("sheeprl.data.buffers")
    buffer = buffers.EpisodeBuffer(
        len(rows.action), minimum_episode_length=length, obs_keys=("observation",)
    )
    ends = np.flatnonzero(rows.is_end) + 1
    for start, stop in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        buffer.add(_columns(rows, slice(start, stop)))
    return lambda: buffer.sample(batch, sequence_length=length)


def sequential_sequences(rows: Rows, batch: int, length: int) -> Call:
    """SequentialReplayBuffer, as its DreamerV3 uses it: sequences across episodes."""
    buffers = importlib.import_module("sheeprl.data.buffers")
    buffer = buffers.SequentialReplayBuffer(len(rows.action), obs_keys=("observation",))
    for start in range(0, len(rows.action), 1_000):
        buffer.add(_columns(rows, slice(start, start + 1_000)))
    return lambda: buffer.sample(batch, sequence_length=length)


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Add one vector step to a full ring."""
    buffers = importlib.import_module("sheeprl.data.buffers")
    buffer = buffers.ReplayBuffer(capacity // num_envs, num_envs, obs_keys=("observation",))

    def add() -> None:
        step = next(steps)
        buffer.add(
            {
                "observation": step["observation"][None],
                "actions": step["action"][None, :, None],
                "rewards": step["reward"][None, :, None],
                "terminated": step["terminated"][None, :, None],
                "truncated": step["truncated"][None, :, None],
            }
        )

    return _filled(add, capacity // num_envs)


def _columns(rows: Rows, chosen: slice) -> dict[str, np.ndarray]:
    """Arrays [time, 1, ...]."""
    is_end = rows.is_end[chosen, None, None]
    return {
        "observation": rows.observation[chosen, None],
        "actions": rows.action[chosen, None, None],
        "rewards": rows.reward[chosen, None, None],
        "terminated": is_end,
        "truncated": np.zeros_like(is_end),
    }


def _filled(add: Call, times: int) -> Call:
    for _ in range(times):
        add()
    return add
