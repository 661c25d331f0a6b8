#!/usr/bin/env bash
# TorchRL 0.14.1: SliceSampler marks the last step of every slice as truncated, in data that holds no truncation.
#
# People expect: a batch has the flags that were stored; where a slice was cut out of a trajectory is known from
# its length.
# It does: by default truncated_key=("next", "truncated") is overwritten in the batch, and "next", "done" with it,
# at the end of each slice. Who trains on the flags takes each slice for the end of an episode; truncated_key=None
# turns it off.
# Seen: stored truncations: 0; drawn: [False, False, False, True] in each slice of 4
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q torchrl==0.14.1 tensordict==0.14.3 numpy==2.4.6
RL_LOGGING_LEVEL=ERROR "$dir/venv/bin/python" - <<'PY'
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

steps = torch.arange(40)
ends = (steps % 20 == 19).unsqueeze(1)
never = torch.zeros_like(ends)
flags = {"done": ends, "terminated": ends, "truncated": never}
stored = TensorDict({"episode": steps // 20, "observation": steps, "next": flags}, [40])


def drawn(**options):
    sampler = SliceSampler(slice_len=4, traj_key="episode", **options)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=8)
    replay.extend(stored.clone())
    torch.manual_seed(0)
    return replay.sample()["next", "truncated"].reshape(2, 4).tolist()


print("stored truncations:", int(never.sum()), "drawn:", drawn(), "with truncated_key=None:", drawn(truncated_key=None))
assert drawn() == [[False, False, False, True]] * 2
assert drawn(truncated_key=None) == [[False] * 4] * 2
PY
