#!/usr/bin/env bash
# minigrid 3.2.0: levels of BabyAI print on standard output while they are reset.
#
# One would expect that an env prints nothing unless it is rendered, so that a program may write
# data (JSON, CSV) on standard output while it steps envs.
# Seen: each layout that a level draws and rejects is a line "Sampling rejected: unreachable object
# at (x, y)" on standard output. 50 resets of BabyAI-GoToLocal-v0 print 2. Exit code 1 if that
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  minigrid==3.2.0 gymnasium==1.4.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore - > "$folder/printed" << 'PYTHON'
import gymnasium

import minigrid

env = gymnasium.make("BabyAI-GoToLocal-v0")
for seed in range(50):
    env.reset(seed=seed)
PYTHON
lines=$(grep -c '^Sampling rejected: ' "$folder/printed" || true)
echo "lines on standard output after 50 resets: $lines"
[ "$lines" -gt 0 ]
