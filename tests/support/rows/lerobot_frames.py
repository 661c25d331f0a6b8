"""The frames that LeRobot's data sets have of `tagged_store`, in the words of their documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.buffers import End, SequenceReplayBuffer


def expected_frames(replay: SequenceReplayBuffer, fps: int) -> list[dict[str, Any]]:
    """The frames of all episodes, each with its observation as ``observation``."""
    frames: list[dict[str, Any]] = []
    for number, episode in enumerate(replay.iter_episodes()):
        for step in range(episode.steps):
            is_over = step == number
            terminated = is_over and bool(episode.end & End.TERMINATED)
            truncated = is_over and bool(episode.end & End.TRUNCATED)
            frames.append(
                {
                    "observation": episode.observation[step],
                    "action": step % 4,
                    "next.reward": number + (step + 1) / 4,
                    "next.done": terminated or truncated,
                    "next.terminated": terminated,
                    "next.truncated": truncated,
                    "timestamp": float(np.float32(step / fps)),
                    "frame_index": step,
                    "episode_index": number,
                    "index": len(frames),
                    "task_index": 0,
                }
            )
    return frames
