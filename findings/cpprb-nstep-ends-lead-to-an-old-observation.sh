#!/usr/bin/env bash
# cpprb 11.0.0: with Nstep, the last transitions of an episode lead to an observation of its beginning.
#
# People expect: where fewer than n steps are left, next_obs is the last observation of the episode.
# It does: the last n - 1 transitions of every episode get the first next_obs that was added since the buffer was
# made, of another episode too. After a termination `done` hides it; after a time limit (done=0, then
# on_episode_end) its value is bootstrapped, although nothing was wrong in what was added.
# Seen: two episodes of 6 steps, observations 0 to 6 and 100 to 106, n = 3: next_obs of their last three steps
# [6, 1, 1] and [106, 1, 1], done 0
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q cpprb==11.0.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from cpprb import ReplayBuffer

fields = {name: {} for name in ("obs", "next_obs", "rew", "done")}
replay = ReplayBuffer(100, fields, Nstep={"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"})
for first in (0, 100):
    for step in range(first, first + 6):
        replay.add(obs=step, next_obs=step + 1, rew=1.0, done=0.0)
    replay.on_episode_end()  # a time limit
stored = {name: values.ravel() for name, values in replay.get_all_transitions().items()}
leads = stored["next_obs"].reshape(2, 6)[:, 3:].tolist()
print("obs", stored["obs"].tolist(), "next_obs", stored["next_obs"].tolist(), "done", stored["done"].tolist())
assert np.array_equal(stored["obs"], [*range(6), *range(100, 106)])
assert leads == [[6, 1, 1], [106, 1, 1]], leads
assert not stored["done"].any()
PY
