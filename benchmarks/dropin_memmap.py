"""The drop-in for memmap-replay-buffer and the original: every operation of both, in turns.

    python benchmarks/dropin_memmap.py                    # vectors, and frames as a game shows them
    python benchmarks/dropin_memmap.py --data frames
    python benchmarks/dropin_memmap.py --flush 0 --only store

An episode of ours is on the disk when it ends; of the original's it may be so after ``flush()``,
which ``store_episode`` does not call.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rounds
from stepwell.buffers.dropin.memmap import ReplayBuffer

EPISODES, LENGTH, MAX_LENGTH = 256, 100, 200
FIELDS: dict[str, dict[str, Any]] = {
    "vectors": {"state": ("float", 8), "action": "int", "reward": "float"},
    "frames": {"state": ("uint8", (84, 84)), "action": "int", "reward": "float"},
}
META_FIELDS = {"task": "int"}
OURS, THEIRS = "stepwell", "memmap-replay-buffer"


class Side:
    """One of the two, with a filled buffer and one to write into.

    Args:
        name: Which.
        kind: The buffer's class.
        data: Which fields.
        folder: Where the buffers go.
        more: Further arguments of the buffer.
    """

    def __init__(self, name: str, kind: Any, data: str, folder: Path, more: dict[str, Any]) -> None:
        self.kind, self.data, self.more = kind, data, more
        self.folder = folder / name
        filled = self.buffer("full")
        for _ in range(EPISODES):
            filled.store_episode(**arrays(data), task=1)
        if name == OURS:
            filled.close()  # the original has no such thing
        del filled
        self.stored = self.kind.from_folder(self.folder / "full")
        self.empty = self.buffer("written", circular=True)

    def buffer(self, name: str, *, circular: bool = False) -> Any:
        """A new buffer."""
        folder = self.folder / name
        limits = {"max_episodes": EPISODES, "max_timesteps": MAX_LENGTH}
        fields: dict[str, Any] = {"fields": FIELDS[self.data], "meta_fields": META_FIELDS}
        return self.kind(folder, circular=circular, **limits, **fields, **self.more)

    def store(self) -> float:
        """Steps one by one."""
        steps = arrays(self.data)
        rows = [{name: values[t] for name, values in steps.items()} for t in range(LENGTH)]
        with self.empty.one_episode(task=1):
            for row in rows:
                self.empty.store(**row)
        return LENGTH

    def store_episode(self) -> float:
        """Whole episodes."""
        steps = arrays(self.data)
        for _ in range(8):
            self.empty.store_episode(**steps, task=1)
        return 8 * LENGTH

    def opening(self) -> float:
        """Open, and count the episodes."""
        assert self.kind.from_folder(self.folder / "full", read_only=True).num_episodes == EPISODES
        return EPISODES * LENGTH

    def trajectories(self) -> float:
        """A pass over the episodes."""
        return steps_of(self.stored.dataloader(16, return_mask=True), 2)

    def timesteps(self) -> float:
        """A pass over the steps."""
        return steps_of(self.stored.dataloader(256, timestep_level=True, shuffle=True), 1)

    def transitions(self) -> float:
        """A pass over 5-step transitions."""
        options = {"n_steps": 5, "sequence_fields": ("reward",), "shuffle": True}
        return steps_of(self.stored.dataloader(256, **options), 1)


def steps_of(loader: Any, axes: int) -> float:
    """Run through a loader, and count the steps."""
    return float(sum(np.prod(batch["state"].shape[:axes]) for batch in loader))


def arrays(data: str) -> dict[str, np.ndarray]:
    """An episode, with frames as a game shows them: flat areas and a few moving things."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {
        "action": rng.integers(0, 4, LENGTH).astype(np.int32),
        "reward": rng.random(LENGTH).astype(np.float32),
    }
    if data == "vectors":
        return {"state": rng.random((LENGTH, 8)).astype(np.float32), **found}
    frames = np.full((LENGTH, 84, 84), 87, np.uint8)
    frames[:, :12] = rng.integers(0, 256, (12, 84))
    for t in range(LENGTH):
        frames[t, 12 + t % 60 : 20 + t % 60, 5 : 5 + 4 * (1 + t % 9)] = t
    return {"state": frames, **found}


def sides(data: str, folder: Path, flush: int) -> Iterator[Side]:
    """Both, or ours alone where the original is not installed."""
    yield Side(OURS, ReplayBuffer, data, folder, {})
    if importlib.util.find_spec("memmap_replay_buffer") is not None:
        theirs = importlib.import_module("memmap_replay_buffer")
        yield Side(THEIRS, theirs.ReplayBuffer, data, folder, {"flush_every_store_step": flush})


def measured(data: str, count: int, flush: int, names: list[str]) -> list[rounds.Row]:
    """Rows for each operation."""
    found: list[rounds.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        both = {side.folder.name: side for side in sides(data, Path(folder), flush)}
        for name in names:
            found += rounds.compare(
                *("memmap", f"{data}: {name}"),
                candidates={key: getattr(side, name) for key, side in both.items()},
                limit=list(both)[-1],
                count=count,
                goals={OURS: 1.0},
            )
        for buffer in (both[OURS].stored, both[OURS].empty):
            buffer.close()
    return found


def main() -> None:
    """Print the table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--data", nargs="+", default=list(FIELDS))
    parser.add_argument("--flush", type=int, default=1, help="the original's: 1 is its default")
    parser.add_argument(
        "--only",
        nargs="+",
        default="store store_episode trajectories timesteps transitions opening".split(),
    )
    options = parser.parse_args()
    packages = ["stepwell", "numpy", "torch"]
    if importlib.util.find_spec("memmap_replay_buffer") is None:
        print("memmap-replay-buffer is not installed: pip install memmap-replay-buffer")
    else:
        packages.append("memmap-replay-buffer")
    found: list[rounds.Row] = []
    for data in options.data:
        found += measured(data, options.rounds, options.flush, options.only)
    rounds.report(found, packages, options.json)


if __name__ == "__main__":
    main()
