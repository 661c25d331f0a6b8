"""The codec `patch` next to other codecs, cpprb, SB3 and a copy of raw frames: time and memory.

    python benchmarks/patches.py                       # some minutes, 5 GiB of RAM
    python benchmarks/patches.py --games Pong --rounds 5 --json patches.json
    pip install 'stepwell[peers]'                      # to compare the other libraries

Frames of Atari games under a random player. A draw is compared with a numpy copy of as many raw
frames, from random places into memory that is used again: eight frames for each stacked transition,
four of the observation and four of the next one. With one thread, the default, CPU time is
measured; with more, the time that goes by.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import peer_cpprb
import peer_sb3
import peer_stepwell
import peers
import rounds
import stepwell as sw
from stepwell.buffers import Codec

STACK = 4
BATCHES = (32, 256)
SEQUENCES = (16, 64)
LIMIT, PEER = "numpy copy", "cpprb"
SB3, SB3_SMALL = "SB3", "SB3, optimize_memory_usage"
WRITTEN_ROWS = 2_000
FORMS: dict[str, tuple[Codec, bool]] = {
    "raw, RAM": ("raw", False),
    "zstd, RAM": ("zstd", False),
    "patch, RAM": ("patch", False),
    "patch, folder": ("patch", True),
}
"""Codec, and whether the rows are on disk."""


def game_rows(game: str, steps: int, num_envs: int = 8) -> peers.Rows:
    """Single frames of a random player, episode by episode."""
    replay = sw.SequenceReplayBuffer(seed=0, codecs={"observation": "raw"})
    envs = sw.make_atari(game, num_envs, frame_stack=None)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)
    episodes = [episode.fields for episode in replay.iter_episodes()]
    ends = [np.arange(len(one["action"])) == len(one["action"]) - 1 for one in episodes]
    observation, action, reward = (
        np.concatenate([one[name] for one in episodes])
        for name in ("observation", "action", "reward")
    )
    return peers.Rows(observation, action, reward.astype(np.float32), np.concatenate(ends))


def beginning(rows: peers.Rows, count: int) -> peers.Rows:
    """The first rows, the last of which ends an episode."""
    found = peers.Rows(*(column[:count].copy() for column in rows))
    found.is_end[-1] = True
    return found


def copying(frames: np.ndarray, count: int, run: np.ndarray) -> peers.Call:
    """Copy so many runs of frames, each from a random place, into memory that is used again."""
    target = np.empty((count * len(run), *frames.shape[1:]), frames.dtype)
    rng = np.random.default_rng(0)
    last = len(frames) - int(run.max())

    def copy() -> None:
        places = (rng.integers(last, size=count)[:, None] + run).ravel()
        frames.take(places, axis=0, out=target, mode="clip")  # "raise" would copy twice

    return copy


def makers_of(
    rows: peers.Rows, folder: Path, chunk_rows: int, threads: int
) -> dict[str, Callable[[peers.Rows], Any]]:
    """By name, a call that stores rows; it returns our replay, or how another library draws."""
    paths = (folder / str(number) for number in itertools.count())

    def ours(codec: Codec, is_on_disk: bool, rows: peers.Rows) -> sw.SequenceReplayBuffer:
        return peer_stepwell.replay_of(
            rows,
            stack=STACK,
            path=next(paths) if is_on_disk else None,
            threads=threads,
            chunk_rows=chunk_rows,
            codec=codec,
        )

    others: dict[str, Callable[[peers.Rows], Any]] = {
        PEER: functools.partial(peer_cpprb.transitions, stack=STACK, compressed=False),
        SB3: functools.partial(peer_sb3.transitions, stack=STACK),
        SB3_SMALL: functools.partial(peer_sb3.transitions, stack=STACK, saves_memory=True),
    }
    few = beginning(rows, 8 * STACK)
    found = peers.available({name: functools.partial(make, few) for name, make in others.items()})
    return {
        **{name: functools.partial(ours, *form) for name, form in FORMS.items()},
        **{name: others[name] for name in found},
    }


def measured(rows: peers.Rows, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """By candidate: bytes of a stored row, microseconds, and ratios to the copy and to cpprb."""
    clock = rounds.cpu_seconds if options.threads == 1 else time.perf_counter
    makers = makers_of(rows, folder, options.chunk_rows, options.threads)
    stores = {name: make(rows) for name, make in makers.items()}
    replays: dict[str, sw.SequenceReplayBuffer] = {name: stores[name] for name in FORMS}
    few = beginning(rows, WRITTEN_ROWS)

    def named(name: str, calls: Mapping[str, peers.Call]) -> dict[str, peers.Call]:
        return {name + how.removeprefix(peers.OURS): call for how, call in calls.items()}

    cases: dict[str, dict[str, peers.Call]] = {}
    stack = np.arange(STACK)
    for batch in BATCHES:
        calls = {LIMIT: copying(rows.observation, batch, np.concatenate([stack, stack + 1]))}
        for name, store in stores.items():
            if name in replays:
                calls |= named(name, peer_stepwell.transitions(replays[name], batch))
            else:
                calls[name] = functools.partial(store, batch)
        cases[f"stacks, {batch}"] = calls
    batch, length = SEQUENCES
    calls = {LIMIT: copying(rows.observation, batch, np.arange(length))}
    for name, replay in replays.items():
        calls |= named(name, peer_stepwell.sequences(replay, batch, length))
    cases[f"sequences, {batch} x {length}"] = calls
    writes: dict[str, peers.Call] = {
        LIMIT: few.observation.copy,
        **{name: functools.partial(make, few) for name, make in makers.items()},
    }

    # Observations of rows of the other libraries are whole stacks; SB3 has the next ones as well.
    whole = float(rows.observation[0].nbytes)
    stored = {LIMIT: whole, PEER: STACK * whole, SB3: 2 * STACK * whole, SB3_SMALL: STACK * whole}
    stored |= {name: replay.total_bytes / len(replay) for name, replay in replays.items()}
    found: dict[str, Any] = {
        name: {"bytes a row": stored[name.removesuffix(", out=")]}
        for name in cases[f"stacks, {BATCHES[0]}"]
    }
    for case, calls in {**cases, "writing a row": writes}.items():
        units = len(few.action) if calls is writes else 1
        bursts = {name: rounds.repeated(call, units) for name, call in calls.items()}
        rates = {
            name: np.array(each)
            for name, each in rounds.rates(bursts, options.rounds, clock).items()
        }
        for name, each in rates.items():
            found[name][case] = {"us": 1e6 / float(np.median(each))} | {
                f"of {limit}": float(np.median(each / rates[limit]))
                for limit in (LIMIT, PEER)
                if limit in rates
            }
    for replay in replays.values():
        replay.close()
    return found


def lines(game: str, found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A line for each candidate; writing is shown in microseconds."""
    cases = list(found[LIMIT])
    for name, figures in found.items():
        cells = [game, name, f"{figures['bytes a row']:,.0f}"]
        for case in cases[1:-1]:
            ratios = [figures.get(case, {}).get(f"of {limit}") for limit in (LIMIT, PEER)]
            cells.append(" / ".join("-" if one is None else f"{one:.2f}" for one in ratios))
        written = figures.get(cases[-1])
        yield *cells, f"{written['us']:,.1f}" if written else ""


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout"])
    parser.add_argument("--steps", type=int, default=40_000, help="of each game")
    parser.add_argument("--threads", type=int, default=1, help="threads that sample")
    parser.add_argument("--chunk-rows", type=int, default=250, help="rows of a stored chunk")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    games: dict[str, Any] = {}
    for game in options.games:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as folder:
            games[game] = measured(game_rows(game, options.steps), Path(folder), options)
    clock = "CPU time" if options.threads == 1 else "time"
    print(f"Times as fast as {LIMIT} / as {PEER}, by {clock}; medians of {options.rounds} rounds")
    cases = list(games[options.games[0]][LIMIT])
    head = ("game", "candidate", *cases[:-1], f"us of {cases[-1]}")
    print(rounds.table(head, [line for game in games for line in lines(game, games[game])]))
    packages = ["stepwell", "numpy", "zstandard", "ale-py", *peers.versions()]
    print(rounds.machine(*packages))
    rounds.save(options.json, rounds.result(packages, games=games))


if __name__ == "__main__":
    main()
