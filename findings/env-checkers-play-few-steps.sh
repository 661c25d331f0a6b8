#!/usr/bin/env bash
# Gymnasium 1.4.0 and Stable-Baselines3 2.9.2: their check_env hardly leaves the reset.
#
# People expect: check_env plays an env for a while, so that an observation outside of its space or a
# NaN reward a few steps later is told.
# It does: Gymnasium's takes single steps, each right after a reset. SB3's takes ten, and looks at types,
# shapes and NaN in them, not at bounds.
# Seen: in step 7 an observation of 10 in Box(-1, 1): nothing, nothing; a NaN reward: nothing, a warning
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6 stable-baselines3==2.9.2 torch==2.13.0
"$dir/venv/bin/python" - <<'PY'
import warnings

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env


class Env(gym.Env):
    metadata = {"render_modes": []}
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, outside: bool) -> None:
        self.outside, self.steps = outside, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        is_wrong = self.steps == 7
        observation = np.full(2, 10 if is_wrong and self.outside else 0.1 * self.steps, np.float32)
        reward = float("nan") if is_wrong and not self.outside else 1.0
        return observation, reward, self.steps == 9, False, {}


seen = {}
for outside in (True, False):
    for name, check in (("gymnasium", check_env), ("sb3", sb3_check_env)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            options = {"skip_render_check": True} if name == "gymnasium" else {}
            check(Env(outside), **options)
        texts = [str(one.message) for one in told]
        seen[name, outside] = any("NaN" in text or "nan" in text or "bound" in text for text in texts)
print(seen)
assert seen == {
    ("gymnasium", True): False,
    ("sb3", True): False,
    ("gymnasium", False): False,
    ("sb3", False): True,
}
PY
