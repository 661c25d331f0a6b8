#!/usr/bin/env bash
# Tianshou 2.0.1: with ignore_obs_next, what follows a time limit is the observation before it.
#
# People expect: ignore_obs_next=True, as in Tianshou's Atari scripts, only saves memory: the next observation is the
# observation of the next row, and that of an episode's last step does not matter, as nothing follows it.
# It does: obs_next of the last step is its own obs, also where `truncated` is True, and the value behind a time limit
# is taken of it: it matters there.
# Seen: episodes of 5 steps that are truncated: obs_next of the last step [4] in place of [5]; [5] with ignore_obs_next=False
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q tianshou==2.0.1 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from tianshou.data import Batch, ReplayBuffer


def behind_limits(ignore_obs_next: bool) -> list[list[float]]:
    buffer = ReplayBuffer(20, ignore_obs_next=ignore_obs_next)
    for row in range(15):
        step = row % 5
        buffer.add(
            Batch(
                obs=np.array([float(step)]),
                act=0,
                rew=0.0,
                terminated=False,
                truncated=step == 4,
                obs_next=np.array([step + 1.0]),
                info={},
            )
        )
    batch, _ = buffer.sample(0)
    return [one.tolist() for one, cut in zip(batch.obs_next, batch.truncated) if cut]


found = behind_limits(True), behind_limits(False)
print(found)
assert found == ([[4.0]] * 3, [[5.0]] * 3)
PY
