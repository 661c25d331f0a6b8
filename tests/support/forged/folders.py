"""Small stores taken apart in memory, to be forged and put together again, all checksums right.

What the bytes mean stands in docs/disk-format.md. None of the code that reads or writes stores is
used for taking apart or putting together, so that it cannot refuse to write what it should refuse
to read.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from zlib import crc32

import numpy as np

from stepwell.buffers import (
    Chunk,
    Codec,
    DiskStorage,
    End,
    Field,
    SequenceReplayBuffer,
    Spec,
    Transitions,
    repair,
)
from stepwell.buffers.spec.spec import Layout
from stepwell.buffers.testing import SPEC, Recording, chunk_of
from support.crash.disk_faults import NoSyncFiles
from support.old_chunks import writing_deltas

__all__ = ["KINDS", "Raw", "Segment", "Store", "at", "dumps", "make_store", "paths_of"]

HEADER = struct.Struct("<8sHHIIIQ16sqqqqI")
HEADER_NAMES = (
    *("magic", "version", "least_reader", "header_bytes", "number", "slots", "data_bytes"),
    *("store", "position", "row_id", "episode", "total_steps", "facts_bytes"),
)
HEADER_BITS = (64, 16, 16, 32, 32, 32, 64, 128, 64, 64, 64, 64, 32)
SLOT = np.dtype(
    [
        *((name, "<u4") for name in ("magic", "segment", "number", "group", "group_slots", "end")),
        ("store", "<u8"),
        *((name, "<i8") for name in ("position", "episode", "stream", "first_row", "rows")),
        *((name, "<i8") for name in ("row_id", "total_steps", "offset", "nbytes")),
        *((name, "<u4") for name in ("head_bytes", "head_crc")),
        ("reserved", "<u8"),
        *((name, "<u4") for name in ("data_crc", "crc")),
    ]
)
HEAD = struct.Struct("<II")
ENTRY = struct.Struct("<B4s3xI4xQQ")
CHECKPOINT = struct.Struct("<8sII")


class Raw(bytes):
    """A value in JSON that stands there as it is, whether it is JSON or not."""


def dumps(tree: object) -> bytes:
    """Compact JSON, with raw values."""
    raws: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"raw value {len(raws) - 1}"
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    text = json.dumps(plain(tree), separators=(",", ":")).encode()
    for number, raw in enumerate(raws):
        text = text.replace(b'"raw value %d"' % number, raw)
    return text


def paths_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a JSON tree, except the tree itself."""
    pairs: Any = ()
    if isinstance(tree, dict):
        pairs = tree.items()
    elif isinstance(tree, list):
        pairs = enumerate(tree)
    for key, value in pairs:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def at(tree: Any, path: Sequence[Any]) -> Any:
    """The part of a JSON tree at a path."""
    for key in path:
        tree = tree[key]
    return tree


@dataclass
class Segment:
    """A segment taken apart."""

    # Its values; those that follow from the rest are computed again, unless they are named in
    # ``kept``.
    header: dict[str, Any]
    facts: bytes  # what stands in the header as JSON
    a: np.ndarray  # slots of table A; those that hold something come first
    b: np.ndarray  # slots of table B
    chunks: list[bytearray]  # bytes of the chunks of the slots that hold something
    # What comes before each of them: what a repair has left of a chunk that it took out.
    gaps: list[bytes]
    rest: bytes  # what comes after the last chunk
    # Names of header values, and ``(slot, name)``, that are not computed again.
    kept: set[object] = field(default_factory=set[object])

    @classmethod
    def parse(cls, data: bytes) -> Segment:
        """Take apart what was never forged."""
        header = dict(zip(HEADER_NAMES, HEADER.unpack_from(data), strict=True))
        facts = data[HEADER.size : HEADER.size + header["facts_bytes"]]
        start, table = header["header_bytes"], _align(header["slots"] * SLOT.itemsize)
        a, b = (
            np.frombuffer(data, SLOT, header["slots"], start + number * table).copy()
            for number in range(2)
        )
        chunks, gaps, end = list[bytearray](), list[bytes](), start + 2 * table
        for slot in a[: np.count_nonzero(a["magic"])]:
            begin = int(slot["offset"])
            gaps.append(data[end:begin])
            end = begin + int(slot["nbytes"])
            chunks.append(bytearray(data[begin:end]))
        return cls(header, facts, a, b, chunks, gaps, data[end:])

    @property
    def count(self) -> int:
        """Slots that hold something."""
        return len(self.chunks)

    def put(self, slot: int, name: str, value: int, *, copies: str = "ab") -> None:
        """Give a slot another value, cut to what the place can hold."""
        for copy_ in copies:
            table = self.a if copy_ == "a" else self.b
            bits = table.dtype[name].itemsize * 8
            table[name][slot] = (
                np.uint64(value % (1 << bits)).astype(f"u{bits // 8}").view(table.dtype[name])
            )
        self.kept.add((slot, name))

    def pack(self) -> bytes:
        """Put it together, all checksums right."""
        header_bytes = _align(HEADER.size + len(self.facts) + 4)
        table = _align(len(self.a) * SLOT.itemsize)
        self._lay_out(header_bytes + 2 * table)
        values = {
            "header_bytes": header_bytes,
            "slots": len(self.a),
            "data_bytes": max(
                self.header["data_bytes"], _align(sum(map(len, (*self.gaps, *self.chunks))))
            ),
            "facts_bytes": len(self.facts),
        }
        for name, value in values.items():
            if name not in self.kept:
                self.header[name] = value
        numbers = [self.header[name] for name in HEADER_NAMES]
        head = (HEADER.pack(*numbers) + self.facts).ljust(header_bytes, b"\0")
        parts = (part for pair in zip(self.gaps, self.chunks, strict=True) for part in pair)
        file = bytearray(head + bytes(2 * table) + b"".join(parts) + self.rest)
        for number, slots in enumerate((self.a, self.b)):
            for place in range(len(slots)):
                if slots["magic"][place] and (place, "crc") not in self.kept:
                    self._sum(slots[place : place + 1], file, place)
            start = header_bytes + number * table
            file[start : start + slots.nbytes] = slots.tobytes()
        length = self.header["header_bytes"]
        if not HEADER.size + 4 <= length <= len(file):
            length = header_bytes
        file[length - 4 : length] = struct.pack("<I", crc32(file[: length - 4]))
        return bytes(file)

    def _lay_out(self, offset: int) -> None:
        for place, chunk in enumerate(self.chunks):
            offset += len(self.gaps[place])
            for slots in (self.a, self.b):
                if not slots["magic"][place]:
                    continue
                if (place, "offset") not in self.kept:
                    slots["offset"][place] = offset
                if (place, "nbytes") not in self.kept:
                    slots["nbytes"][place] = len(chunk)
            offset += len(chunk)

    def _sum(self, slot: np.ndarray, file: bytearray, place: int) -> None:
        """Reckon the checksums of a slot."""
        start, nbytes = int(slot["offset"][0]), int(slot["nbytes"][0])
        chunk = memoryview(file)[max(0, start) : max(0, start + nbytes)]
        if (place, "data_crc") not in self.kept:
            slot["data_crc"] = crc32(chunk)
        if (place, "head_crc") not in self.kept:
            slot["head_crc"] = crc32(memoryview(file)[max(0, start) :][: slot["head_bytes"][0]])
        slot["crc"] = crc32(slot.tobytes()[:124])


@dataclass
class Store:
    """A store taken apart."""

    kind: str  # which one it was
    body: Any  # the manifest's JSON; None leaves the file out
    segments: dict[str, Segment]  # by the names of their files
    files: dict[str, bytes]  # all other files, by their names, which may name a folder
    # Done last, to the folder that was written and the one around it.
    acts: list[Callable[[Path], None]] = field(default_factory=list[Callable[[Path], None]])
    keeps_lengths: bool = False  # the manifest's lengths of segments are not computed again

    @classmethod
    def parse(cls, kind: str, path: Path) -> Store:
        """Take apart what was never forged."""
        files = {
            str(each.relative_to(path)): each.read_bytes()
            for each in sorted(path.rglob("*"))
            if each.is_file()
        }
        body = json.loads(files.pop("manifest.json"))["body"]
        segments = {name: Segment.parse(files.pop(name)) for name in [*files] if _is_live(name)}
        return cls(kind, body, segments, files)

    def clone(self) -> Store:
        """The same, to be forged."""
        return cast("Store", pickle.loads(pickle.dumps(self)))  # a tenth of the time of deepcopy()

    def write(self, path: Path) -> None:
        """Put it together in a new folder, all checksums right."""
        path.mkdir()
        for name, segment in self.segments.items():
            data = segment.pack()
            (path / name).write_bytes(data)
            if not self.keeps_lengths:
                self._note_length(name, len(data))
        for name, data in self.files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)
        if self.body is not None:
            text = self.body if isinstance(self.body, Raw) else dumps(self.body)
            data = b'{"body":%b,"crc":"%08x"}\n' % (text, crc32(text))
            (path / "manifest.json").write_bytes(data)
        for act in self.acts:
            act(path)

    def _note_length(self, name: str, nbytes: int) -> None:
        """Let the manifest say how long a sealed segment is."""
        sealed = self.body.get("sealed") if isinstance(self.body, dict) else None
        for entry in sealed if isinstance(sealed, list) else ():
            if isinstance(entry, list) and len(entry) > 1 and entry[0] == int(name[8:16]):
                entry[1] = nbytes


KINDS: dict[str, Callable[[Path], None]] = {}
"""Makers of small stores."""


def make_store(kind: str, folder: Path) -> Store:
    """A store of a kind, the same each time but for what `LOCK` says."""
    path = folder / kind
    numbers = itertools.count()

    def urandom(size: int) -> bytes:
        return random.Random(f"{kind} {next(numbers)}").randbytes(size)

    with patch.object(os, "urandom", urandom):
        KINDS[kind](path)
    return Store.parse(kind, path)


def _kind(make: Callable[[Path], None]) -> Callable[[Path], None]:
    KINDS[make.__name__.removeprefix("_").replace("_", " ")] = make
    return make


@_kind
def _append(path: Path) -> None:
    """Several segments, several chunks an episode, fields of all codecs, metadata, an extra."""
    for seed in range(2):
        with _opened(path, SPEC, segment_bytes=12_000) as storage:
            _play(storage, seed, 6)


@_kind
def _ring(path: Path) -> None:
    """A ring whose oldest segments are evicted, with the first rows of some episodes."""
    with _opened(path, SPEC, segment_bytes=12_000, capacity=100) as storage:
        storage.append_session({"recipe": {"id": "Model-v0"}, "seed": 1})
        _play(storage, 3, 20)


@_kind
def _ring_of_bytes(path: Path) -> None:
    with _opened(path, SPEC, segment_bytes=12_000, capacity_bytes=1 << 20) as storage:
        _play(storage, 4, 6)


@_kind
def _chains(path: Path) -> None:
    """A ring with episodes that must be played again after others, and actions in two parts."""
    fields = (
        *(Field("observation", "uint8", (12, 8), "zstd"), Field("action/a", "int64", (), "narrow")),
        *(Field("action/b", "uint8", (70,), "zstd"), Field("reward", "float64", (), "narrow")),
    )
    spec = Spec(fields, "observation", ["action/a", "action/b"])
    rng = np.random.default_rng(0)
    with _opened(path, spec, segment_bytes=12_000, capacity=100) as storage:
        storage.append_session({"seed": 1})
        for number in range(30):
            rows = {
                each.name: rng.integers(0, 9, (9, *each.shape)).astype(each.numpy_dtype)
                for each in spec.fields
            }
            facts = {"session": 0, "stream_episode": number // 2}
            facts |= {"seed": number} if number < 2 else {}
            storage.add([Chunk(number, number % 2, 0, End.TERMINATED, rows, facts)])


@_kind
def _nested(path: Path) -> None:
    """Dict and Tuple spaces, infos and extras, an episode without its begin."""
    fields = (
        Field("observation/image", "uint8", (8, 8), "zstd"),
        Field("observation/pair/0", "float16", (2,), "raw"),
        Field("observation/pair/1", "bool", (3,), "narrow"),
        Field("observation/none", "float32", (0,), "raw"),
        Field("action/0", "int64", (), "narrow"),
        Field("action/1", "float32", (2,), "raw"),
        Field("reward", "float64", (), "narrow"),
        Field("info/lives", "int64", (), "narrow"),
        Field("info/seen", "bool", (2,), "narrow"),
        Field("extra/state", "float64", (2, 2), "raw"),
    )
    observation: Layout = {
        "image": "observation/image",
        "pair": ["observation/pair/0", "observation/pair/1"],
        "empty": {},
        "none": "observation/none",
    }
    spec = Spec(fields, observation, ["action/0", "action/1"])
    _random_rows(path, spec, 6)


@_kind
def _stacked(path: Path) -> None:
    fields = (
        Field("observation", "uint8", (9, 9), "zstd", 3, "repeat"),
        Field("action", "int64", (), "raw"),
        Field("reward", "float64", (), "raw"),
    )
    _random_rows(path, Spec(fields, "observation", "action"), 5)


@_kind
def _deltas(path: Path) -> None:
    """Blocks of changes from row to row, and blocks of rows; one episode, in one chunk."""
    with writing_deltas():
        _sparse(path, "delta", 600, 16)


@_kind
def _patches(path: Path) -> None:
    """Blocks of patches, and a chunk of noise that is kept as zstd."""
    _sparse(path, "patch", 300, 15)


def _sparse(path: Path, codec: Codec, count: int, side: int) -> None:
    """An episode in which little changes from row to row, most of the time, and one of noise."""
    fields = (
        Field("observation", "uint8", (side, side), codec),
        Field("action", "float32", (16,), codec),
        Field("reward", "float64", (), "raw"),
    )
    with _opened(path, Spec(fields, "observation", "action")) as storage:
        rows = np.arange(count)
        shown = np.zeros((count, side, side), np.uint8)
        shown[:, 3, 3] = shown[rows, rows % side, 14] = rows % 251
        shown[256:512] = rows[256:512, None, None] % 251
        acted = (rows[:, None] // np.arange(40, 56)).astype(np.float32)
        noise = np.random.default_rng(0).integers(0, 256, (20, side, side), np.uint8)
        for number, frames in enumerate((shown, noise)):
            fields_: dict[str, np.ndarray] = {"observation": frames, "action": acted[: len(frames)]}
            fields_["reward"] = rows[: len(frames)] / 4
            storage.add([Chunk(number, 0, 0, End.TRUNCATED, fields_)])


@_kind
def _killed(path: Path) -> None:
    """A writer was killed between two flushes: the newest segment is open."""
    storage = _opened(path, SPEC, segment_bytes=12_000)
    _play(storage, 5, 4)
    shutil.copytree(path, path.with_name("as left"))
    storage.close()
    shutil.rmtree(path)
    path.with_name("as left").rename(path)


@_kind
def _torn(path: Path) -> None:
    """A writer was killed within a flush: the last slots have no second copy, or a torn one."""
    _killed(path)
    (newest,) = list(path.glob("segment-*.bin"))[-1:]
    segment = Segment.parse(newest.read_bytes())
    assert segment.count > 1
    last = segment.count - 1
    segment.b[segment.a["group"][last] :] = np.zeros((), SLOT)
    if segment.a["group"][last] < last:
        segment.a[last] = np.zeros((), SLOT)
    newest.write_bytes(segment.pack())


@_kind
def _repaired(path: Path) -> None:
    """Chunks were lost, and are kept in the folder for damaged files."""
    _append(path)
    for number, name in enumerate(sorted(path.glob("segment-*.bin"))):
        data = bytearray(name.read_bytes())
        if number == 0:
            data[-4000] ^= 1  # within a chunk
        if number == 1:
            data[4096 + 128 + 50] ^= 1  # in both copies of slot 1
            data[8192 + 128 + 50] ^= 1
        name.write_bytes(data)
    report = repair(path, yes=True, files=NoSyncFiles())
    assert report.is_done
    assert report.kept


@_kind
def _with_checkpoints(path: Path) -> None:
    with SequenceReplayBuffer(path, seed=0) as replay:
        replay.bind(SPEC, {"seed": 3})
        recording = Recording()
        for _ in range(4):
            replay.add([recording.chunk(stream, 6, End.NONE) for stream in range(2)])
        batch = replay.sample(Transitions(4, draw="priorities"))
        replay.update_priorities(batch.ids, np.arange(4.0))
        replay.save_checkpoint({"step": 7, "weights": [np.arange(6.0), np.ones((2, 3), "<i2")]})
        replay.save_checkpoint({"deep": {"a": [{"b": np.zeros(0)}]}}, name="other")


@_kind
def _empty(path: Path) -> None:
    _opened(path, SPEC).close()


@_kind
def _one_row(path: Path) -> None:
    """A reset alone, waiting for its action."""
    with _opened(path, SPEC, segment_bytes=12_000) as storage:
        storage.add([chunk_of(0, 0, 1, End.PENDING)])


def _opened(path: Path, spec: Spec, **more: int) -> DiskStorage:
    files = NoSyncFiles()
    if DiskStorage.exists(path):
        return DiskStorage.open(path, files=files)
    more = {"segment_bytes": 16_000, **more}
    about = {"source": "a test", "numbers": [1, 2.5]}
    return DiskStorage.create(path, spec, provenance=about, files=files, **more)


def _play(storage: DiskStorage, seed: int, flushes: int) -> None:
    rng, recording = random.Random(seed), Recording(storage.index.next_episode)
    ends = (End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED)
    for _ in range(flushes):
        streams = rng.sample(range(3), rng.choice((1, 2, 3)))
        storage.add(
            [recording.chunk(each, rng.randrange(1, 12), rng.choice(ends)) for each in streams]
        )


def _random_rows(path: Path, spec: Spec, episodes: int) -> None:
    rng = np.random.default_rng(0)
    ends = (End.TERMINATED, End.TRUNCATED, End.NONE)
    with _opened(path, spec) as storage:
        for number in range(episodes):
            rows = {
                each.name: rng.integers(0, 2, (number + 2, *each.shape)).astype(each.numpy_dtype)
                for each in spec.fields
            }
            first_row = 2 if number == 3 else 0
            end, about = ends[number % 3], {"seed": number, "task": "door"}
            storage.add([Chunk(number, number % 2, first_row, end, rows, about, first_row > 0)])


def _is_live(name: str) -> bool:
    return name.startswith("segment-") and name.endswith(".bin")


def _align(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096
