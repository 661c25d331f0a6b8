"""The frame-history replay of the DQN homework, and Stepwell's in its place, side by side.

    python benchmarks/dropin_frame_history.py
    python benchmarks/dropin_frame_history.py --rounds 3 --size 100000

A batch is drawn as it comes and in C order, as TensorFlow takes it: of frames with one channel
the loop gives other strides in most batches. "view" is Stepwell's with ``contiguous=False``. A step
is store_frame, encode_recent_observation and store_effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

import rounds
from stepwell.buffers.dropin.frame_history import ReplayBuffer

BATCH = 32
EPISODE_STEPS = 1_000
SHAPES = (((84, 84, 1), 4), ((60, 64, 1), 8), ((84, 84, 3), 4))
LOOP = "loop"


class LoopBuffer:
    """The classic: arrays of frames, actions, rewards and flags, and a loop over the indices."""

    def __init__(self, size: int, k: int, shape: tuple[int, ...]) -> None:
        self.size, self.k, self.cursor, self.count = size, k, 0, 0
        self.frames = np.empty((size, *shape), np.uint8)
        self.actions = np.empty(size, np.int32)
        self.rewards = np.empty(size, np.float32)
        self.dones = np.empty(size, np.bool_)

    def store_frame(self, frame: np.ndarray) -> int:
        """Store a frame."""
        place = self.cursor
        self.frames[place] = frame
        self.cursor, self.count = (place + 1) % self.size, min(self.size, self.count + 1)
        return place

    def store_effect(self, place: int, action: int, reward: float, done: bool) -> None:
        """Store the action, reward and flag of a frame."""
        self.actions[place], self.rewards[place], self.dones[place] = action, reward, done

    def encode_recent_observation(self) -> np.ndarray:
        """The stack of the newest frame."""
        return self._stack((self.cursor - 1) % self.size)

    def sample(self, batch_size: int) -> tuple[np.ndarray, ...]:
        """Different transitions, one index after the other."""
        chosen: list[int] = []
        while len(chosen) < batch_size:
            place = np.random.randint(0, self.count - 2)  # noqa: NPY002 - as the original does
            if place not in chosen:
                chosen.append(place)
        before = np.concatenate([self._stack(place)[None] for place in chosen])
        after = np.concatenate([self._stack(place + 1)[None] for place in chosen])
        done = np.array([1.0 if self.dones[place] else 0.0 for place in chosen], np.float32)
        return before, self.actions[chosen], self.rewards[chosen], after, done

    def _stack(self, place: int) -> np.ndarray:
        first = place + 1 - self.k
        if first < 0 and self.count < self.size:
            first = 0
        for earlier in range(first, place):
            if self.dones[earlier % self.size]:
                first = earlier + 1
        missing = self.k - (place + 1 - first)
        if first >= 0 and not missing:
            frames = self.frames[first : place + 1].transpose(1, 2, 0, 3)
            return frames.reshape(*frames.shape[:2], -1)
        blank = [np.zeros_like(self.frames[0])] * missing
        there = [self.frames[each % self.size] for each in range(first, place + 1)]
        return np.concatenate([*blank, *there], axis=2)


Buffer: TypeAlias = "LoopBuffer | ReplayBuffer"


def play(buffer: Buffer, frames: np.ndarray, steps: int) -> float:
    """Steps, as a program takes them."""
    for step in range(steps):
        place = buffer.store_frame(frames[step % len(frames)])
        buffer.encode_recent_observation()
        done = step % EPISODE_STEPS == EPISODE_STEPS - 1
        buffer.store_effect(place, step % 6, 1.0, done)
    return steps


def draw(buffer: Buffer, batches: int, in_order: bool) -> float:
    """Batches, perhaps in C order."""
    for _ in range(batches):
        batch = buffer.sample(BATCH)
        if in_order:
            np.ascontiguousarray(batch[0])
            np.ascontiguousarray(batch[3])
    return batches


def compared(
    what: str, candidates: dict[str, Callable[[], float]], count: int, goal: float
) -> list[rounds.Row]:
    """Rows of one operation; all are compared with the loop."""
    goals = {"stepwell": goal, "stepwell, view": goal}
    return rounds.compare(
        *("frame history", what), candidates=candidates, limit=LOOP, count=count, goals=goals
    )


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--size", type=int, default=50_000, help="steps that are kept")
    parser.add_argument("--batches", type=int, default=100, help="batches a round")
    options = parser.parse_args()
    found: list[rounds.Row] = []
    for shape, k in SHAPES:
        size = options.size if shape[2] == 1 else options.size // 3
        frames = np.random.default_rng(0).integers(0, 256, (64, *shape), dtype=np.uint8)
        buffers: dict[str, Buffer] = {
            LOOP: LoopBuffer(size, k, shape),
            "stepwell": ReplayBuffer(size, k, seed=0),
            "stepwell, view": ReplayBuffer(size, k, seed=0, contiguous=False),
        }
        for buffer in buffers.values():
            play(buffer, frames, size)
        name = f"{'x'.join(map(str, shape))}, k={k}"
        for what, in_order in (("sample(32)", False), ("sample(32), C order", True)):
            draws: dict[str, Callable[[], float]] = {
                name: functools.partial(draw, buffer, options.batches, in_order)
                for name, buffer in buffers.items()
            }
            found += compared(f"{name}: {what}", draws, options.rounds, 5.0)
        steps: dict[str, Callable[[], float]] = {
            name: functools.partial(play, buffer, frames, 2_000) for name, buffer in buffers.items()
        }
        found += compared(f"{name}: a step", steps, options.rounds, 1.0)
    rounds.report(found, ["stepwell", "numpy"], options.json)


if __name__ == "__main__":
    main()
