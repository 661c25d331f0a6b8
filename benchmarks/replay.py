"""Speed of a replay: sequences, transitions, priorities and writing, with other libraries.

    python benchmarks/replay.py                          # all of it: some minutes, 9 GiB of RAM
    python benchmarks/replay.py --only stacks priorities --rounds 3
    STEPWELL_PURE=1 python benchmarks/replay.py          # without the compiled core
    pip install 'stepwell[peers]'                        # to compare the other libraries

The limit of sequences is one ``memcpy`` of the batch's observations alone, from a random place into
memory that is used again; that of stacked transitions one ``memcpy`` of eight frames for each, four
of the observation and four of the next one. Written rows are compared with plain assignments into a
ring of arrays; every ring is full when it is measured.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

import peer_cpprb
import peer_sb3
import peer_sheeprl
import peer_stepwell
import peer_tianshou
import peer_torchrl
import peers
import rounds
import stepwell as sw

SHAPE = (3, 64, 64)  # of pixels that are not stacked
SEQUENCES = ((16, 64), (32, 50))
STACK = 4
BATCHES = (32, 256)
LIMIT = "memcpy of 8 frames"
ASSIGNMENTS = "numpy assignments"
_WARM_UP_DRAWS = 200


# --- rows -----------------------------------------------------------------------------------------


def pixels(count: int) -> peers.Rows:
    """Random pixels."""
    rng = np.random.default_rng(0)
    return peers.Rows.of(rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8), episode_rows=1_000)


def frames(count: int) -> peers.Rows:
    """Random frames."""
    rng = np.random.default_rng(0)
    return peers.Rows.of(rng.integers(0, 256, (count, 84, 84), dtype=np.uint8), episode_rows=1_000)


def tiny(count: int) -> peers.Rows:
    """Rows of four numbers."""
    observation = np.random.default_rng(0).random((count, 4), np.float32)
    return peers.Rows.of(observation, episode_rows=1_000)


def scattered(count: int) -> sw.SequenceReplayBuffer:
    """Tiny rows, each chunk of which was looked into before."""
    replay = peer_stepwell.replay_of(tiny(count), threads=1, chunk_rows=500)
    for _ in range(_WARM_UP_DRAWS):  # at its first touch
        replay.sample_sequences(1_000, 1)
    return replay


def vector_steps(num_envs: int, episode_steps: int = 1_000) -> Iterator[Mapping[str, np.ndarray]]:
    """Vector steps without end; the envs end their episodes at different times."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, num_envs, *SHAPE), dtype=np.uint8)
    actions = rng.integers(0, 6, (32, num_envs))
    rewards = rng.random((32, num_envs))
    nothing = np.zeros(num_envs, np.bool_)
    phases = np.arange(num_envs) * (episode_steps // num_envs)
    for number in itertools.count():
        place = number % 32
        yield {
            "observation": pixels[place],
            "action": actions[place],
            "reward": rewards[place].astype(np.float32),
            "reward64": rewards[place],
            "terminated": (number + phases) % episode_steps == episode_steps - 1,
            "truncated": nothing,
        }


# --- sequences ------------------------------------------------------------------------------------


def sequences_in_ram(rows: peers.Rows, count: int, threads: int | None) -> list[rounds.Row]:
    """Raw pixels, with the peers."""
    lines: list[rounds.Row] = []
    replay = peer_stepwell.replay_of(rows, threads=threads)
    for batch, length in SEQUENCES:
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
        lines += peers.compare(
            *("sequences", f"raw, in RAM, {batch} x {length}"),
            candidates=candidates,
            limit="memcpy",
            count=count,
            goal=0.9,
        )
        candidates.clear()  # before the next ones take as much memory
    return lines


def sequences_on_disk(
    rows: peers.Rows, folder: Path, count: int, threads: int | None
) -> list[rounds.Row]:
    """Raw pixels in a folder, all of it in the page cache."""
    lines: list[rounds.Row] = []
    with peer_stepwell.replay_of(rows, path=folder, threads=threads) as replay:
        for _ in range(3 * len(replay) // 16_384):  # each chunk is checked at its first touch
            replay.sample_sequences(256, 64)
        for batch, length in SEQUENCES:
            candidates = {
                "memcpy": peers.memcpy(rows.observation, batch * length),
                **peer_stepwell.sequences(replay, batch, length),
            }
            lines += peers.compare(
                *("sequences", f"raw, on disk, in the page cache, {batch} x {length}"),
                candidates=candidates,
                limit="memcpy",
                count=count,
                goal=0.8,
            )
    return lines


def atari_sequences(
    games: list[str], steps: int, count: int, threads: int | None
) -> list[rounds.Row]:
    """Real frames, compressed."""
    lines: list[rounds.Row] = []
    frames = np.random.default_rng(0).integers(0, 256, (50_000, 84, 84), dtype=np.uint8)
    for game in games:
        replay = peer_stepwell.atari(game, steps, threads)
        for batch, length in SEQUENCES:
            candidates = {
                "memcpy": peers.memcpy(frames, batch * length),
                **peer_stepwell.sequences(replay, batch, length),
            }
            lines += peers.compare(
                *("sequences", f"{game}, compressed, {batch} x {length}"),
                candidates=candidates,
                limit="memcpy",
                count=count,
                goal=0.3,
            )
    return lines


# --- transitions ----------------------------------------------------------------------------------


def stacked(rows: peers.Rows, count: int, threads: int | None) -> list[rounds.Row]:
    """Stacked transitions, uniformly."""
    lines: list[rounds.Row] = []
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
    for batch, goal in zip(BATCHES, (1.2, 1.6), strict=True):
        candidates: dict[str, peers.Call] = {
            LIMIT: peers.memcpy(rows.observation, 8 * batch),
            **peer_stepwell.transitions(replay, batch),
            **{name: functools.partial(draw, batch) for name, draw in others.items()},
        }
        lines += peers.compare(
            *("stacks", f"raw, {batch}"),
            candidates=candidates,
            limit=LIMIT,
            count=count,
            goal=goal,
        )
    return lines


def atari_stacked(
    games: list[str], steps: int, count: int, threads: int | None
) -> list[rounds.Row]:
    """Stacked transitions of real frames, compressed."""
    lines: list[rounds.Row] = []
    frames = np.random.default_rng(0).integers(0, 256, (20_000, 84, 84), dtype=np.uint8)
    for game in games:
        replay = peer_stepwell.atari(game, steps, threads)
        for batch in BATCHES:
            candidates = {
                LIMIT: peers.memcpy(frames, 8 * batch),
                **peer_stepwell.transitions(replay, batch),
            }
            lines += peers.compare(
                *("stacks", f"{game}, compressed, {batch}"),
                candidates=candidates,
                limit=LIMIT,
                count=count,
            )
    return lines


def by_priority(
    rows: peers.Rows, stack: int, goals: tuple[float, ...], count: int, threads: int | None
) -> list[rounds.Row]:
    """Draw and update."""
    lines: list[rounds.Row] = []
    replay = peer_stepwell.replay_of(rows, stack=stack, threads=threads)
    others = peers.available(
        {
            "cpprb": functools.partial(peer_cpprb.prioritized, rows, stack),
            "Tianshou": functools.partial(peer_tianshou.prioritized, rows, stack),
        }
    )
    what = "4 numbers" if stack == 1 else f"{stack}x84x84"
    for batch, goal in zip(BATCHES, goals, strict=True):
        candidates: dict[str, peers.Call] = {
            **peer_stepwell.prioritized(replay, batch),
            **{name: functools.partial(draw, batch) for name, draw in others.items()},
        }
        limit = "cpprb" if "cpprb" in candidates else "stepwell"
        lines += peers.compare(
            *("priorities", f"{what}, {batch}"),
            candidates=candidates,
            limit=limit,
            count=count,
            goal=goal,
        )
    return lines


def small_and_large(count: int, most: int) -> list[rounds.Row]:
    """The same batches out of 100,000 tiny rows and out of many more."""
    sizes = (100_000, most)
    replays = {size: scattered(size) for size in sizes}
    lines: list[rounds.Row] = []
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
        lines += peers.compare(
            *("scale", what),
            candidates=candidates,
            limit=f"stepwell, {sizes[0]:,} rows",
            count=count,
        )
    return lines


def noise(rows: peers.Rows, count: int) -> list[rounds.Row]:
    """Pixels that do not compress, with the default codec of a folder, and stored as they are."""
    compressed = peer_stepwell.replay_of(rows, threads=1, codec="zstd")
    raw = peer_stepwell.replay_of(rows, threads=1)
    lines: list[rounds.Row] = []
    for what, draw in {
        "sequences, 16 x 64": lambda replay: replay.sample_sequences(16, 64),
        "transitions, 32": lambda replay: replay.sample_transitions(32),
    }.items():
        candidates: dict[str, peers.Call] = {
            "stepwell": functools.partial(draw, compressed),
            "codec='raw'": functools.partial(draw, raw),
        }
        lines += peers.compare(
            *("noise", what), candidates=candidates, limit="codec='raw'", count=count, goal=0.95
        )
    return lines


# --- writing --------------------------------------------------------------------------------------


def assignments(
    steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int
) -> peers.Call:
    """Write one vector step into arrays ``[time, envs, ...]``."""
    length = capacity // num_envs
    observation = np.ones((length, num_envs, *SHAPE), np.uint8)  # ones: touched once
    action = np.ones((length, num_envs), np.int64)
    reward = np.ones((length, num_envs), np.float32)
    terminated = np.ones((length, num_envs), np.bool_)
    truncated = np.ones((length, num_envs), np.bool_)
    place = 0

    def add() -> None:
        nonlocal place
        step = next(steps)
        observation[place] = step["observation"]
        action[place] = step["action"]
        reward[place] = step["reward"]
        terminated[place] = step["terminated"]
        truncated[place] = step["truncated"]
        place = (place + 1) % length

    return add


def written(envs: int, capacity: int, count: int) -> list[rounds.Row]:
    """Vector steps into full rings."""
    makers: dict[str, Callable[..., peers.Call]] = {
        ASSIGNMENTS: assignments,
        "stepwell": peer_stepwell.writing,
        "sheeprl": peer_sheeprl.writing,
        "SB3": peer_sb3.writing,
        "Tianshou": peer_tianshou.writing,
        "TorchRL": peer_torchrl.writing,
        "cpprb": peer_cpprb.writing,
    }
    candidates = peers.available(
        {
            name: functools.partial(make, vector_steps(envs), capacity, envs)
            for name, make in makers.items()
        }
    )
    return peers.compare(
        *("writing", f"{envs} envs of {'x'.join(map(str, SHAPE))}"),
        candidates=candidates,
        limit=ASSIGNMENTS,
        count=count,
        units=envs,
        goal=0.8,
    )


PARTS = ("sequences", "disk", "stacks", "atari", "priorities", "scale", "noise", "writing")


def measured(part: str, options: argparse.Namespace) -> list[rounds.Row]:
    """The lines of one part."""
    count, threads = options.rounds, options.threads
    if part == "sequences":
        return sequences_in_ram(pixels(options.rows), count, threads)
    if part == "disk":
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as name:
            return sequences_on_disk(pixels(options.rows), Path(name) / "store", count, threads)
    if part == "atari":
        of_games = (options.games, options.steps, count, threads)
        return [*atari_sequences(*of_games), *atari_stacked(*of_games)]
    if part == "stacks":
        return stacked(frames(options.rows), count, threads)
    if part == "priorities":
        return [
            *by_priority(tiny(options.rows), 1, (1.5, 3.0), count, threads),
            *by_priority(frames(options.rows), STACK, (1.0, 1.0), count, threads),
        ]
    if part == "scale":
        return small_and_large(count, options.most)
    if part == "noise":
        return noise(pixels(options.rows), count)
    return written(options.envs, options.capacity, count)


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", type=int, default=100_000, help="raw rows of 7 or 12 kB each")
    parser.add_argument("--most", type=int, default=10_000_000, help="rows of the larger replay")
    parser.add_argument("--steps", type=int, default=50_000, help="Atari steps a game")
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout", "Seaquest"])
    parser.add_argument("--envs", type=int, default=8, help="of which steps are written")
    parser.add_argument("--capacity", type=int, default=40_000, help="rows of a ring, for writing")
    parser.add_argument("--threads", type=int, help="threads that sample; left out: the default")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    lines: list[rounds.Row] = []
    for part in options.only:
        lines += measured(part, options)
    rounds.report(lines, ["stepwell", "numpy", "zstandard", *peers.versions()], options.json)


if __name__ == "__main__":
    main()
