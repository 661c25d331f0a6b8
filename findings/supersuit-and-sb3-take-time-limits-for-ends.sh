#!/usr/bin/env bash
# SuperSuit 3.11.0 with PettingZoo 1.27.0 and Stable-Baselines3 2.9.2: a time limit is learned as the end of the task.
#
# People expect: concat_vec_envs_v1(..., base_class="stable_baselines3") gives SB3 what its own vector envs do;
# PettingZoo's envs say `truncated`, and SB3 goes on with the value of the last observation after a time limit.
# It does: makes one flag of both, and leaves out "TimeLimit.truncated", by which SB3 tells a time limit. DQN
# learns that the return behind each time limit is 0; nothing is said.
# Seen: 20 steps, each fifth one truncated: done 4 and timeout 0; the same env of Gymnasium: 4 and 4
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q supersuit==3.11.0 pettingzoo==1.27.0 gymnasium==1.4.0 numpy==2.4.6 \
  stable-baselines3==2.9.2 torch==2.13.0
"$dir/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import numpy as np
import supersuit
from pettingzoo import ParallelEnv
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

SPACES = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)


class Alone(gym.Env):
    """Counts its steps; the fifth one is truncated."""

    observation_space, action_space = SPACES

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, self.steps == 5, {}


class Game(ParallelEnv):
    """The same, with an agent "a"."""

    metadata, render_mode = {"name": "game", "render_modes": []}, None
    possible_agents = ["a"]

    def __init__(self):
        self.env, self.agents = Alone(), []

    def observation_space(self, agent):
        return SPACES[0]

    def action_space(self, agent):
        return SPACES[1]

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        return tuple({"a": part} for part in self.env.reset())

    def step(self, actions):
        observation, reward, terminated, truncated, info = self.env.step(actions["a"])
        self.agents = [] if truncated else ["a"]
        return tuple({"a": part} for part in (observation, reward, terminated, truncated, info))


def ends(envs) -> tuple[int, int]:
    model = DQN("MlpPolicy", envs, buffer_size=20, learning_starts=100, device="cpu")
    model.learn(20)
    replay = model.replay_buffer
    assert replay.next_observations.max() == 5  # the true last observation is there
    return int(replay.dones.sum()), int(replay.timeouts.sum())


game = supersuit.pettingzoo_env_to_vec_env_v1(Game())
found = ends(supersuit.concat_vec_envs_v1(game, 1, base_class="stable_baselines3")), ends(DummyVecEnv([Alone]))
print("done, timeout: SuperSuit", found[0], "Gymnasium", found[1])
assert found == ((4, 0), (4, 4))
PY
