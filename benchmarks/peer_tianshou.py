"""Tianshou: vector replay buffers, which stack frames while they sample."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from peers import Call, Draw, Rows

__all__ = ["prioritized", "transitions", "writing"]

_ENVS = 8


def transitions(rows: Rows, stack: int) -> Draw:
    """Stacks out of single frames (`stack_num`), next observations looked up."""
    data = importlib.import_module("tianshou.data")
    buffer = data.VectorReplayBuffer(len(rows.action), _ENVS, stack_num=stack, ignore_obs_next=True)
    _fill(buffer, rows)
    sample: Draw = buffer.sample
    return sample


def prioritized(rows: Rows, stack: int) -> Draw:
    """Draw by priority with importance weights, and update the priorities of the drawn items."""
    data = importlib.import_module("tianshou.data")
    buffer = data.PrioritizedVectorReplayBuffer(
        len(rows.action), _ENVS, alpha=0.6, beta=0.4, stack_num=stack, ignore_obs_next=True
    )
    _fill(buffer, rows)
    rng = np.random.default_rng(0)
    buffer.update_weight(np.arange(len(buffer)), rng.random(len(buffer)))
    priorities = rng.random(1_000)

    def run(batch: int) -> object:
        drawn, indices = buffer.sample(batch)
        buffer.update_weight(indices, priorities[:batch])
        return drawn

    return run


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Add one vector step to a full ring, each observation once."""
    data = importlib.import_module("tianshou.data")
    buffer = data.VectorReplayBuffer(capacity, num_envs, ignore_obs_next=True)

    def add() -> None:
        step = next(steps)
        buffer.add(_step(data, step, slice(None)))

    for _ in range(capacity // num_envs):
        add()
    return add


def _fill(buffer: Any, rows: Rows) -> None:
    """Add the rows, an eighth to each env's part, in vector steps."""
    data = importlib.import_module("tianshou.data")
    part = len(rows.action) // _ENVS
    columns = {
        "observation": rows.observation,
        "action": rows.action,
        "reward": rows.reward,
        "terminated": rows.is_end,
        "truncated": np.zeros_like(rows.is_end),
    }
    for t in range(part):
        buffer.add(_step(data, columns, np.arange(_ENVS) * part + t))


def _step(data: Any, columns: Mapping[str, np.ndarray], chosen: Any) -> Any:
    return data.Batch(
        obs=columns["observation"][chosen],
        act=columns["action"][chosen],
        rew=columns["reward"][chosen],
        terminated=columns["terminated"][chosen],
        truncated=columns["truncated"][chosen],
    )
