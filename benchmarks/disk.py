"""Cost of the disk store: flushing, opening, drawing from many rows, and all of it at scale.

    python benchmarks/disk.py                         # all of it, in a folder below this one
    python benchmarks/disk.py --only flush --rounds 3 --folder /mnt/disk
    python benchmarks/disk.py --only scale --rows 100000 10000000 100000000 --chunk-rows 500

A flush is compared to `pwrite` and `fdatasync` of the same bytes alone, into a file that is
already allocated.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

import rounds
import stepwell as sw
from stepwell.buffers import Chunk, DiskStorage, End, Field, Spec
from stepwell.buffers.storage.chunk_codec import ChunkEncoder

WARM_UP_BYTES = 130 << 20  # from here on a segment has its full size
WARM_UP_DRAWS = 100
SCALE_DRAW = 20_000  # transitions of a batch that only touches chunks
SCALE_CALLS = 50
TINY = Spec(
    (
        Field("observation", "float32", (4,), "raw"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
    ),
    observation="observation",
    action="action",
)


# --- a flush --------------------------------------------------------------------------------------


def bare(path: Path, nbytes: int, flushes: int, count: int) -> Callable[[], float]:
    """Write as many bytes as a flush stores, one range after the other, and sync each."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, nbytes * flushes * (count + 1))
    os.fsync(file)
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()
    place = 0

    def run() -> float:
        nonlocal place
        for _ in range(flushes):
            os.pwrite(file, data, place)
            os.fdatasync(file)
            place += nbytes
        return flushes

    return run


def stored(
    storage: DiskStorage, chunks: Iterator[list[Chunk]], flushes: int
) -> Callable[[], float]:
    """Add the next chunks: making them is not timed, encoding them is."""

    def run() -> float:
        for _ in range(flushes):
            storage.add(next(chunks))
        return flushes

    return run


def noise_chunks(nbytes: int) -> tuple[Spec, Iterator[list[Chunk]]]:
    """Episodes of eight rows that are kept as they are, one a flush."""
    row_bytes = nbytes // 8 - 32
    rng = np.random.default_rng(0)
    fields: dict[str, np.ndarray] = {
        "observation": rng.integers(0, 256, (8, row_bytes), np.uint8),
        "action": np.arange(8),
        "reward": np.ones(8),
    }
    spec = Spec.from_spaces(spaces.Box(0, 255, (row_bytes,), np.uint8), spaces.Discrete(9))
    flushes = ([Chunk(number, 0, 0, End.TERMINATED, fields)] for number in range(1 << 40))
    return spec.with_codecs({"observation": "raw"}), flushes


def frame_chunks(rows: int, envs: int = 8) -> tuple[Spec, Iterator[list[Chunk]]]:
    """Chunks as a collector of eight Pong envs flushes them, compressed."""
    with sw.SequenceReplayBuffer() as replay:
        with sw.Collector(sw.make_atari("Pong", envs), sw.RandomPolicy(), replay, seed=0) as player:
            player.collect(steps=envs * 600)
        spec = replay.spec
        plays = [episode.fields for episode in replay.iter_episodes() if episode.rows > 600][:envs]

    def flushes() -> Iterator[list[Chunk]]:
        number = 0
        while True:
            for start in range(0, 600 - rows, rows):
                chosen = slice(start, start + rows)
                yield [
                    Chunk(
                        *(number + env, env, 0, End.TERMINATED),
                        {name: values[chosen] for name, values in play.items()},
                    )
                    for env, play in enumerate(plays)
                ]
                number += len(plays)

    return spec, flushes()


def encoding(spec: Spec, chunks: Iterator[list[Chunk]], flushes: int) -> Callable[[], float]:
    """Turn the next chunks into bytes, and store nothing."""
    writer = ChunkEncoder(spec)

    def run() -> float:
        for _ in range(flushes):
            for chunk in next(chunks):
                writer.encode(chunk)
        return flushes

    return run


def measure_flush(
    folder: Path, name: str, source: Callable[[], tuple[Spec, Iterator[list[Chunk]]]], count: int
) -> tuple[str, ...]:
    """One line of the table."""
    spec, chunks = source()
    with DiskStorage.create(folder / name, spec) as storage:
        warm_up, flushes = 0, 0
        while warm_up < WARM_UP_BYTES and flushes < 1_000:
            storage.add(next(chunks))
            flushes += 1
            warm_up = int(storage.index.records["nbytes"].sum())
        nbytes = warm_up // flushes
        batch = int(np.clip((16 << 20) // nbytes, 4, 100))
        measured = rounds.rates(
            {
                "bare": bare(folder / f"{name}.bare", nbytes, batch, count),
                "encoded": encoding(spec, source()[1], batch),
                "stored": stored(storage, chunks, batch),
            },
            count,
        )
    low, middle, high = rounds.ratios(measured, "bare", "stored")
    times = {each: 1e3 / np.array(rates) for each, rates in measured.items()}
    rest = (times["stored"] - times["encoded"]) / times["bare"]
    milliseconds = (f"{np.median(each):.2f}" for each in times.values())
    numbers = (f"{middle:.2f}", f"{low:.2f}", f"{high:.2f}", f"{np.median(rest):.2f}")
    return (name, f"{nbytes:,}", *milliseconds, *numbers)


def flush_table(folder: Path, count: int) -> str:
    """Flushes of several sizes."""
    lines = [
        measure_flush(folder, name, functools.partial(noise_chunks, nbytes), count)
        for name, nbytes in (
            ("raw, 4 KiB", 4 << 10),
            ("raw, 64 KiB", 64 << 10),
            ("raw, 1 MiB", 1 << 20),
            ("raw, 8 MiB", 8 << 20),
        )
    ]
    for rows in (16, 64, 256):
        source = functools.partial(frame_chunks, rows)
        lines.append(measure_flush(folder, f"8 x {rows} Pong frames", source, count))
    head = (
        *("flush", "bytes", "bare, ms", "encoding alone, ms", "stored, ms"),
        *("stored to bare: median", "min", "max", "less the encoding"),
    )
    return rounds.table(head, lines)


# --- many rows ------------------------------------------------------------------------------------


def fill(path: Path, rows: int, chunk_rows: int) -> None:
    """A store of tiny rows, in episodes of one chunk."""
    rng = np.random.default_rng(0)
    with DiskStorage.create(path, TINY) as storage:
        for begin in range(0, rows // chunk_rows, 100):
            fields: dict[str, np.ndarray] = {
                "observation": rng.random((chunk_rows, 4), np.float32),
                "action": rng.integers(0, 4, chunk_rows),
                "reward": np.ones(chunk_rows),
            }
            last = min(begin + 100, rows // chunk_rows)
            storage.add(
                [Chunk(number, 0, 0, End.TERMINATED, fields) for number in range(begin, last)]
            )


def opening(path: Path, *, read_only: bool) -> Callable[[], float]:
    """Open and close it."""

    def run() -> float:
        DiskStorage.open(path, read_only=read_only).close()
        return 1.0

    return run


def refreshing(storage: DiskStorage) -> Callable[[], float]:
    """Refresh a store that has no new rows."""

    def run() -> float:
        return 1.0 + storage.refresh()

    return run


def index_bytes(path: Path) -> int:
    """RAM that an open store takes before its first row is read."""
    tracemalloc.start()
    storage = DiskStorage.open(path, read_only=True)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    storage.close()
    return taken


def opening_table(folder: Path, count: int) -> str:
    """A million steps in long and in short chunks."""
    lines: list[tuple[str, ...]] = []
    for chunk_rows in (1_000, 100, 20):
        path = folder / f"open{chunk_rows}"
        fill(path, 1_000_000 + 1_000_000 // chunk_rows, chunk_rows + 1)
        with DiskStorage.open(path, read_only=True) as storage:
            chunks, steps = len(storage.index), storage.index.steps
            measured = rounds.rates(
                {
                    "read": opening(path, read_only=True),
                    "write": opening(path, read_only=False),
                    "refresh": refreshing(storage),
                },
                count,
            )
        seconds = (1 / np.array(measured[name]) for name in ("read", "write", "refresh"))
        texts = (f"{np.median(each):.3f} ({min(each):.3f}-{max(each):.3f})" for each in seconds)
        taken = index_bytes(path)
        per_chunk = f"{taken / chunks:,.0f}"
        lines.append((f"{steps:,}", f"{chunks:,}", *texts, f"{taken / 1e6:.1f} MB", per_chunk))
    head = (
        *("steps", "chunks", "open to read, s", "open to write, s", "refresh, s"),
        *("RAM", "bytes a chunk"),
    )
    return rounds.table(head, lines)


def drawing(
    replay: sw.SequenceReplayBuffer, batch: int, length: int, batches: int
) -> Callable[[], float]:
    """Draw batches."""

    def run() -> float:
        for _ in range(batches):
            replay.sample_sequences(batch, length)
        return batches

    return run


def drawing_table(folder: Path, count: int, chunk_rows: int) -> str:
    """The same batches out of few rows and of many."""
    replays: dict[int, sw.SequenceReplayBuffer] = {}
    for rows in (100_000, 10_000_000):
        path = folder / f"draw{rows}"
        fill(path, rows, chunk_rows)
        replay = replays[rows] = sw.SequenceReplayBuffer.open(path, read_only=True, seed=0)
        for _ in range(WARM_UP_DRAWS):  # each chunk is checked at its first touch: mostly here
            replay.sample_sequences(1_000, 1)
    lines: list[tuple[str, ...]] = []
    for batch, length in ((16, 64), (256, 1)):
        candidates = {
            f"{rows:,}": drawing(replay, batch, length, 100) for rows, replay in replays.items()
        }
        measured = rounds.rates(candidates, count)
        few, many = candidates
        low, middle, high = rounds.ratios(measured, few, many)
        rates = (f"{np.median(measured[name]):,.0f}" for name in candidates)
        numbers = (f"{middle:.2f}", f"{low:.2f}", f"{high:.2f}")
        lines.append((f"{batch} x {length}", *rates, *numbers))
    for replay in replays.values():
        replay.close()
    head = (
        *("batch", "batches/s of 100,000 rows", "of 10,000,000"),
        *("cost ratio: median", "min", "max"),
    )
    return f"chunks of {chunk_rows} rows\n" + rounds.table(head, lines)


# --- scale ----------------------------------------------------------------------------------------


class Sized(NamedTuple):
    """An open store of tiny rows, and what was measured while it was made."""

    name: str
    replay: sw.SequenceReplayBuffer
    path: Path
    costs: dict[str, float]


def anonymous_bytes() -> int:
    """RAM of this process, without mapped files; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def cpu(call: Callable[[], object], calls: int = 1) -> float:
    """Microseconds of CPU time that a call takes."""
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls * 1e6


def sized(folder: Path, rows: int, chunk_rows: int) -> Sized:
    """Make a store, open it, and draw until nearly every chunk was used once."""
    path, costs = folder / f"scale{rows}-{chunk_rows}", dict[str, float]()
    chunks = rows // chunk_rows
    costs["write, for each chunk"] = cpu(lambda: fill(path, rows, chunk_rows)) / chunks
    opened: list[sw.SequenceReplayBuffer] = []
    free = anonymous_bytes()
    costs["open"] = cpu(
        lambda: opened.append(sw.SequenceReplayBuffer.open(path, read_only=True, seed=0))
    )
    (replay,) = opened
    costs["RAM of the index, bytes a chunk"] = index_bytes(path) / chunks
    costs["first batch: items are counted"] = cpu(lambda: replay.sample_transitions(32))
    costs["first batch by priorities"] = cpu(
        lambda: replay.sample_transitions(32, draw="priorities")
    )
    draws = int(chunks * (np.log(chunks) + 3) / SCALE_DRAW) + 1
    took = cpu(lambda: replay.sample_transitions(SCALE_DRAW), draws)
    costs["first use of a chunk"] = took * draws / chunks
    costs["RAM of all, bytes a row"] = (anonymous_bytes() - free) / rows
    return Sized(f"{rows:,} rows, {chunk_rows} a chunk", replay, path, costs)


def scale_batches(chunk_rows: int) -> dict[str, Callable[[sw.SequenceReplayBuffer], object]]:
    """The batches, by name."""
    length = min(64, chunk_rows)

    def prioritized(replay: sw.SequenceReplayBuffer, batch: int) -> None:
        drawn = replay.sample_transitions(batch, draw="priorities")
        replay.update_priorities(drawn.ids, np.ones(batch, np.float32))

    return {
        "32 transitions": lambda replay: replay.sample_transitions(32),
        "256 transitions": lambda replay: replay.sample_transitions(256),
        f"16 sequences of {length}": lambda replay: replay.sample_sequences(16, length),
        "32 by priorities, updated": lambda replay: prioritized(replay, 32),
        "256 by priorities, updated": lambda replay: prioritized(replay, 256),
    }


def scale_table(folder: Path, count: int, sizes: list[int], chunk_rows: int) -> str:
    """The same work in stores of several sizes: microseconds of CPU time, lowest quarter."""
    sized(folder, 100 * chunk_rows, chunk_rows).replay.close()  # what is done once in a process
    stores = [sized(folder, rows, chunk_rows) for rows in sizes]
    for name, draw in scale_batches(chunk_rows).items():
        turns = [
            [cpu(functools.partial(draw, each.replay), SCALE_CALLS) for each in stores]
            for _ in range(4 * count)
        ]
        for each, values in zip(stores, zip(*turns, strict=True), strict=True):
            each.costs[name] = float(np.quantile(values, 0.25))
    for each in stores:
        each.costs["refresh, nothing new"] = cpu(each.replay.refresh, SCALE_CALLS)
        write_meanwhile(each, chunk_rows, count)
        each.replay.close()
    names = [each.name for each in stores]
    lines = [(cost, *(f"{each.costs[cost]:,.1f}" for each in stores)) for cost in stores[0].costs]
    return rounds.table(("microseconds of CPU time, or bytes", *names), lines)


def write_meanwhile(store: Sized, chunk_rows: int, count: int) -> None:
    """Measure a writer that adds to a large store, a reader that follows it, and an eviction."""
    costs: dict[str, list[float]] = {}
    with DiskStorage.open(store.path) as storage:
        store.replay.refresh()
        fields = {
            field.name: np.zeros((chunk_rows, *field.shape), field.dtype) for field in TINY.fields
        }
        for _ in range(count + 1):
            number = storage.index.next_episode
            chunks = [Chunk(number, 0, 0, End.TERMINATED, fields)]
            calls: dict[str, Callable[[], object]] = {
                "add a chunk": functools.partial(storage.add, chunks),
                "refresh, one new chunk": store.replay.refresh,
                "first batch after it": functools.partial(store.replay.sample_transitions, 32),
            }
            for name, call in calls.items():
                costs.setdefault(name, []).append(cpu(call))
        oldest = storage.index.oldest_segment_stop
        store.costs.update((name, float(np.median(each[1:]))) for name, each in costs.items())
        store.costs["evict a segment"] = cpu(lambda: storage.drop_before(oldest))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=["flush", "open", "draw", "scale"])
    sizes = [100_000, 10_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="of stores, for scale")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunk-rows", type=int, default=1_000, help="for draw and scale")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "numpy", "zstandard"))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as name:
        folder = Path(name)
        if options.only in (None, "flush"):
            print("\n" + flush_table(folder, options.rounds))
        if options.only in (None, "open"):
            print("\n" + opening_table(folder, options.rounds))
        if options.only in (None, "draw"):
            print("\n" + drawing_table(folder, options.rounds, options.chunk_rows))
        if options.only in (None, "scale"):
            print("\n" + scale_table(folder, options.rounds, options.rows, options.chunk_rows))


if __name__ == "__main__":
    main()
