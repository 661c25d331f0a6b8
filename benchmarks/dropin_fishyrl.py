"""FishyRL's independent rings, and Stepwell's buffer in their place, side by side.

    python benchmarks/dropin_fishyrl.py
    python benchmarks/dropin_fishyrl.py --rounds 3 --envs 16

A record is one vector step; a batch is 16 windows of 64 rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

import rounds
from stepwell.buffers.dropin.fishyrl import IndependentVectorizedBuffer

BATCH, LENGTH = 16, 64
EPISODE_STEPS = 200
WIDTHS = (4, 64, 1_024)
RINGS = "rings"
Record: TypeAlias = "Mapping[str, np.ndarray]"


class Rings:
    """The classic: for each env a ring of arrays; a batch is drawn ring by ring."""

    def __init__(self, count: int, capacity: int) -> None:
        self.rings: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        self.capacity, self.cursor, self.is_full = capacity, 0, False
        self.rngs = [np.random.default_rng(number) for number in range(count)]
        self.rng = np.random.default_rng(0)

    def add(self, record: Record) -> None:
        """Store a record of all envs, value by value; each ring compares the keys."""
        for env, ring in enumerate(self.rings):
            for key in np.unique([*record, *ring]) if ring else ():
                if key not in ring or key not in record:
                    raise ValueError(f"{key} is not in both")
            for key, values in record.items():
                value = values[env]
                if key not in ring:
                    ring[key] = np.empty((self.capacity, *value.shape), value.dtype)
                ring[key][self.cursor] = value
        self.cursor += 1
        if self.cursor == self.capacity:
            self.cursor, self.is_full = 0, True

    def sample(self, batch_size: int, sequence_length: int) -> dict[str, np.ndarray]:
        """Windows of rings that are chosen at random."""
        chosen = self.rng.integers(0, len(self.rings), batch_size)
        shares = np.bincount(chosen, minlength=len(self.rings))
        parts: list[dict[str, np.ndarray]] = []
        size = self.capacity if self.is_full else self.cursor
        for ring, rng, share in zip(self.rings, self.rngs, shares.tolist(), strict=True):
            if not share:
                continue
            start = rng.choice(size - sequence_length + 1, size=share)
            if self.is_full:
                start = (start + self.cursor) % self.capacity
            place = start[:, None] + np.arange(sequence_length)
            parts.append({key: rows.take(place, 0, mode="wrap") for key, rows in ring.items()})
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


Buffer: TypeAlias = "Rings | IndependentVectorizedBuffer"


def records(envs: int, width: int) -> list[dict[str, np.ndarray]]:
    """An episode's records."""
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.random((envs, width), np.float32),
            "rewards": np.ones(envs),
            "terminations": np.full(envs, step == EPISODE_STEPS - 1),
            "truncations": np.zeros(envs, np.bool_),
            "actions": np.eye(envs, 2, dtype=np.float32),
        }
        for step in range(EPISODE_STEPS)
    ]


def add(buffer: Buffer, given: list[dict[str, np.ndarray]], count: int) -> float:
    """Records, one after the other."""
    for number in range(count):
        buffer.add(given[number % len(given)])
    return count


def draw(buffer: Buffer, count: int) -> float:
    """Batches."""
    for _ in range(count):
        buffer.sample(BATCH, LENGTH)
    return count


def learn(buffer: Buffer, given: list[dict[str, np.ndarray]], count: int) -> float:
    """A record and a batch, by turns."""
    for number in range(count):
        buffer.add(given[number % len(given)])
        buffer.sample(BATCH, LENGTH)
    return count


def compared(envs: int, width: int, rows: int, count: int) -> list[rounds.Row]:
    """Rows for each kind of work and candidate."""
    given, capacity = records(envs, width), rows // envs
    buffers: dict[str, Buffer] = {
        RINGS: Rings(envs, capacity),
        "stepwell": IndependentVectorizedBuffer(envs, capacity, seed=0),
    }
    works: dict[str, Callable[[Buffer], float]] = {
        "add": functools.partial(add, given=given, count=2_000),
        "sample 16 x 64": functools.partial(draw, count=200),
        "both by turns": functools.partial(learn, given=given, count=200),
    }
    for buffer in buffers.values():
        add(buffer, given, capacity)
    found: list[rounds.Row] = []
    for what, work in works.items():
        found += rounds.compare(
            *("fishyrl", f"{envs} envs, [{width}]: {what}"),
            candidates={name: functools.partial(work, each) for name, each in buffers.items()},
            limit=RINGS,
            count=count,
            goals={"stepwell": 1.0},
        )
    return found


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--envs", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rows", type=int, default=60_000, help="rows of all envs, in each buffer")
    options = parser.parse_args()
    found: list[rounds.Row] = []
    for envs in options.envs:
        for width in WIDTHS:
            found += compared(envs, width, options.rows, options.rounds)
    rounds.report(found, ["stepwell", "numpy"], options.json)


if __name__ == "__main__":
    main()
