#!/usr/bin/env bash
# Gymnasium 1.4.0 with Stable-Baselines3 2.9.2: NormalizeReward's discounted return runs on over truncated episodes.
#
# People expect: NormalizeReward divides by the deviation of discounted returns, which begin at 0 in each episode, as
# in Stable-Baselines3's VecNormalize; a reset begins anew.
# It does: only `terminated` sets the return to 0. Behind a time limit, and behind a reset, it runs on: with gamma=1
# the third episode of five rewards of 1 begins with a return of 11. So does the wrapper of vector envs in the mode
# NEXT_STEP, the default; in SAME_STEP it begins anew.
# Seen: returns behind the first steps of three truncated episodes: 1 6 11 (one env, NEXT_STEP), 1 1 1 (SAME_STEP, SB3)
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6 stable-baselines3==2.9.2 torch==2.13.0
"$dir/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeReward
from gymnasium.wrappers.vector import NormalizeReward as VectorNormalizeReward
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class Five(gym.Env):
    """Rewards of 1; the fifth step is truncated."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, self.steps == 5, {}


alone, firsts = NormalizeReward(Five(), gamma=1.0), []
for seed in range(3):
    alone.reset(seed=seed)
    for step in range(5):
        alone.step(0)
        if step == 0:
            firsts.append(float(np.asarray(alone.discounted_reward).item()))



def vector(mode: AutoresetMode, every: int) -> list[float]:
    envs = VectorNormalizeReward(SyncVectorEnv([Five], autoreset_mode=mode), gamma=1.0)
    envs.reset(seed=0)
    found = []
    for step in range(3 * every):
        envs.step(np.zeros(1, int))
        found.append(float(envs.accumulated_reward[0]))
    return found[::every]


next_step = vector(AutoresetMode.NEXT_STEP, 6)  # each sixth step is a reset
same_step = vector(AutoresetMode.SAME_STEP, 5)

sb3 = VecNormalize(DummyVecEnv([Five]), gamma=1.0)
sb3.reset()
theirs = []
for step in range(15):
    sb3.step(np.zeros(1, int))
    if step % 5 == 0:
        theirs.append(float(sb3.returns[0]))

print("one env", firsts, "NEXT_STEP", next_step, "SAME_STEP", same_step, "SB3", theirs)
assert firsts == next_step == [1.0, 6.0, 11.0]
assert same_step == theirs == [1.0, 1.0, 1.0]
PY
