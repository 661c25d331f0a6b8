#!/usr/bin/env bash
# Gymnasium 1.4.0: MaxAndSkipObservation shows frames of the episode before.
#
# People expect: what a reset and the same actions give depends on the seed alone.
# It does: its two frames stay over a reset, so that an episode that ends within its first skipped frames returns
# their maximum as its last observation.
# Seen: the same seed and action, first observation of a new env 0, after another episode 200
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import MaxAndSkipObservation


class Levels(gym.Env):
    """Observes 200 after action 1, which goes on, and 5 after action 0, which ends the episode."""

    observation_space, action_space = gym.spaces.Box(0, 255, (1,), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.uint8), {}

    def step(self, action):
        return np.full(1, 200 if action else 5, np.uint8), 0.0, not action, False, {}


new = MaxAndSkipObservation(Levels(), 4)
new.reset(seed=0)
alone = int(new.step(0)[0][0])
used = MaxAndSkipObservation(Levels(), 4)
used.reset(seed=0)
used.step(1)
used.reset(seed=0)
after = int(used.step(0)[0][0])
print("the same seed and action, first observation of a new env %d, after another episode %d" % (alone, after))
assert (alone, after) == (0, 200)
PY
