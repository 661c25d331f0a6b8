#!/usr/bin/env bash
# Gymnasium 1.4.0: make_vec("CartPole-v1", 4) is not four times make("CartPole-v1").
#
# People expect: env i of make_vec, reset with seed s, begins as make(id).reset(seed=s + i) does, as it is with
# SyncVectorEnv and AsyncVectorEnv; and envs.spec tells the time limit in force.
# It does: ids with a vector_entry_point get an implementation of their own, with one generator for all envs, so
# that the first states depend on how many envs there are; and make_vec(..., max_episode_steps=20) ends episodes
# after 20 steps, while envs.spec.max_episode_steps is still 500.
# Seen: CartPoleVectorEnv, [0.0137 -0.0459 ...] for seed 0 in place of [0.0137 -0.023 ...]; ended after 20, spec 500
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np

first = gym.make("CartPole-v1").reset(seed=0)[0]
together = [gym.make_vec("CartPole-v1", num_envs=n).reset(seed=0)[0][0] for n in (2, 4)]
apart = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync").reset(seed=0)[0][0]
short = gym.make_vec("CartPole-v1", num_envs=1, max_episode_steps=20)
short.reset(seed=0)
steps, truncated = 0, [False]
while not truncated[0]:
    _, _, terminated, truncated, _ = short.step(np.array([steps % 2]))
    assert not terminated[0]
    steps += 1
print(type(short.unwrapped).__name__, first, *together, "ended after", steps, "spec", short.spec.max_episode_steps)
assert np.array_equal(apart, first)
assert not np.array_equal(together[0], first) and not np.array_equal(together[0], together[1])
assert (steps, short.spec.max_episode_steps) == (20, 500)
PY
