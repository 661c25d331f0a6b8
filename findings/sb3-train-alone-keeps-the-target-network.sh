#!/usr/bin/env bash
# Stable-Baselines3 2.9.2: DQN.train alone, as offline, never moves the target network.
#
# People expect: model.train(gradient_steps=...) on a filled replay buffer is DQN's whole update.
# It does: train changes the network alone. The target network is copied in _on_step, which learn calls
# for each env step: without it the targets stay those of the first weights, and nothing says so.
# Seen: after 2,000 updates with target_update_interval=1 the target network is as it was made
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q stable-baselines3==2.9.2 "gymnasium[classic-control]==1.4.0" numpy==2.4.6 torch==2.13.0
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import torch
from stable_baselines3 import DQN

torch.set_num_threads(1)
model = DQN("MlpPolicy", "CartPole-v1", target_update_interval=1, seed=0, device="cpu")
env = model.get_env()
observation = env.reset()
for step in range(200):
    action = np.array([step % 2])
    following, reward, done, infos = env.step(action)
    model.replay_buffer.add(observation, following, action, reward, done, infos)
    observation = following
model._setup_learn(1)  # makes the logger that train writes to
first = [part.clone() for part in model.q_net_target.parameters()]
model.train(gradient_steps=2_000, batch_size=32)
moved = max(float((a - b).abs().max()) for a, b in zip(first, model.q_net_target.parameters()))
learned = max(float((a - b).abs().max()) for a, b in zip(first, model.q_net.parameters()))
print("moved: target network", moved, "network", round(learned, 2))
assert moved == 0
assert learned > 0.01
PY
