"""Costs of collecting in actors: CPU a step, sampling while actors feed, pieces of an engine.

    python benchmarks/distributed.py                         # everything, some minutes
    python benchmarks/distributed.py --only engine --ray     # pieces through Ray, too

- ``step``: CPU time of all processes for an env step of Pong (8 envs), in actors and in one
  process, in turns. Goal: at most 1.10.
- ``feed``: batches of sequences from a mirror, while 8 actors feed it and while they rest, in
  turns. CPU time of the thread that draws, and batches a second. Goal: at least 0.9 by CPU; on a
  machine with fewer cores than actors, time says how busy the cores are.
- ``engine``: pieces of one chunk of 512 rows of Pong from two actors that do nothing else, through
  an engine and into a store in RAM. CPU time of this process for a piece, and for a row of it.
- ``driver``: the same for a whole driver, storing included, with 10, 100 and 1,000 actors in this
  process, a tenth of which answer at a time; the CPU time of the answers is not counted.

Figures are medians of the rounds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import rounds
import stepwell as sw
from stepwell.buffers import MemoryStorage
from stepwell.buffers.storage.encoded_chunk import EncodedChunk, pack_chunks, unpack_chunks
from stepwell.collectors.distributed.collector import DistributedCollector
from stepwell.collectors.distributed.engine import Engine
from stepwell.collectors.distributed.host import GroupHost
from stepwell.collectors.distributed.local_engine import LocalEngine
from stepwell.collectors.distributed.messages import (
    Call,
    CallTotals,
    GroupOptions,
    GroupStart,
    Payload,
    Piece,
)

NUM_ENVS = 8
FEEDERS = 8
ROWS = 512  # of a chunk
PIECE_ROWS = 8 * ROWS  # one chunk of each env
Rounds = list[dict[str, float]]


def family_cpu_seconds() -> float:
    """CPU time of this process and all that it has started, and they, as far as they run."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it ended meanwhile
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    # The clock of another process, as clock_getcpuclockid computes it on Linux.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in family)


def make_envs() -> Any:
    """Eight envs of Pong that are stepped in one thread."""
    return sw.make_atari("Pong", NUM_ENVS, backend="native", num_workers=1)


class Slow(sw.RandomPolicy):
    """Random actions, of which each takes some time, asleep.

    Args:
        seconds: Time of a call.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> Any:
        """Random actions for each env, after a while."""
        time.sleep(self._seconds)
        return super().__call__(observation, is_first)


def measure_step(count: int, steps: int) -> Rounds:
    """CPU time of a step in one process and in two actors."""
    replays = [sw.SequenceReplayBuffer(capacity=50_000) for _ in range(2)]
    found: Rounds = []
    with (
        sw.Collector(make_envs(), sw.RandomPolicy(), replays[0], seed=0) as alone,
        sw.LocalCollector(
            make_envs, sw.RandomPolicy, replays[1], groups=2, processes=2, seed=0
        ) as actors,
    ):
        collectors: Mapping[str, Any] = {"one process": alone, "actors": actors}
        for number in range(count + 1):
            one: dict[str, float] = {}
            for name in sorted(collectors, reverse=bool(number % 2)):
                began = family_cpu_seconds()
                taken = collectors[name].collect(steps=steps).steps
                one[name] = (family_cpu_seconds() - began) / taken
            if number:  # the first one starts actors and fills memory
                found.append(one)
    return found


def measure_feed(count: int, feed: float, batches: int) -> Rounds:
    """CPU time and rate of drawing from a mirror, which is fed or not."""
    replay = sw.SequenceReplayBuffer(capacity=100_000, seed=0)
    pause = FEEDERS * NUM_ENVS / feed
    found: Rounds = []
    with sw.LocalCollector(
        make_envs,
        functools.partial(Slow, pause),
        replay,
        groups=FEEDERS,
        processes=FEEDERS,
        seed=0,
        flush_seconds=1.0,
    ) as collector:
        with sw.Collector(make_envs(), sw.RandomPolicy(), sw.SequenceReplayBuffer()) as quick:
            quick.collect(steps=1_000)  # loads what is loaded once
        collector.collect(steps=20_000)
        batch = replay.sample_sequences(16, length=64)
        for number in range(count + 1):
            one: dict[str, float] = {}
            for name in ("quiet", "fed") if number % 2 else ("fed", "quiet"):
                if name == "fed":
                    with collector.running() as run:
                        time.sleep(1.5)  # until pieces come
                        cpu, rate = draw(replay, batch, batches)
                    one["steps fed"] = run.steps
                else:
                    cpu, rate = draw(replay, batch, batches)
                one[f"{name}, CPU"], one[f"{name}, a second"] = cpu, rate
            if number:
                found.append(one)
    return found


def draw(replay: sw.SequenceReplayBuffer, out: Any, batches: int) -> tuple[float, float]:
    """CPU time of this thread for a batch, and batches a second."""
    cpu, began = time.thread_time(), time.perf_counter()
    for _ in range(batches):
        replay.sample_sequences(16, length=64, out=out)
    return (time.thread_time() - cpu) / batches, batches / (time.perf_counter() - began)


class Canned:
    """A host that gives the same piece again and again.

    Args:
        data: Its packed chunks.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def advance(self) -> tuple[int, Payload]:
        """A number in place of a piece, and the payload."""
        return 1, Payload(chunks=bytes(self._data))


def pong_chunk() -> tuple[MemoryStorage, EncodedChunk]:
    """A chunk of 512 rows of random play, and the store that it is in."""
    replay, policy = sw.SequenceReplayBuffer(), sw.RandomPolicy()
    with sw.Collector(make_envs(), policy, replay, seed=0, flush_seconds=1e9) as collector:
        collector.collect(steps=NUM_ENVS * (ROWS + 8))
    storage = replay.storage
    assert isinstance(storage, MemoryStorage)
    rows = [storage.index.record(number).stored_rows for number in range(len(storage.index))]
    return storage, storage.encoded(rows.index(ROWS))


def piece_of(chunk: EncodedChunk, first: int) -> list[EncodedChunk]:
    """The chunk once for each env, as those of a piece: 4,096 rows."""
    return [chunk.placed(episode=first + env, stream=env) for env in range(NUM_ENVS)]


def measure_engine(count: int, pieces: int, make: Callable[[], Engine]) -> Rounds:
    """CPU time of this process for a piece and for a stored row."""
    source, whole = pong_chunk()
    data, rows = pack_chunks(piece_of(whole, 0)), NUM_ENVS * whole.rows
    engine = make()
    found: Rounds = []
    try:
        actors = [
            engine.start(f"canned-{number}", functools.partial(Canned, data)) for number in range(2)
        ]
        receive(engine, actors, 10)  # they are started then
        for _ in range(count):
            one: dict[str, float] = {"bytes": len(data), "rows": rows}
            cpu, began = time.process_time(), time.perf_counter()
            payloads = receive(engine, actors, pieces)
            one["piece"] = (time.process_time() - cpu) / pieces
            one["a second"] = pieces / (time.perf_counter() - began)
            storage = MemoryStorage(source.spec, capacity=rows * (pieces + 20))
            cpu = time.process_time()
            for number, payload in enumerate(payloads):
                chunks = unpack_chunks(payload.chunks, source.spec)
                first = number * NUM_ENVS
                storage.add_encoded(
                    [
                        chunk.placed(episode=first + chunk.episode, stream=chunk.stream)
                        for chunk in chunks
                    ]
                )
            one["row"] = (time.process_time() - cpu) / pieces / rows
            found.append(one)
    finally:
        engine.close()
    return found


def receive(engine: Engine, actors: list[Any], pieces: int) -> list[Payload]:
    """Ask for pieces, two at a time from each actor, and fetch the first ones' payloads."""
    payloads: list[Payload] = []
    asked = [engine.call(actor, "advance", parts=2) for actor in actors * 2]
    left = pieces - len(asked)
    while asked:
        for answer in engine.wait(asked, 10.0):
            asked.remove(answer)
            _number, reference = engine.result(answer)
            payload = engine.fetch(reference)
            engine.forget(reference)
            payloads.append(payload)
            if left > 0:
                asked.append(engine.call(answer.actor, "advance", parts=2))
                left -= 1
    return payloads


class _AtOnce:
    """An answer of an engine in this process."""

    def __init__(self, actor: Any, call: Callable[[], Any], parts: int) -> None:
        self.actor, self.call, self.parts = actor, call, parts
        self.value: Any = None


class EngineHere:
    """An engine whose actors are objects of this process; their CPU time is counted apart.

    Args:
        answers: How many of the oldest calls are answered at once.
    """

    def __init__(self, answers: int) -> None:
        self._at_once = answers
        self._open: deque[_AtOnce] = deque()
        self.cpu = 0.0

    def start(self, name: str, make: Callable[[], object]) -> Any:
        """An actor with a host that gives canned pieces."""
        return SimpleNamespace(name=name, host=CannedGroups())

    def call(self, actor: Any, method: str, *arguments: Any, parts: int = 1) -> Any:
        """Note the call."""
        answer = _AtOnce(actor, lambda: getattr(actor.host, method)(*arguments), parts)
        self._open.append(answer)
        return answer

    def wait(self, answers: Any, seconds: float) -> list[Any]:
        """Answer the oldest calls."""
        began = time.process_time()
        done: list[Any] = []
        while self._open and len(done) < self._at_once:
            done.append(self._open.popleft())
            done[-1].value = done[-1].call()
        self.cpu += time.process_time() - began
        return done

    def result(self, answer: Any) -> Any:
        """The value of an answer."""
        return answer.value

    def fetch(self, reference: Any) -> Any:
        """The payload itself."""
        return reference

    def share(self, value: object) -> Any:
        """The value itself."""
        return value

    def forget(self, reference: Any) -> None:
        """Nothing has to be freed."""

    def kill(self, actor: Any) -> None:
        """No actor dies here."""

    def shortage(self, actor: Any) -> str | None:
        """None: there is room for all."""
        return None

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Publish nothing."""

    def close(self) -> None:
        """Forget what was asked."""
        self._open.clear()


class CannedGroups:
    """A host whose groups give a chunk of Pong again and again, each as another episode."""

    piece: Piece
    chunk: EncodedChunk

    def __init__(self) -> None:
        self._pieces: Counter[int] = Counter()
        self._steps: Counter[tuple[int, int]] = Counter()
        self._newest: dict[int, Piece] = {}
        self._totals = CallTotals(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0)

    def ping(self) -> str:
        """The version of stepwell."""
        return sw.__version__

    def begin(self, start: GroupStart, weights: Any) -> int:
        """The number of envs."""
        return NUM_ENVS

    def advance(self, group: int, call: Call) -> tuple[Piece, Payload]:
        """The next piece, of 4,096 rows; after the last one of a call that one again."""
        if self._steps[group, call.number] >= call.amount:
            return self._newest[group], Payload()
        number = self._pieces[group]
        is_first = not number
        self._pieces[group] += 1
        self._steps[group, call.number] += PIECE_ROWS
        is_last = self._steps[group, call.number] >= call.amount
        piece = self.piece._replace(
            group=group,
            number=number,
            call=call.number,
            is_last=is_last,
            opening=self.piece.opening if is_first else None,
            totals=self._totals if is_last else None,
        )
        self._newest[group] = piece
        return piece, Payload(chunks=pack_chunks(piece_of(self.chunk, number * NUM_ENVS)))

    def close(self) -> None:
        """Nothing is open."""


def measure_driver(count: int, groups: int, pieces: int) -> Rounds:
    """CPU time of a whole driver for a piece, less that of the hosts."""
    host = GroupHost(make_envs, sw.RandomPolicy, GroupOptions(groups=1))
    host.begin(GroupStart(group=0, attempt=0, seed=0, session=0), {})
    call = Call(0, "steps", NUM_ENVS * 8)
    piece, _ = host.advance(0, call)
    while piece.opening is None:  # a host answers once a second, also without rows
        piece, _ = host.advance(0, call)
    host.close()
    _, chunk = pong_chunk()
    CannedGroups.chunk = chunk
    CannedGroups.piece = piece._replace(
        chunks=NUM_ENVS,
        rows=PIECE_ROWS,
        steps=PIECE_ROWS,
        nbytes=NUM_ENVS * chunk.nbytes,
        episodes=(),
    )
    engine = EngineHere(max(1, groups // 10))
    replay = sw.SequenceReplayBuffer(capacity=1_000_000)
    found: Rounds = []
    options = GroupOptions(groups)
    with DistributedCollector(
        lambda: engine, make_envs, sw.RandomPolicy, replay, options, actors=groups, seed=0
    ) as collector:
        collector.collect(steps=groups * PIECE_ROWS)  # all actors are started then
        for _ in range(count):
            each = max(1, pieces // groups)
            cpu, theirs = time.process_time(), engine.cpu
            collector.collect(steps=groups * each * PIECE_ROWS)
            cpu = time.process_time() - cpu - (engine.cpu - theirs)
            found.append({"piece": cpu / (groups * each)})
    return found


def spread(values: list[float], unit: str = "") -> str:
    """The median, with the lowest and the highest."""
    digits = 2 if np.median(values) < 10 else 0
    low, middle, high = (f"{at(values):,.{digits}f}" for at in (min, np.median, max))
    return f"{middle}{unit} ({low}-{high})"


def ratio(found: Rounds, name: str, other: str) -> str:
    """The median ratio of two figures of a round, with the lowest and the highest."""
    return spread([one[name] / one[other] for one in found])


def tables(figures: Mapping[str, Any]) -> str:
    """All figures as one table."""
    lines: list[tuple[str, ...]] = []

    def line(what: str, figure: str, goal: str = "") -> None:
        lines.append((what, figure, goal))

    def column(found: Rounds, name: str, factor: float = 1.0) -> list[float]:
        return [one[name] * factor for one in found]

    if found := figures.get("step"):
        line("CPU of a step of Pong, one process", spread(column(found, "one process", 1e6), " us"))
        line("in actors", spread(column(found, "actors", 1e6), " us"))
        line("ratio", ratio(found, "actors", "one process"), "at most 1.10")
    if found := figures.get("feed"):
        line("CPU of a batch of 16x64, quiet", spread(column(found, "quiet, CPU", 1e6), " us"))
        line(f"while {FEEDERS} actors feed", spread(column(found, "fed, CPU", 1e6), " us"))
        line("quiet / fed, CPU", ratio(found, "quiet, CPU", "fed, CPU"), "at least 0.9")
        line("fed / quiet, batches a second", ratio(found, "fed, a second", "quiet, a second"))
    for name in ("LocalEngine", "RayEngine"):
        if found := figures.get(name):
            line(f"{name}: CPU of the driver a piece", spread(column(found, "piece", 1e6), " us"))
            line(f"{name}: pieces a second", spread(column(found, "a second")))
            mega = [one["a second"] * one["bytes"] / 1e6 for one in found]
            line(f"{name}: MB/s", spread(mega))
            line("CPU of a row that is stored", spread(column(found, "row", 1e6), " us"))
            line("bytes of a row", spread([one["bytes"] / one["rows"] for one in found]))
    for name, found in figures.items():
        if name.startswith("driver"):
            line(f"CPU of a {name} a piece", spread(column(found, "piece", 1e6), " us"))
    return rounds.table(("what", "measured", "goal"), lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures that were asked for."""
    packages = ["stepwell", "numpy", "ale-py", *(["ray"] if options.ray else [])]
    figures = rounds.result(packages, rounds=options.rounds)
    only = options.only or ["step", "feed", "engine", "driver"]
    if "step" in only:
        figures["step"] = measure_step(options.rounds, options.steps)
    if "feed" in only:
        figures["feed"] = measure_feed(options.rounds, options.feed, options.batches)
    if "driver" in only:
        for groups in options.groups:
            found = measure_driver(options.rounds, groups, options.pieces)
            figures[f"driver with {groups:,} actors"] = found
    if "engine" in only:
        figures["LocalEngine"] = measure_engine(options.rounds, options.pieces, LocalEngine)
        if options.ray:
            from stepwell.collectors.distributed.ray_engine import RayEngine

            figures["RayEngine"] = measure_engine(options.rounds, options.pieces, RayEngine)
    return figures


def main() -> None:
    """Measure, and print a table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--only", nargs="+", choices=["step", "feed", "engine", "driver"])
    parser.add_argument("--steps", type=int, default=8_000, help="env steps of a round")
    parser.add_argument(
        "--feed", type=float, default=2_000, help="env steps a second of all actors"
    )
    parser.add_argument("--batches", type=int, default=100, help="batches of a round")
    parser.add_argument("--pieces", type=int, default=300, help="pieces of a round")
    parser.add_argument(
        "--groups", type=int, nargs="+", default=[10, 100, 1_000], help="of drivers"
    )
    parser.add_argument("--ray", action="store_true", help="measure Ray's engine, too")
    options = parser.parse_args()
    figures = measure(options)
    print(tables(figures))
    rounds.save(options.json, figures)


if __name__ == "__main__":
    main()
