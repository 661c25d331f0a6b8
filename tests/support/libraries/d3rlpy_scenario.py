"""Run where d3rlpy is, without Stepwell: writes down what d3rlpy makes of a file.

python d3rlpy_scenario.py DUMPED [FILE OUT FRAMES]...

Writes DUMPED, a file that d3rlpy itself dumps; and for each FILE all transitions into OUT, with
stacks of so many frames.
"""

from __future__ import annotations

import sys
from typing import Any

import d3rlpy
import numpy as np

PARTS = ("observation", "action", "reward", "next_observation", "next_action", "terminal")


def transitions(file: str, out: str, frames: int) -> None:
    data = d3rlpy.dataset
    picker = data.FrameStackTransitionPicker(frames) if frames > 1 else data.BasicTransitionPicker()
    with open(file, "rb") as opened:
        buffer = data.ReplayBuffer.load(opened, data.InfiniteBuffer(), transition_picker=picker)
    found: dict[str, Any] = {}
    for number in range(buffer.transition_count):
        episode, index = buffer.buffer[number]
        transition = picker(episode, index)
        for part in PARTS:
            value = getattr(transition, part)
            if isinstance(value, list):
                for place, array in enumerate(value):
                    found[f"{number}/{part}/{place}"] = array
            else:
                found[f"{number}/{part}"] = value
        found[f"{number}/returns"] = transition.rewards_to_go.sum()
    batch = buffer.sample_transition_batch(16)
    found["batch"] = batch.rewards
    info = buffer.dataset_info
    found["info"] = np.array([buffer.transition_count, buffer.size(), info.action_size])
    found["discrete"] = info.action_space == d3rlpy.ActionSpace.DISCRETE
    np.savez(out, **found)


def dump(out: str) -> None:
    rows = np.arange(4)
    dataset = d3rlpy.dataset.MDPDataset(
        observations=np.arange(14, dtype=np.float32).reshape(7, 2),
        actions=np.array([0, 1, 2, 1, 0, 2, 1]),
        rewards=np.concatenate([rows, rows[:3]]).astype(np.float32) / 3,
        terminals=np.array([0, 0, 0, 1, 0, 0, 0], np.float32),
        timeouts=np.array([0, 0, 0, 0, 0, 0, 1], np.float32),
    )
    with open(out, "w+b") as file:
        dataset.dump(file)


if __name__ == "__main__":
    dump(sys.argv[1])
    some = sys.argv[2:]
    for file, out, frames in zip(some[::3], some[1::3], some[2::3], strict=True):
        transitions(file, out, int(frames))
