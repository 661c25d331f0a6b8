"""The Dreamer and IRIS drop-ins next to the classes of torchwm that they stand in for.

    python benchmarks/dropin_world_models.py                 # rings of 100,000 steps, 3 GB of RAM
    python benchmarks/dropin_world_models.py --size 20000 --rounds 3

Each round runs every operation of the old and of the new class once, in turns, in one process. The
rings are full, so that each step that is added takes the place of another. The old classes need
``pip install --no-deps torchwm==0.4.2``; without them only ours are timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

import rounds
from stepwell.buffers.dropin import dreamer, iris

SHAPE, ACTIONS, EPISODE = (3, 64, 64), 6, 500
Work: TypeAlias = Callable[[], float]
Makers: TypeAlias = dict[str, Callable[[Any], Work]]
"""Functions, by operation, that bind a buffer to a call that returns its amount of work."""


class Frames:
    """Frames, actions and rewards, the same for all candidates."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (512, *SHAPE), dtype=np.uint8)
        self.actions = rng.standard_normal((512, ACTIONS)).astype(np.float32)
        self.number = 0

    def next(self) -> tuple[np.ndarray, np.ndarray, float, bool]:
        """A step of endless episodes of one length."""
        self.number += 1
        place = self.number % 512
        return self.images[place], self.actions[place], 1.0, self.number % EPISODE == 0


def dreamer_adds(count: int) -> Callable[[Any], Work]:
    """Add a number of steps."""

    def make(buffer: Any) -> Work:
        frames = Frames()

        def run() -> float:
            for _ in range(count):
                image, action, reward, done = frames.next()
                buffer.add({"image": image}, action, reward, float(done))
            return count

        return run

    return make


def iris_adds(count: int) -> Callable[[Any], Work]:
    """Add a number of steps."""

    def make(buffer: Any) -> Work:
        frames = Frames()

        def run() -> float:
            for _ in range(count):
                buffer.add(*frames.next())
            return count

        return run

    return make


def times(count: int, call: Callable[[Any], object]) -> Callable[[Any], Work]:
    """Call a function a number of times."""

    def make(buffer: Any) -> Work:
        def run() -> float:
            for _ in range(count):
                call(buffer)
            return count

        return run

    return make


def indexed(buffer: Any) -> object:
    """Draw 64 frames as torchwm's trainer does."""
    chosen = np.random.default_rng(0).integers(0, len(buffer), 64)
    return np.array([buffer.observations[i] for i in chosen])


def frames_of(buffer: Any) -> object:
    """Draw 64 frames by the fastest method of the class."""
    return buffer.sample_frames(64) if hasattr(buffer, "sample_frames") else indexed(buffer)


def flushes(module: Any) -> Callable[[Any], Work]:
    """Play 500 steps into the on-policy buffer, and move them to the replay."""
    current = module.IRISOnPolicyBuffer(1_000)
    frames = Frames()

    def make(buffer: Any) -> Work:
        def run() -> float:
            for _ in range(500):
                current.add(*frames.next())
            if hasattr(current, "flush_into"):
                current.flush_into(buffer)
                return 500
            for place in range(len(current)):  # as its guide says
                buffer.add(
                    current.observations[place],
                    current.actions[place],
                    current.rewards[place],
                    current.terminals[place],
                )
            current.clear()
            return 500

        return run

    return make


def dreamer_pair(module: Any, size: int) -> dict[str, Work]:
    """Dreamer's operations on a full ring."""
    buffer = module.ReplayBuffer(size, SHAPE, ACTIONS, 50, 50)
    makers: Makers = {
        "Dreamer add": dreamer_adds(2_000),
        "Dreamer sample, 50 x 50": times(10, lambda b: b.sample()),
    }
    works = {name: make(buffer) for name, make in makers.items()}
    for _ in range(size // 2_000 + 1):
        works["Dreamer add"]()
    return works


def iris_pair(module: Any, size: int) -> dict[str, Work]:
    """IRIS's operations on a full ring."""
    buffer = module.IRISReplayBuffer(size, SHAPE, ACTIONS, 20, 64)
    makers: Makers = {
        "IRIS add": iris_adds(2_000),
        "IRIS sample_sequence, 64 x 21": times(10, lambda b: b.sample_sequence()),
        "IRIS sample_single": times(200, lambda b: b.sample_single()),
        "IRIS observations[i], 64 of them": times(10, indexed),
        "IRIS sample_frames(64)": times(10, frames_of),
        "IRIS on-policy add and flush": flushes(module),
    }
    works = {name: make(buffer) for name, make in makers.items()}
    for _ in range(size // 2_000 + 1):
        works["IRIS add"]()
    return works


def memory_pair(module: Any) -> dict[str, Work]:
    """The documented memory of tuples."""
    memory = module.Memory(10_000)
    image = np.zeros(SHAPE, np.uint8)

    def add(memory: Any) -> None:
        memory.append(image, 1, 1.0, False)

    makers: Makers = {
        "Memory append": times(2_000, add),
        "Memory sample(32) of 10,000": times(200, lambda m: m.sample(32)),
    }
    works = {name: make(memory) for name, make in makers.items()}
    for _ in range(6):
        works["Memory append"]()
    return works


def rows_of(new: dict[str, Work], old: dict[str, Work], count: int) -> list[rounds.Row]:
    """Rows for each operation."""
    found: list[rounds.Row] = []
    for name, work in new.items():
        candidates = {"stepwell": work} | ({"torchwm": old[name]} if name in old else {})
        found += rounds.compare(
            *("world models", name),
            candidates=candidates,
            limit=list(candidates)[-1],
            count=count,
            goals={"stepwell": 1.0},
        )
    return found


def original(name: str) -> ModuleType | None:
    """A module of torchwm, where that is installed."""
    try:
        return importlib.import_module(f"world_models.memory.{name}")
    except ModuleNotFoundError as missing:
        print(f"{name}: no {missing.name} (pip install --no-deps torchwm==0.4.2)")
        return None


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--size", type=int, default=100_000, help="steps in a ring, of 12 kB each")
    parser.add_argument("--only", choices=["dreamer", "iris", "memory"])
    options = parser.parse_args()
    pairs: dict[str, tuple[str, Any, Callable[[Any], dict[str, Work]]]] = {
        "dreamer": ("dreamer_memory", dreamer, lambda m: dreamer_pair(m, options.size)),
        "iris": ("iris_memory", iris, lambda m: iris_pair(m, options.size)),
        "memory": ("dreamer_memory", dreamer, memory_pair),
    }
    rows: list[rounds.Row] = []
    for part, (name, ours, ready) in pairs.items():
        if options.only in (None, part):
            module = original(name)
            rows += rows_of(ready(ours), {} if module is None else ready(module), options.rounds)
    rounds.report(rows, ["stepwell", *rounds.installed("torchwm"), "numpy"], options.json)


if __name__ == "__main__":
    main()
