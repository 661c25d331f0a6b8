"""The cases of the table of goals: what is measured against what, by which clock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import bridges
import collect
import disk
import dropin_world_models
import peer_cpprb
import peer_stepwell
import peers
import replay
import rollout
import stepwell as sw
from stepwell.buffers import Codec, DiskStorage
from stepwell.buffers.dropin import dreamer, iris
from stepwell.buffers.storage.disk.files import Files

__all__ = ["GROUPS", "Case", "Setting"]

Work: TypeAlias = Callable[[], object]

OURS = "stepwell"
BATCHES = (32, 256)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Args:
        name: What is measured.
        goal: The least ratio to the limit, or without a limit the most microseconds.
        candidates: By name, calls that do the same work; one of them is `OURS`.
        limit: Name of the candidate that ours is compared with; None compares with nothing.
        of: The limit in the words of the table; empty for its name.
        clock: ``"cpu"``: CPU time of the thread; ``"wall"``: time, where other threads or processes
            do a part of the work.
        units: Units of work in a call.
        is_long: A call is long enough to be timed alone, once a round.
        limit_path: Path whose limit counts; empty for the own one.
        left_out: CPU seconds so far that do not count.
    """

    name: str
    goal: float
    candidates: dict[str, Work] = field(repr=False)
    limit: str | None = None
    of: str = ""
    clock: Literal["cpu", "wall"] = "cpu"
    units: float = 1.0
    is_long: bool = False
    limit_path: str = ""
    left_out: Callable[[], float] = field(default=lambda: 0.0, repr=False)


@dataclass(frozen=True)
class Setting:
    """Sizes of the measurement.

    Args:
        quick: Take small data: the figures only show that it works.
        seconds: Length of a round of collecting.
        folder: A folder on the disk to be measured.
        stack: Closed at the end.
    """

    quick: bool
    seconds: float
    folder: str
    stack: contextlib.ExitStack

    def rows(self, count: int) -> int:
        """So many rows, or a twentieth of them."""
        return count // 20 if self.quick else count

    def new_folder(self) -> Path:
        """An empty folder, which is removed at the end."""
        made = tempfile.TemporaryDirectory(dir=self.folder, prefix="benchmark-")
        return Path(self.stack.enter_context(made))


def stacks(setting: Setting) -> list[Case]:
    """Stacked transitions of raw frames, from 200,000."""
    rows = replay.frames(setting.rows(200_000))
    buffer = peer_stepwell.replay_of(rows, stack=replay.STACK, threads=1)
    cases: list[Case] = []
    for batch, goal in zip(BATCHES, (1.2, 1.6), strict=True):
        limit = peers.memcpy(rows.observation, 8 * batch)
        for kind, draw in peer_stepwell.transitions(buffer, batch).items():
            name = f"stacked transitions, raw, {batch}{kind.removeprefix('stepwell')}"
            cases.append(Case(name, goal, {OURS: draw, replay.LIMIT: limit}, replay.LIMIT))
    return cases


def pong(setting: Setting) -> list[Case]:
    """Stacked transitions of compressed frames, against raw ones of cpprb."""
    rows = replay.frames(setting.rows(50_000))
    raw = peer_cpprb.transitions(rows, replay.STACK, compressed=False)
    cases: list[Case] = []
    codecs: tuple[Codec, ...] = ("zstd", "delta")
    for codec in codecs:
        buffer = peer_stepwell.atari("Pong", setting.rows(50_000), 1, codec)
        candidates: dict[str, Work] = {
            OURS: functools.partial(buffer.sample_transitions, 32),
            "cpprb's raw frames": functools.partial(raw, 32),
        }
        cases.append(Case(f"Pong compressed ({codec}), 32", 0.8, candidates, "cpprb's raw frames"))
    return cases


def priorities(setting: Setting) -> list[Case]:
    """Draw small rows by priority, and update."""
    rows = replay.tiny(setting.rows(200_000))
    buffer = peer_stepwell.replay_of(rows, threads=1)
    peer = peer_cpprb.prioritized(rows, 1)
    return [
        Case(
            f"priorities, 4 numbers, {batch}",
            goal,
            {
                OURS: peer_stepwell.prioritized(buffer, batch)[OURS],
                "cpprb": functools.partial(peer, batch),
            },
            "cpprb",
        )
        for batch, goal in zip(BATCHES, (1.5, 3.0), strict=True)
    ]


def vectors(setting: Setting) -> list[Case]:
    """Transitions of four numbers, in microseconds."""
    buffer = peer_stepwell.replay_of(replay.tiny(setting.rows(100_000)), threads=1)
    return [
        Case(
            f"transitions, 4 numbers, {batch}",
            goal,
            {OURS: functools.partial(buffer.sample_transitions, batch)},
        )
        for batch, goal in zip(BATCHES, (30.0, 60.0), strict=True)
    ]


def sb3(setting: Setting) -> list[Case]:
    """Stable-Baselines3's replay and the bridge to it."""
    calls = bridges.sb3_calls(replay.tiny(setting.rows(100_000)), 1)
    candidates: dict[str, Work] = {OURS: calls["stepwell as_sb3_replay"], "SB3": calls["SB3"]}
    return [Case(f"SB3 bridge, 4 numbers, {bridges.BATCH}", 1.5, candidates, "SB3", "SB3's own")]


def write(setting: Setting) -> list[Case]:
    """Vector steps into a full replay."""
    envs, capacity = 8, setting.rows(40_000)
    candidates: dict[str, Work] = {
        OURS: peer_stepwell.writing(replay.vector_steps(envs), capacity, envs),
        "numpy rows": replay.assignments(replay.vector_steps(envs), capacity, envs),
    }
    return [Case(f"writing {envs} x {replay.SHAPE}", 0.8, candidates, "numpy rows")]


def sequences(setting: Setting) -> list[Case]:
    """Sequences of raw pixels by one thread."""
    rows = replay.pixels(setting.rows(60_000))
    buffer = peer_stepwell.replay_of(rows, threads=1)
    limit = peers.memcpy(rows.observation, 16 * 64)
    return [
        Case(
            f"sequences, raw, 16 x 64{kind.removeprefix('stepwell')}",
            0.9,
            {OURS: draw, "memcpy": limit},
            "memcpy",
        )
        for kind, draw in peer_stepwell.sequences(buffer, 16, 64).items()
    ]


def noise(setting: Setting) -> list[Case]:
    """Frames that do not compress, with the default codec of a folder, and stored as they are."""
    rows = replay.pixels(setting.rows(30_000))
    default = peer_stepwell.replay_of(rows, threads=1, codec="zstd")
    raw = peer_stepwell.replay_of(rows, threads=1)
    cases: list[Case] = []
    for name, draw in {
        "sequences of noise, 16 x 64": lambda buffer: buffer.sample_sequences(16, 64),
        "transitions of noise, 32": lambda buffer: buffer.sample_transitions(32),
    }.items():
        candidates: dict[str, Work] = {
            OURS: functools.partial(draw, default),
            "codec='raw'": functools.partial(draw, raw),
        }
        cases.append(Case(name, 0.95, candidates, "codec='raw'"))
    return cases


def scale(setting: Setting) -> list[Case]:
    """Scattered rows out of ten million, against the former time from 100,000."""
    few, many = setting.rows(100_000), setting.rows(10_000_000)
    buffers = {count: replay.scattered(count) for count in (few, many)}
    draws: dict[int, Work] = {
        count: functools.partial(buffer.sample_sequences, 256, 1)
        for count, buffer in buffers.items()
    }
    from_few = f"those over {few:,}"
    name = f"256 rows scattered over {many:,}"
    return [
        Case(name, 1 / 1.5, {OURS: draws[many], from_few: draws[few]}, from_few),
        Case(
            *(name, 1 / 0.8, {OURS: draws[many], from_few: draws[few]}, from_few),
            of=f"{from_few} before",
            limit_path="before",
        ),
    ]


def collecting(setting: Setting) -> list[Case]:
    """Collect to disk, against the loop that keeps nothing."""
    cases: list[Case] = []
    games, sizes = (("Pong",), (8,)) if setting.quick else (("Pong", "Breakout"), (8, 32))
    for game, envs in itertools.product(games, sizes):
        bare = collect.bare(game, envs)
        bare(16)
        began = time.perf_counter()
        trial = bare(64) / (time.perf_counter() - began)
        vector_steps = int(setting.seconds * trial / envs) + 1
        works = {
            "the bare loop": bare,
            "native": collect.collecting(game, envs, setting.new_folder(), "native"),
            "python": collect.collecting(game, envs, setting.new_folder(), "python"),
        }
        for work in works.values():
            work(16)
        calls: dict[str, Work] = {
            name: functools.partial(work, vector_steps) for name, work in works.items()
        }
        for backend, what, goal in (
            ("native", "", 0.96),
            ("python", ", true last frames", 0.95),
        ):
            candidates = {OURS: calls[backend], "the bare loop": calls["the bare loop"]}
            name = f"{game} x {envs} to disk{what}"
            cases.append(
                Case(
                    *(name, goal, candidates, "the bare loop"),
                    clock="wall",
                    units=vector_steps * envs,
                    is_long=True,
                )
            )
    return cases


def flush(setting: Setting) -> list[Case]:
    """A small flush, without the time in system calls."""
    spec, chunks = disk.noise_chunks(4 << 10)
    files = _TimedFiles()
    storage = DiskStorage.create(setting.new_folder() / "store", spec, files=files)
    setting.stack.callback(storage.close)

    candidates: dict[str, Work] = {OURS: lambda: storage.add(next(chunks))}
    name = "flush of 4 KiB, beyond its system calls"
    return [Case(name, 100.0, candidates, left_out=lambda: files.seconds)]


def cartpole(setting: Setting) -> list[Case]:
    """Envs that cost little."""
    envs, length = 8, rollout.LENGTH
    buffer = sw.SequenceReplayBuffer(capacity=100_000)
    collector = sw.Collector(rollout.cartpole(envs), sw.RandomPolicy(), buffer, seed=0)
    random: dict[str, Work] = {
        OURS: lambda: collector.collect(steps=length * envs),
        "the bare loop": functools.partial(collect.stepping(rollout.cartpole(envs)), length),
    }
    constant: dict[str, Work] = {
        OURS: rollout.rolling(rollout.cartpole(envs), rollout.constant(envs)),
        "the bare loop": rollout.stepping(rollout.cartpole(envs)),
    }
    return [
        Case(
            f"CartPole x {envs}, {what}",
            0.65,
            candidates,
            "the bare loop",
            units=float(length * envs),
        )
        for what, candidates in (("collected to RAM", random), ("rollouts", constant))
    ]


def dropin(setting: Setting) -> list[Case]:
    """Single steps into the drop-ins for torchwm's classes, and into those."""
    size = setting.rows(100_000)
    pairs = (
        ("dreamer_memory", dreamer, dropin_world_models.dreamer_pair),
        ("iris_memory", iris, dropin_world_models.iris_pair),
    )
    cases: list[Case] = []
    for name, ours, ready in pairs:
        original = dropin_world_models.original(name)
        if original is None:
            continue
        new, old = ready(ours, size), ready(original, size)
        for operation in new:
            if "add" in operation:
                candidates: dict[str, Work] = {OURS: new[operation], "torchwm": old[operation]}
                cases.append(Case(f"drop-in: {operation}", 0.8, candidates, "torchwm"))
    return cases


class _TimedFiles(Files):
    """System calls whose CPU time is summed up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        clock = time.thread_time
        cost = min(_taken(clock) for _ in range(1_000))  # of reading the clock
        for name in [name for name in dir(Files) if not name.startswith("_")]:
            setattr(self, name, self._timed(getattr(self, name), clock, cost))

    def _timed(
        self, call: Callable[..., Any], clock: Callable[[], float], cost: float
    ) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = clock()
            try:
                return call(*given)
            finally:
                self.seconds += clock() - began + cost

        return timed


def _taken(clock: Callable[[], float]) -> float:
    began = clock()
    return clock() - began


GROUPS: dict[str, Callable[[Setting], list[Case]]] = {
    "stacks": stacks,
    "pong": pong,
    "priorities": priorities,
    "vectors": vectors,
    "sb3": sb3,
    "write": write,
    "sequences": sequences,
    "noise": noise,
    "scale": scale,
    "flush": flush,
    "cartpole": cartpole,
    "dropin": dropin,
    "collect": collecting,
}
"""Functions, by their name for ``--only``, that prepare the cases of a part of the table."""
