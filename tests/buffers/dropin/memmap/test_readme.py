"""The code of the original's description runs with only its import changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

# From the description of memmap-replay-buffer 0.1.4.
BLOCKS = (
    """
import torch
from memmap_replay_buffer import ReplayBuffer

buffer = ReplayBuffer(
    './replay_data',
    max_episodes = 1000,
    max_timesteps = 500,
    fields = dict(
        state = ('float', (3, 16, 16), 0.),
        action = ('int', 2),
        reward = 'float'
    ),
    meta_fields = dict(
        task_id = 'int'
    ),
    circular = True,
    overwrite = True
)

for _ in range(4):
    with buffer.one_episode(task_id = 1):
        for _ in range(100):
            buffer.store(
                state = torch.randn(3, 16, 16),
                action = torch.randint(0, 4, (2,)).numpy(),
                reward = 1.0
            )

buffer_rehydrated = ReplayBuffer.from_folder('./replay_data')
assert buffer_rehydrated.num_episodes == 4
""",
    """
dataloader = buffer.dataloader(
    batch_size = 2,
    return_mask = True,
    to_named_tuple = ('state', 'action', 'reward', 'task_id', '_mask', '_lens')
)

for state, action, reward, task_id, mask, lens in dataloader:
    assert state.shape == (2, 100, 3, 16, 16)
    assert action.shape == (2, 100, 2)
    assert reward.shape == (2, 100)
    assert task_id.shape == (2,)
    assert lens.shape == (2,)
    assert mask.shape == (2, 100)
""",
    """
dataloader = buffer.dataloader(
    batch_size = 8,
    filter_meta = dict(
        task_id = 1
    ),
    to_named_tuple = ('state', 'action', 'task_id'),
    timestep_level = True,
    drop_last = True
)

for state, action, task_id in dataloader:
    assert state.shape == (8, 3, 16, 16)
    assert action.shape == (8, 2)
    assert task_id.shape == (8,)
""",
    """
dataloader = buffer.dataloader(
    batch_size = 4,
    n_steps = 5,
    current_fields = ('state',),
    next_fields = ('state',),
    sequence_fields = ('action', 'reward'),
    to_named_tuple = ('state', 'next_state', 'action_chunk', 'rewards', 'n_step_lens'),
    fieldname_map = {
        'seq_action': 'action_chunk',
        'seq_reward': 'rewards'
    }
)

for state, next_state, action_chunk, rewards, n_step_lens in dataloader:
    assert state.shape == (4, 3, 16, 16)
    assert next_state.shape == (4, 3, 16, 16)
    assert action_chunk.shape == (4, 5, 2)
    assert rewards.shape == (4, 5)
    assert n_step_lens.shape == (4,)
""",
)


def test_the_code_of_the_description_runs_with_the_import_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    batches = []
    for block in BLOCKS:
        names.pop("dataloader", None)
        exec(block.replace("memmap_replay_buffer", "stepwell.buffers.dropin.memmap"), names)
        batches.append(len(names.get("dataloader", ())))
    assert batches == [0, 2, 50, 99]
    names["buffer"].close()
