#!/usr/bin/env bash
# Gymnasium 1.4.0: where one env of a vector env is reset by a mask, its wrappers begin anew for all envs.
#
# People expect: with AutoresetMode.DISABLED and reset(options={"reset_mask": ...}) the other envs go on, and so do
# their statistics: an episode of 5 steps with rewards of 1 has the return 5 and the length 5.
# It does: RecordEpisodeStatistics and NormalizeReward of gymnasium.wrappers.vector set what they have summed to 0 for
# every env. The episode's return is what came after the last reset of any env. Nothing is said.
# Seen: envs with episodes of 3 and 5 steps: DISABLED tells returns 3 2 1 3 1 2, NEXT_STEP 3 5 3 3 5; the return that
# NormalizeReward has of the second env after 4 steps is 1 in place of 4
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6
"$dir/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics


class Steps(gym.Env):
    """Rewards of 1, until the given step."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, last: int) -> None:
        self.last = last

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == self.last, False, {}


def played(envs, mode: AutoresetMode, steps: int):
    """The infos of steps, with a reset of those envs that ended where nothing else does it."""
    envs.reset(seed=0)
    for _ in range(steps):
        _, _, ended, _, info = envs.step(np.zeros(2, int))
        if mode == AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
        yield info


def made(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Steps(3), lambda: Steps(5)], autoreset_mode=mode)


def returns(mode: AutoresetMode) -> list[float]:
    infos = [info for info in played(RecordEpisodeStatistics(made(mode)), mode, 12) if "episode" in info]
    for info in infos:
        assert (info["episode"]["r"] == info["episode"]["l"]).all()  # rewards of 1
    return [r for info in infos for r in info["episode"]["r"][info["_episode"]].tolist()]


disabled, usual = returns(AutoresetMode.DISABLED), returns(AutoresetMode.NEXT_STEP)
normal = NormalizeReward(made(AutoresetMode.DISABLED), gamma=1.0)
list(played(normal, AutoresetMode.DISABLED, 4))
print("DISABLED", disabled, "NEXT_STEP", usual, "NormalizeReward", normal.accumulated_reward.tolist())
assert disabled == [3.0, 2.0, 1.0, 3.0, 1.0, 2.0]
assert usual == [3.0, 5.0, 3.0, 3.0, 5.0]
assert normal.accumulated_reward.tolist() == [1.0, 1.0]
PY
