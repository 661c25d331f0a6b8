"""TorchRL: a TensorDictReplayBuffer over tensors in RAM."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import numpy as np

from peers import Call, Rows

__all__ = ["sequences", "writing"]


def sequences(rows: Rows, batch: int, length: int) -> Call:
    """SliceSampler with ends of episodes and cached borders, as its documentation advises."""
    torch = importlib.import_module("torch")
    data = importlib.import_module("torchrl.data")
    samplers = importlib.import_module("torchrl.data.replay_buffers.samplers")
    tensordict = importlib.import_module("tensordict")
    count = len(rows.action)
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(count),
        sampler=samplers.SliceSampler(
            slice_len=length,
            end_key=("next", "done"),
            cache_values=True,
            truncated_key=None,
            init_key=None,
        ),
        batch_size=batch * length,
    )
    for start in range(0, count, 1_000):
        chosen = slice(start, start + 1_000)
        columns = {
            "observation": torch.from_numpy(rows.observation[chosen]),
            "action": torch.from_numpy(rows.action[chosen]),
            "next": {
                "reward": torch.from_numpy(rows.reward[chosen, None]),
                "done": torch.from_numpy(rows.is_end[chosen, None]),
                "terminated": torch.from_numpy(rows.is_end[chosen, None]),
            },
        }
        buffer.extend(tensordict.TensorDict(columns, [len(columns["action"])]))
    sample: Call = buffer.sample
    return sample


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Extend a full ring by one vector step."""
    torch = importlib.import_module("torch")
    data = importlib.import_module("torchrl.data")
    tensordict = importlib.import_module("tensordict")
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(capacity))

    def add() -> None:
        step = next(steps)
        tensors = {name: torch.from_numpy(values) for name, values in step.items()}
        buffer.extend(tensordict.TensorDict(tensors, [num_envs]))

    for _ in range(capacity // num_envs):
        add()
    return add
