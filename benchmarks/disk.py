"""Cost of the disk store: flushing, opening, drawing from many rows, merging, and scale.

    python benchmarks/disk.py                         # all of it, in a folder below this one
    python benchmarks/disk.py --only flush --rounds 3 --folder /mnt/disk
    python benchmarks/disk.py --only scale --rows 100000 10000000 100000000 --chunk-rows 500

A flush is compared to `pwrite` and `fdatasync` of the same bytes alone, into a file that is
already allocated. A merge is compared to copies of the same files, each synchronized.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

import rounds
import stepwell as sw
from stepwell.buffers import Chunk, Codec, DiskStorage, End, Field, Spec, copy_episodes
from stepwell.buffers.storage.chunk_codec import ChunkEncoder

BARE, COPIES = "pwrite and fdatasync", "files copied and synchronized"
WARM_UP_BYTES = 130 << 20  # from here on a segment has its full size
WARM_UP_DRAWS = 100
SCALE_DRAW = 20_000  # transitions of a batch that only touches chunks
SCALE_CALLS = 50
PARTS = ("flush", "open", "draw", "merge", "scale")
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
) -> list[rounds.Row]:
    """Rows of one size, by time: a flush waits for the disk."""
    spec, chunks = source()
    with DiskStorage.create(folder / name, spec) as storage:
        warm_up, flushes = 0, 0
        while warm_up < WARM_UP_BYTES and flushes < 1_000:
            storage.add(next(chunks))
            flushes += 1
            warm_up = int(storage.index.records["nbytes"].sum())
        nbytes = warm_up // flushes
        batch = int(np.clip((16 << 20) // nbytes, 4, 100))
        return rounds.compare(
            *("flush", name),
            candidates={
                BARE: bare(folder / f"{name}.bare", nbytes, batch, count),
                "encoding alone": encoding(spec, source()[1], batch),
                "stored": stored(storage, chunks, batch),
            },
            limit=BARE,
            count=count,
            goals={"stored": 1 / 1.2},
            clock="time",
        )


def flushes(folder: Path, count: int) -> list[rounds.Row]:
    """Flushes of several sizes."""
    rows: list[rounds.Row] = []
    for name, nbytes in (
        ("raw, 4 KiB", 4 << 10),
        ("raw, 64 KiB", 64 << 10),
        ("raw, 1 MiB", 1 << 20),
        ("raw, 8 MiB", 8 << 20),
    ):
        rows += measure_flush(folder, name, functools.partial(noise_chunks, nbytes), count)
    for length in (16, 64, 256):
        source = functools.partial(frame_chunks, length)
        rows += measure_flush(folder, f"8 x {length} Pong frames", source, count)
    return rows


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


def openings(folder: Path, count: int) -> list[dict[str, float]]:
    """A million steps in long and in short chunks: CPU seconds and bytes of RAM."""
    found: list[dict[str, float]] = []
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
                time.process_time,
            )
        taken = index_bytes(path)
        found.append({"steps": steps, "chunks": chunks, "bytes a chunk": taken / chunks})
        found[-1] |= {name: 1 / float(np.median(each)) for name, each in measured.items()}
    return found


def openings_table(found: Sequence[Mapping[str, float]]) -> str:
    """A line for each store."""
    lines = [
        (
            *(f"{each[name]:,.0f}" for name in ("steps", "chunks")),
            *(f"{each[name]:.3f}" for name in ("read", "write", "refresh")),
            f"{each['bytes a chunk']:,.0f}",
        )
        for each in found
    ]
    head = (
        "steps",
        "chunks",
        "open to read, s of CPU",
        "to write",
        "refresh",
        "RAM, bytes a chunk",
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


def draws(folder: Path, count: int, chunk_rows: int) -> list[rounds.Row]:
    """The same batches out of few rows and of many."""
    replays: dict[int, sw.SequenceReplayBuffer] = {}
    for rows in (100_000, 10_000_000):
        path = folder / f"draw{rows}"
        fill(path, rows, chunk_rows)
        replay = replays[rows] = sw.SequenceReplayBuffer.open(path, read_only=True, seed=0)
        for _ in range(WARM_UP_DRAWS):  # each chunk is checked at its first touch: mostly here
            replay.sample_sequences(1_000, 1)
    found: list[rounds.Row] = []
    few, many = (f"of {rows:,} rows" for rows in replays)
    for batch, length in ((16, 64), (256, 1)):
        found += rounds.compare(
            *("draw", f"{batch} x {length}, chunks of {chunk_rows} rows"),
            candidates={
                name: drawing(replay, batch, length, 100)
                for name, replay in zip((few, many), replays.values(), strict=True)
            },
            limit=few,
            count=count,
        )
    for replay in replays.values():
        replay.close()
    return found


# --- copies ---------------------------------------------------------------------------------------


def play_again(path: Path, seed: int, steps: int) -> None:
    """A store of a random player's Pong, whose episodes come again and again."""
    with sw.SequenceReplayBuffer() as source, sw.SequenceReplayBuffer(path) as replay:
        with sw.Collector(sw.make_atari("Pong", 8), sw.RandomPolicy(), source, seed=seed) as player:
            player.collect(steps=40_000)
        replay.bind(source.spec, source.sessions[0])
        storage = source.storage
        chunks = [storage.encoded(position) for position in range(len(storage.index))]
        while replay.steps < steps:
            first = storage.index.next_episode * (replay.steps // len(source))
            replay.add_encoded(
                [each.placed(episode=first + each.episode, stream=each.stream) for each in chunks]
            )


def copied_files(paths: list[Path], out: Path) -> float:
    """Copy all files of some folders, and return the bytes."""
    nbytes = 0
    for path in paths:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for file in path.iterdir():
            with file.open("rb") as source, (out / file.name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                nbytes += target.tell()
    return nbytes


def merged(paths: list[Path], out: Path, codecs: dict[str, Codec]) -> None:
    """Merge some stores."""
    shutil.rmtree(out, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        sources = [
            stack.enter_context(sw.SequenceReplayBuffer.open(path, read_only=True))
            for path in paths
        ]
        target = stack.enter_context(sw.SequenceReplayBuffer(out, codecs=codecs))
        copy_episodes(sources, target)


def merges(folder: Path, count: int, steps: int) -> list[rounds.Row]:
    """Two stores: copies of their files, a merge, and one that encodes all rows again."""
    paths = [folder / f"merge{number}" for number in range(2)]
    for seed, path in enumerate(paths):
        play_again(path, seed, steps)
    megabytes = copied_files(paths, folder / "copied") / 1e6
    calls: dict[str, Callable[[], object]] = {
        COPIES: lambda: copied_files(paths, folder / "copied"),
        "merged": lambda: merged(paths, folder / "merged", {}),
        "merged, encoded again": lambda: merged(paths, folder / "again", {"reward": "raw"}),
    }

    def run(call: Callable[[], object]) -> float:
        call()
        return megabytes

    found: list[rounds.Row] = []
    clocks: tuple[rounds.Clock, ...] = ("time", "CPU")
    for clock in clocks:
        found += rounds.compare(
            *("merge", f"two stores of {steps:,} steps, {megabytes:,.0f} MB; {clock}"),
            candidates={name: functools.partial(run, call) for name, call in calls.items()},
            limit=COPIES,
            count=count,
            goals={"merged": 0.5} if clock == "time" else None,
            clock=clock,
        )
    return found


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


def scales(
    folder: Path, count: int, sizes: list[int], chunk_rows: int
) -> dict[str, dict[str, float]]:
    """The same work in stores of several sizes: microseconds of CPU time, lowest quarter."""
    sized(folder, 99 * chunk_rows, chunk_rows).replay.close()  # what is done once in a process
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
    return {each.name: each.costs for each in stores}


def scales_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each cost, a column for each store."""
    costs = next(iter(found.values()), {})
    lines = [(cost, *(f"{each[cost]:,.1f}" for each in found.values())) for cost in costs]
    return rounds.table(("microseconds of CPU time, or bytes", *found), lines)


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
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    sizes = [100_000, 10_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="of stores, for scale")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of a store, for merge")
    parser.add_argument("--chunk-rows", type=int, default=1_000, help="for draw and scale")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    rows: list[rounds.Row] = []
    more: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as name:
        folder = Path(name)
        if "flush" in options.only:
            rows += flushes(folder, options.rounds)
        if "open" in options.only:
            more["open"] = openings(folder, options.rounds)
            print(openings_table(more["open"]))
        if "draw" in options.only:
            rows += draws(folder, options.rounds, options.chunk_rows)
        if "merge" in options.only:
            rows += merges(folder, options.rounds, options.steps)
        if "scale" in options.only:
            more["scale"] = scales(folder, options.rounds, options.rows, options.chunk_rows)
            print(scales_table(more["scale"]))
    rounds.report(rows, ["stepwell", "numpy", "zstandard"], options.json, **more)


if __name__ == "__main__":
    main()
