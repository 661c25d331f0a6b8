"""How near `sample_sequences` comes to a plain copy of the same bytes.

    python benchmarks/sampling.py                    # raw pixels, then compressed Atari frames
    python benchmarks/sampling.py --only raw --rounds 3

The limit is one ``memcpy`` of the batch's observations alone, from a random place into memory that
is used again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from gymnasium import spaces

import rounds
import stepwell as sw
from stepwell.buffers import End, Piece, Spec

BATCH, LENGTH = 16, 64


def memcpy(frames: np.ndarray, batches: int) -> Callable[[], float]:
    """Copy as many rows as a batch has, in one piece."""
    rows = BATCH * LENGTH
    target = np.empty((rows, *frames.shape[1:]), frames.dtype)
    rng = np.random.default_rng(0)

    def run() -> float:
        for _ in range(batches):
            start = int(rng.integers(len(frames) - rows))
            np.copyto(target, frames[start : start + rows])
        return batches

    return run


def sampling(replay: sw.SequenceReplayBuffer, batches: int) -> Callable[[], float]:
    """Draw batches; the one before is let go only when the next one is there."""

    def run() -> float:
        batch = None
        for _ in range(batches):
            batch = replay.sample_sequences(BATCH, LENGTH)
        assert batch is not None
        return batches

    return run


def raw_pixels(rows: int, threads: int | None) -> tuple[np.ndarray, sw.SequenceReplayBuffer]:
    """Random (3, 64, 64) pixels in episodes of 1,000 rows, kept uncompressed."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (rows, 3, 64, 64), dtype=np.uint8)
    spec = Spec.from_spaces(spaces.Box(0, 255, (3, 64, 64), np.uint8), spaces.Discrete(6))
    replay = sw.SequenceReplayBuffer(codecs={"observation": "raw"}, seed=0, threads=threads)
    replay.bind(spec, {})
    for episode, start in enumerate(range(0, rows, 1_000)):
        chosen = slice(start, start + 1_000)
        fields: dict[str, np.ndarray] = {
            "observation": frames[chosen],
            "action": rng.integers(0, 6, 1_000),
            "reward": rng.normal(size=1_000),
        }
        whole = Piece(episode, 0, 0, End.TERMINATED, fields)
        for piece in whole.split(512):
            replay.add([piece])
    return frames, replay


def atari_frames(game: str, steps: int, threads: int | None) -> sw.SequenceReplayBuffer:
    """Real frames of a random player."""
    replay = sw.SequenceReplayBuffer(seed=0, threads=threads)
    with sw.Collector(sw.make_atari(game, 8), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)
    return replay


def measure(
    name: str, frames: np.ndarray, replay: sw.SequenceReplayBuffer, count: int
) -> tuple[str, ...]:
    """One line of the table."""
    batches = 100
    measured = rounds.rates(
        {"memcpy": memcpy(frames, batches), "sampled": sampling(replay, batches)}, count
    )
    low, middle, high = rounds.ratios(measured, "sampled", "memcpy")
    per_million = replay.total_bytes / max(1, len(replay)) * 1e6
    return (
        name,
        f"{len(replay):,}",
        f"{per_million / 1e6:,.0f} MB",
        f"{np.median(measured['sampled']):,.0f}",
        f"{middle:.2f}",
        f"{low:.2f}",
        f"{high:.2f}",
    )


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=["raw", "atari"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=200_000, help="raw rows of 12 kB each")
    parser.add_argument("--steps", type=int, default=50_000, help="Atari steps a game")
    parser.add_argument("--threads", type=int, help="threads that sample; left out: the default")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "numpy", "zstandard"))
    lines: list[tuple[str, ...]] = []
    if options.only != "atari":
        frames, replay = raw_pixels(options.rows, options.threads)
        lines.append(measure("raw (3,64,64)", frames, replay, options.rounds))
        del frames, replay
    if options.only != "raw":
        frames = np.random.default_rng(0).integers(0, 256, (50_000, 84, 84), dtype=np.uint8)
        for game in ("Pong", "Breakout", "Seaquest"):
            replay = atari_frames(game, options.steps, options.threads)
            lines.append(measure(f"{game}, zstd", frames, replay, options.rounds))
    head = ("data", "steps", "per million", "batches/s", "ratio to memcpy: median", "min", "max")
    print(f"batches of {BATCH} x {LENGTH} rows, all fields")
    print(rounds.table(head, lines))


if __name__ == "__main__":
    main()
