#!/usr/bin/env bash
# Gymnasium 1.4.0 and Stable-Baselines3 2.9.2 with ale-py 0.12.1: the reset behind a lost life.
#
# People expect: an episode that ends with a life (terminal_on_life_loss=True) is one of the same game, as with the
# wrapper of DQN's authors: the reset goes on with the lives that are left, and later lives are seen in training.
# It does: Gymnasium's AtariPreprocessing resets the game. Each episode begins with all five lives of Breakout and
# all bricks; no second life is ever played. Stable-Baselines3's AtariWrapper goes on.
# Seen: lives before and after the first four resets: Gymnasium 4>5 4>5 4>5 4>5, SB3 4>4 3>3 2>2 1>1
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 ale-py==0.12.1 numpy==2.4.6 opencv-python-headless==5.0.0.93 \
  stable-baselines3==2.9.2 torch==2.13.0
"$dir/venv/bin/python" -W ignore - 2> /dev/null <<'PY'
import ale_py
import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing
from stable_baselines3.common.atari_wrappers import AtariWrapper

gym.register_envs(ale_py)


def resets(env: gym.Env) -> list[tuple[int, int]]:
    """The emulator's lives before and after the first four resets; a fire every fifth step."""
    found, steps = [], 0
    env.reset(seed=0)
    while len(found) < 4:
        steps += 1
        _, _, terminated, truncated, _ = env.step(1 if steps % 5 == 0 else 2)
        if terminated or truncated:
            before = env.unwrapped.ale.lives()
            env.reset()
            found.append((before, env.unwrapped.ale.lives()))
    return found


gymnasiums = AtariPreprocessing(gym.make("ALE/Breakout-v5", frameskip=1), terminal_on_life_loss=True)
sb3s = AtariWrapper(gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0))
found = resets(gymnasiums), resets(sb3s)
print("Gymnasium", found[0], "SB3", found[1])
assert found == ([(4, 5)] * 4, [(4, 4), (3, 3), (2, 2), (1, 1)])
PY
