#!/usr/bin/env bash
# VizDoom 1.3.2 with Gymnasium 1.4.0: the last observation of an episode is made up, and a time limit is both ends.
#
# People expect: the observation of the last step is what its action led to, so that the value behind a time limit
# can be estimated from it; and a time limit is `truncated`, not `terminated`.
# It does: the screen of the last step is black and its game variables are 0, at every end; at the time limit of the
# scenario both flags are True, so that `1 - terminated` drops the value as at a death.
# Seen: 6 episodes of VizdoomBasic-v1: ends (True, False) and (True, True), 6 of 6 last screens black, 0 of all others
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q vizdoom==1.3.2 gymnasium==1.4.0 numpy==2.4.6
cd "$dir" # VizDoom writes a file of settings where it is run
"$dir/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import numpy as np
from vizdoom import gymnasium_wrapper  # noqa: F401

env, rng = gym.make("VizdoomBasic-v1"), np.random.default_rng(0)
ends, black, others = set(), 0, 0
for seed in range(6):
    observation, _ = env.reset(seed=seed)
    over = (False, False)
    while not any(over):
        others += not observation["screen"].any()
        observation, _, *over, _ = env.step(int(rng.integers(env.action_space.n)))
    ends.add(tuple(over))
    black += not observation["screen"].any() and not observation["gamevariables"].any()
print("ends", sorted(ends), "black", black, "of 6, of all others", others)
assert ends == {(True, False), (True, True)}
assert (black, others) == (6, 0)
PY
