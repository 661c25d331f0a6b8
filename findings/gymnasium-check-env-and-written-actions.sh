#!/usr/bin/env bash
# Gymnasium 1.4.0: check_env calls an env that writes into its action array "not deterministic".
#
# People expect: an env that clips or scales its action in place is told to copy it, or passes.
# It does: check_env gives the same action array to two steps from the same seed. The second one gets what
# the first has left in it, and "Deterministic step observations are not equivalent" is raised, although
# the env is deterministic; nothing is said of the action.
# Seen: AssertionError: Deterministic step observations are not equivalent ...; with a copy: no error
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import warnings

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env


class Env(gym.Env):
    metadata = {"render_modes": []}
    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, copies: bool) -> None:
        self.copies = copies

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        action = action.copy() if self.copies else action
        action *= 0.5  # in place
        self.place = self.place + action
        return self.place.copy(), 0.0, False, False, {}


warnings.simplefilter("ignore")
told = {}
for copies in (False, True):
    try:
        check_env(Env(copies), skip_render_check=True)
        told[copies] = ""
    except AssertionError as error:
        told[copies] = str(error)
print(told)
assert told[False].startswith("Deterministic step observations are not equivalent"), told
assert told[True] == ""
PY
