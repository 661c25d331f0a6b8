#!/usr/bin/env bash
# Gymnasium 1.4.0: GrayscaleObservation shows other gray levels of Atari than the emulator and OpenCV.
#
# People expect: a gray screen is the same, whichever way it was made, as it is between ale-py 0.12.1
# (obs_type="grayscale"), AtariPreprocessing, and OpenCV 5.0.0, which Stable-Baselines3 uses.
# It does: has weights of its own, and cuts where the others round: most pixels are darker, and colours that are
# one level apart are 16 apart. Data of one way are not what a policy sees behind the other.
# Seen: the grays of Pong: [0, 87, 147, 148, 236] three times, and [0, 83, 143, 159, 236]
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q gymnasium==1.4.0 ale-py==0.12.1 numpy==2.4.6 opencv-python-headless==5.0.0.93
"$dir/venv/bin/python" - 2> "$dir/log" <<'PY' || { cat "$dir/log" >&2; exit 1; }
import ale_py
import cv2
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, GrayscaleObservation

gym.register_envs(ale_py)


def pong(kind: str) -> gym.Env:
    return gym.make("ALE/Pong-v5", obs_type=kind, frameskip=1, repeat_action_probability=0.0)


envs = {
    "emulator": pong("grayscale"),
    "AtariPreprocessing": AtariPreprocessing(pong("rgb"), noop_max=0, frame_skip=1, screen_size=(160, 210)),
    "OpenCV": pong("rgb"),
    "GrayscaleObservation": GrayscaleObservation(pong("rgb")),
}
shown = {}
for name, env in envs.items():
    env.reset(seed=0)
    for step in range(100):
        shown[name] = env.step(step % 6)[0]
shown["OpenCV"] = cv2.cvtColor(shown["OpenCV"], cv2.COLOR_RGB2GRAY)
for name, screen in shown.items():
    print(name, np.unique(screen).tolist())
    is_same = np.array_equal(screen, shown["emulator"])
    assert is_same == (name != "GrayscaleObservation")
    assert np.unique(screen).tolist() == ([0, 87, 147, 148, 236] if is_same else [0, 83, 143, 159, 236])
PY
