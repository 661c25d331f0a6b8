#!/usr/bin/env bash
# Crafter 1.8.3: that an episode ended at its limit of steps is said by info["discount"] alone.
#
# People expect: an env of the old gym API says info["TimeLimit.truncated"] where `done` is its time limit, by which
# Gymnasium's convert_to_terminated_truncated_step_api tells a truncation.
# It does: `done` is True for death and for the limit (10,000 steps), and "TimeLimit.truncated" is never there.
# `info["discount"]` is dm_env's: 0 behind death, 1 at the limit. A learner that reads `done` learns that the return
# behind each time limit is 0.
# Seen: limits: done with discount 1.0; deaths: done with discount 0.0; no "TimeLimit.truncated"
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q crafter==1.8.3 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import crafter
import numpy as np


def end(length: int, seed: int) -> tuple[int, float, bool]:
    """Steps of an episode of random actions, its last discount, and whether a time limit is named."""
    env, rng = crafter.Env(length=length, seed=seed), np.random.default_rng(seed)
    env.reset()
    for step in range(1, length + 1):
        _, _, done, info = env.step(int(rng.integers(17)))
        if done:
            break
    assert done
    return step, info["discount"], "TimeLimit.truncated" in info


limits = [end(20, seed) for seed in range(2)]
deaths = [end(2_000, seed) for seed in range(2)]
print("limits", limits, "deaths", deaths)
assert limits == [(20, 1.0, False)] * 2
assert all(end[0] < 2_000 and end[1:] == (0.0, False) for end in deaths)
PY
