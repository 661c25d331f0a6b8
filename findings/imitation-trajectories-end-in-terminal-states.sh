#!/usr/bin/env bash
# imitation 1.0.1 with datasets 4.8.5: a time limit is a terminal state, and a saved data set comes back in other dtypes.
#
# People expect: `terminal` of a trajectory is True where a terminal state was reached, so that `dones` of
# flatten_trajectories are terminations; serialize.save and load give the arrays back as they were.
# It does: rollout sets `terminal` at the end of every episode, also where it was truncated, and nothing else of it
# says which. load makes float64 of the float32 and int64 of the uint8 that were saved.
# Seen: 4 episodes, truncated: 4 dones; terminated: 4 dones; observations float32 -> float64, uint8 -> int64
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q imitation==1.0.1 stable-baselines3==2.2.1 gymnasium==0.29.1 numpy==2.4.6 \
  datasets==4.8.5 pyarrow==26.0.1
"$dir/venv/bin/python" -W ignore - "$dir" 2> "$dir/errors" <<'PY' || { cat "$dir/errors"; exit 1; }
import sys

import gymnasium as gym
import numpy as np
from imitation.data import rollout, serialize
from imitation.data.wrappers import RolloutInfoWrapper
from stable_baselines3.common.vec_env import DummyVecEnv


class Five(gym.Env):
    """The fifth step ends the episode, one way or the other."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, is_cut: bool, dtype: type) -> None:
        self.is_cut, self.observation_space = is_cut, gym.spaces.Box(0, 9, (1,), dtype)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, self.observation_space.dtype), {}

    def step(self, action):
        self.steps += 1
        end = self.steps == 5
        seen = np.full(1, self.steps, self.observation_space.dtype)
        return seen, 1.0, end and not self.is_cut, end and self.is_cut, {}


def played(is_cut: bool, dtype: type = np.float32) -> list:
    envs = DummyVecEnv([lambda: RolloutInfoWrapper(Five(is_cut, dtype))])
    until = rollout.make_sample_until(min_episodes=4)
    return rollout.rollout(None, envs, until, rng=np.random.default_rng(0))


dones = [int(rollout.flatten_trajectories(played(is_cut)).dones.sum()) for is_cut in (True, False)]
dtypes = []
for dtype in (np.float32, np.uint8):
    given = played(True, dtype)
    serialize.save(f"{sys.argv[1]}/{dtype.__name__}", given)
    found = serialize.load(f"{sys.argv[1]}/{dtype.__name__}")
    dtypes.append((str(given[0].obs.dtype), str(found[0].obs.dtype)))
print("dones", dones, "dtypes", dtypes)
assert dones == [4, 4]
assert dtypes == [("float32", "float64"), ("uint8", "int64")]
PY
