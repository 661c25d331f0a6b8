#!/usr/bin/env bash
# Stable-Baselines3 2.9.2: ReplayBuffer stores other numbers than it is given, and fewer steps than it is asked for.
#
# People expect: an observation outside of its declared dtype is refused; rewards keep their value; a buffer of 10
# steps holds 10.
# It does: assigns into NumPy arrays, so that 300 in a uint8 space is 44; rewards are float32, so that 16777217 is
# 16777216; and buffer_size is divided by the number of envs and rounded down: 10 for 4 envs holds 8 transitions.
# Seen: observation 44, reward 16777216.0, transitions 8
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q stable-baselines3==2.9.2 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

depth = np.array([[300]], np.uint16)
replay = ReplayBuffer(4, spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2), "cpu")
replay.add(depth, depth, np.array([0]), np.array([16777217.0]), np.array([False]), [{}])
several = ReplayBuffer(10, spaces.Box(0, 1, (1,)), spaces.Discrete(2), "cpu", n_envs=4)
found = int(replay.observations[0, 0, 0]), float(replay.rewards[0, 0]), several.buffer_size * several.n_envs
print("observation %d, reward %s, transitions %d" % found)
assert found == (44, 16777216.0, 8)
PY
