"""Speed of drawing transitions: stacks of frames, by priority, and from few and many rows.

    python benchmarks/transitions.py
    python benchmarks/transitions.py --only priorities --rounds 3

The limit of stacked transitions is one ``memcpy`` of eight frames for each, four of the
observation and four of the next one, from a random place into memory that is used again.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np

import peer_cpprb
import peer_sb3
import peer_stepwell
import peer_tianshou
import peers
import rounds

STACK = 4
BATCHES = (32, 256)
LIMIT = "memcpy of 8 frames"
_WARM_UP_DRAWS = 200


def raw_frames(rows: peers.Rows, count: int, threads: int | None) -> list[tuple[str, ...]]:
    """Stacked transitions, uniformly."""
    lines: list[tuple[str, ...]] = []
    replay = peer_stepwell.replay_of(rows, stack=STACK, threads=threads)
    fewer = peers.Rows(*(column[:20_000] for column in rows))  # for peers that are slow to fill
    others = peers.available(
        {
            "cpprb next_of": functools.partial(
                peer_cpprb.transitions, rows, STACK, compressed=False
            ),
            "cpprb next_of, stack_compress, 20k rows": functools.partial(
                peer_cpprb.transitions, fewer, STACK, compressed=True
            ),
            "Tianshou stack_num": functools.partial(peer_tianshou.transitions, rows, STACK),
            "SB3, 20k rows": functools.partial(peer_sb3.transitions, fewer, STACK),
        }
    )
    for batch in BATCHES:
        candidates: dict[str, peers.Call] = {
            LIMIT: peers.memcpy(rows.observation, 8 * batch),
            **peer_stepwell.transitions(replay, batch),
            **{name: functools.partial(draw, batch) for name, draw in others.items()},
        }
        lines += peers.compare(f"raw 4x84x84, {batch}", candidates, LIMIT, count)
    return lines


def atari_frames(
    games: list[str], steps: int, count: int, threads: int | None
) -> list[tuple[str, ...]]:
    """Stacked transitions of real frames, compressed."""
    lines: list[tuple[str, ...]] = []
    frames = np.random.default_rng(0).integers(0, 256, (20_000, 84, 84), dtype=np.uint8)
    for game in games:
        replay = peer_stepwell.atari(game, steps, threads)
        for batch in BATCHES:
            candidates = {
                LIMIT: peers.memcpy(frames, 8 * batch),
                **peer_stepwell.transitions(replay, batch),
            }
            lines += peers.compare(f"{game}, {batch}", candidates, LIMIT, count)
    return lines


def by_priority(
    rows: peers.Rows, stack: int, what: str, count: int, threads: int | None
) -> list[tuple[str, ...]]:
    """Draw and update."""
    lines: list[tuple[str, ...]] = []
    replay = peer_stepwell.replay_of(rows, stack=stack, threads=threads)
    others = peers.available(
        {
            "cpprb": functools.partial(peer_cpprb.prioritized, rows, stack),
            "Tianshou": functools.partial(peer_tianshou.prioritized, rows, stack),
        }
    )
    for batch in BATCHES:
        candidates: dict[str, peers.Call] = {
            **peer_stepwell.prioritized(replay, batch),
            **{name: functools.partial(draw, batch) for name, draw in others.items()},
        }
        limit = "cpprb" if "cpprb" in candidates else "stepwell"
        lines += peers.compare(f"priorities, {what}, {batch}", candidates, limit, count)
    return lines


def small_and_large(count: int, most: int) -> list[tuple[str, ...]]:
    """The same batches out of 100,000 tiny rows and out of many more."""
    sizes = (100_000, most)
    replays = {size: peer_stepwell.replay_of(tiny(size), chunk_rows=500) for size in sizes}
    for replay in replays.values():
        for _ in range(_WARM_UP_DRAWS):  # each chunk is looked into at its first touch
            replay.sample_sequences(1_000, 1)
    lines: list[tuple[str, ...]] = []
    for what, draw in {
        "transitions, 32": lambda replay: replay.sample_transitions(32),
        "transitions, 256": lambda replay: replay.sample_transitions(256),
        "sequences, 16x64": lambda replay: replay.sample_sequences(16, 64),
        "sequences, 256x1": lambda replay: replay.sample_sequences(256, 1),
    }.items():
        candidates: dict[str, peers.Call] = {
            f"stepwell, {size:,} rows": functools.partial(draw, replay)
            for size, replay in replays.items()
        }
        lines += peers.compare(what, candidates, f"stepwell, {sizes[0]:,} rows", count)
    return lines


def tiny(count: int) -> peers.Rows:
    """Rows of four numbers."""
    observation = np.random.default_rng(0).random((count, 4), np.float32)
    return peers.Rows.of(observation, episode_rows=1_000)


def frames(count: int) -> peers.Rows:
    """Random frames."""
    rng = np.random.default_rng(0)
    return peers.Rows.of(rng.integers(0, 256, (count, 84, 84), dtype=np.uint8), episode_rows=1_000)


def main() -> None:
    """Print one table."""
    title = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=title, epilog=peers.EPILOG)
    parser.add_argument("--only", choices=["raw", "atari", "priorities", "scale"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=200_000, help="raw rows of 7 kB each")
    parser.add_argument("--most", type=int, default=10_000_000, help="rows of the larger replay")
    parser.add_argument("--steps", type=int, default=50_000, help="Atari steps a game")
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout", "Seaquest"])
    parser.add_argument("--threads", type=int, help="threads that sample; left out: the default")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "numpy", "zstandard", *peers.versions()))
    count, threads, only = options.rounds, options.threads, options.only
    lines: list[tuple[str, ...]] = []
    if only in (None, "priorities"):
        lines += by_priority(tiny(options.rows), 1, "4 numbers", count, threads)
    if only in (None, "raw", "priorities"):
        pixels = frames(options.rows)
        if only != "priorities":
            lines += raw_frames(pixels, count, threads)
        if only != "raw":
            lines += by_priority(pixels, STACK, "4x84x84", count, threads)
        del pixels
    if only in (None, "atari"):
        lines += atari_frames(options.games, options.steps, count, threads)
    if only in (None, "scale"):
        lines += small_and_large(count, options.most)
    print("batches of transitions, all fields; by priority: drawn with weights, and updated")
    print(rounds.table(peers.HEAD, lines))


if __name__ == "__main__":
    main()
