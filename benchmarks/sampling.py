"""Speed of `sample_sequences` against a plain copy of the same bytes and other libraries.

    python benchmarks/sampling.py                    # raw pixels in RAM and on disk, Atari frames
    python benchmarks/sampling.py --only raw --rounds 3

The limit is one ``memcpy`` of the batch's observations alone, from a random place into memory that
is used again.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path

import numpy as np

import peer_sheeprl
import peer_stepwell
import peer_torchrl
import peers
import rounds

SHAPES = ((16, 64), (32, 50))


def in_ram(rows: peers.Rows, count: int, threads: int | None) -> list[tuple[str, ...]]:
    """Raw pixels, with the peers."""
    lines: list[tuple[str, ...]] = []
    replay = peer_stepwell.replay_of(rows, threads=threads)
    for batch, length in SHAPES:
        makers = {
            "sheeprl EpisodeBuffer": peer_sheeprl.episode_sequences,
            "sheeprl SequentialReplayBuffer, crosses": peer_sheeprl.sequential_sequences,
            "TorchRL SliceSampler": peer_torchrl.sequences,
        }
        candidates = {
            "memcpy": peers.memcpy(rows.observation, batch * length),
            **peer_stepwell.sequences(replay, batch, length),
            **peers.available(
                {
                    name: functools.partial(make, rows, batch, length)
                    for name, make in makers.items()
                }
            ),
        }
        lines += peers.compare(f"raw, RAM, {batch}x{length}", candidates, "memcpy", count)
        candidates.clear()  # before the next ones take as much memory
    return lines


def on_disk(
    rows: peers.Rows, folder: Path, count: int, threads: int | None
) -> list[tuple[str, ...]]:
    """Raw pixels in a folder, all of it in the page cache."""
    lines: list[tuple[str, ...]] = []
    with peer_stepwell.replay_of(rows, path=folder, threads=threads) as replay:
        for _ in range(3 * len(replay) // 16_384):  # each chunk is checked at its first touch
            replay.sample_sequences(256, 64)
        for batch, length in SHAPES:
            candidates = {
                "memcpy": peers.memcpy(rows.observation, batch * length),
                **peer_stepwell.sequences(replay, batch, length),
            }
            lines += peers.compare(
                f"raw, page cache, {batch}x{length}", candidates, "memcpy", count
            )
    return lines


def atari(games: list[str], steps: int, count: int, threads: int | None) -> list[tuple[str, ...]]:
    """Real frames, compressed."""
    lines: list[tuple[str, ...]] = []
    frames = np.random.default_rng(0).integers(0, 256, (50_000, 84, 84), dtype=np.uint8)
    for game in games:
        replay = peer_stepwell.atari(game, steps, threads)
        per_million = replay.total_bytes / max(1, len(replay))
        for batch, length in SHAPES:
            candidates = {
                "memcpy": peers.memcpy(frames, batch * length),
                **peer_stepwell.sequences(replay, batch, length),
            }
            what = f"{game}, {per_million:.0f} MB a million, {batch}x{length}"
            lines += peers.compare(what, candidates, "memcpy", count)
    return lines


def main() -> None:
    """Print one table."""
    title = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=title, epilog=peers.EPILOG)
    parser.add_argument("--only", choices=["raw", "disk", "atari"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=100_000, help="raw rows of 12 kB each")
    parser.add_argument("--steps", type=int, default=50_000, help="Atari steps a game")
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout", "Seaquest"])
    parser.add_argument("--threads", type=int, help="threads that sample; left out: the default")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "numpy", "zstandard", *peers.versions()))
    lines: list[tuple[str, ...]] = []
    if options.only != "atari":
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (options.rows, 3, 64, 64), dtype=np.uint8)
        rows = peers.Rows.of(frames, episode_rows=1_000)
        if options.only != "disk":
            lines += in_ram(rows, options.rounds, options.threads)
        if options.only != "raw":
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as name:
                lines += on_disk(rows, Path(name) / "store", options.rounds, options.threads)
        del frames, rows
    if options.only in (None, "atari"):
        lines += atari(options.games, options.steps, options.rounds, options.threads)
    print("batches of sequences, all fields")
    print(rounds.table(peers.HEAD, lines))


if __name__ == "__main__":
    main()
