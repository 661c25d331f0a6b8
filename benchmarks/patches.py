"""The codec `patch` next to other codecs, libraries, and a copy of raw frames: time and memory.

    python benchmarks/patches.py                       # some minutes, 7 GiB of RAM
    python benchmarks/patches.py --games Pong --rounds 5 --json patches.json
    pip install 'stepwell[peers]'                      # to compare the other libraries

Frames of Atari games under a random player. A draw is compared with a numpy copy of as many raw
frames, from random places into memory that is used again: eight frames for each stacked transition,
four of the observation and four of the next one. With one thread, the default, CPU time is
measured; with more, the time that goes by.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from stepwell.buffers import Codec

STACK = 4
BATCHES = (32, 256)
SEQUENCES = (16, 64)
LIMIT, PEER = "numpy copy", "cpprb"
SB3, SB3_SMALL = "SB3", "SB3, optimize_memory_usage"
TIANSHOU = "Tianshou"
SHEEPRL, TORCHRL = "sheeprl EpisodeBuffer", "TorchRL SliceSampler"
DEFAULT = "patch, RAM"
WRITTEN_ROWS = 2_000
FORMS: dict[str, tuple[Codec, bool]] = {
    "raw, RAM": ("raw", False),
    "zstd, RAM": ("zstd", False),
    "patch, RAM": ("patch", False),
    "zstd, folder": ("zstd", True),
    "patch, folder": ("patch", True),
}
"""Codec, and whether the rows are on disk."""
_SEQUENCES = f"sequences, {SEQUENCES[0]} x {SEQUENCES[1]}"
COMPARED = {
    **{
        f"{batch} stacks: {head}": (f"stacks, {batch}", DEFAULT, other)
        for batch in BATCHES
        for head, other in (("copy", LIMIT), (PEER, PEER))
    },
    "sequences: copy": (_SEQUENCES, DEFAULT, LIMIT),
    "with out=: copy": (_SEQUENCES, DEFAULT + ", out=", LIMIT),
    "sheeprl": (_SEQUENCES, DEFAULT, SHEEPRL),
    "TorchRL": (_SEQUENCES, DEFAULT, TORCHRL),
    "writing: zstd": ("writing a row", DEFAULT, "zstd, RAM"),
    "in a folder": ("writing a row", "patch, folder", "zstd, folder"),
}
"""By the head of a column, a case, and two candidates of it."""


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
        TIANSHOU: functools.partial(peer_tianshou.transitions, stack=STACK),
    }
    few = beginning(rows, 8 * STACK)
    found = peers.available({name: functools.partial(make, few) for name, make in others.items()})
    return {
        **{name: functools.partial(ours, *form) for name, form in FORMS.items()},
        **{name: others[name] for name in found},
    }


def measured(
    topic: str, game: str, rows: peers.Rows, folder: Path, options: argparse.Namespace
) -> tuple[list[rounds.Row], dict[str, float]]:
    """The lines of a game, and by candidate the bytes of a stored row."""
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
    calls |= peers.available(
        {
            SHEEPRL: functools.partial(peer_sheeprl.episode_sequences, rows, batch, length),
            TORCHRL: functools.partial(peer_torchrl.sequences, rows, batch, length),
        }
    )
    cases[_SEQUENCES] = calls
    writing = "writing a row"
    cases[writing] = {
        LIMIT: few.observation.copy,
        **{name: functools.partial(make, few) for name, make in makers.items()},
    }
    lines: list[rounds.Row] = []
    for case, calls in cases.items():
        units = len(few.action) if case == writing else 1
        lines += rounds.compare(
            *(topic, f"{game}, {case}"),
            candidates={name: rounds.repeated(call, units) for name, call in calls.items()},
            limit=LIMIT,
            count=options.rounds,
            goals={DEFAULT: 1.5} if case.startswith("sequences") else {},
            clock="CPU" if options.threads == 1 else "time",
        )
    # Observations of rows of the other libraries are whole stacks; SB3 has the next ones as well.
    whole = float(rows.observation[0].nbytes)
    stored = {LIMIT: whole}
    stored |= {name: replay.total_bytes / len(replay) for name, replay in replays.items()}
    others = {PEER: STACK, SB3: 2 * STACK, SB3_SMALL: STACK, TIANSHOU: 1}
    stored |= {name: frames * whole for name, frames in others.items() if name in stores}
    for replay in replays.values():
        replay.close()
    return lines, stored


def games_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """One line for each game: how many times as fast the default codec is as others."""
    each = {(line["case"], line["candidate"]): line["each"] for line in lines}
    games = dict.fromkeys(line["case"].partition(", ")[0] for line in lines)
    columns = {
        head: pair
        for head, pair in COMPARED.items()
        if all((f"{game}, {pair[0]}", pair[2]) in each for game in games)
    }
    found = {
        game: [
            each[f"{game}, {case}", other] / each[f"{game}, {case}", how]
            for case, how, other in columns.values()
        ]
        for game in games
    }
    found["median"] = np.median(list(found.values()), axis=0).tolist()
    body = [(game, *(f"{one:.2f}" for one in line)) for game, line in found.items()]
    return rounds.table(("times as fast as", *columns), body)


def bytes_table(stored: Mapping[str, Mapping[str, float]]) -> str:
    """Bytes of a stored row, by game and candidate."""
    head = ("bytes of a row", *next(iter(stored.values())))
    sizes = [(game, *(f"{size:,.0f}" for size in each.values())) for game, each in stored.items()]
    means = np.mean([list(each.values()) for each in stored.values()], axis=0).tolist()
    return rounds.table(head, [*sizes, ("mean", *(f"{size:,.0f}" for size in means))])


def main() -> None:
    """Print three tables."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--games", nargs="+", default=["Pong", "Breakout"])
    parser.add_argument("--steps", type=int, default=40_000, help="of each game")
    parser.add_argument("--threads", type=int, default=1, help="threads that sample")
    parser.add_argument("--chunk-rows", type=int, default=250, help="rows of a stored chunk")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    lines, stored = list[rounds.Row](), dict[str, dict[str, float]]()
    for game in options.games:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as folder:
            rows = game_rows(game, options.steps)
            topic = "patches" if game == options.games[0] else "games"
            more, stored[game] = measured(topic, game, rows, Path(folder), options)
            lines += more
    packages = ["stepwell", "numpy", "zstandard", "ale-py", *peers.versions()]
    rounds.report(lines, packages, options.json, bytes=stored)
    print(games_table([dataclasses.asdict(line) for line in lines]))
    print(bytes_table(stored))


if __name__ == "__main__":
    main()
