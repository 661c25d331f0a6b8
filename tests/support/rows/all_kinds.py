"""A store of random bits in every dtype, NaNs of all sorts among them."""

from __future__ import annotations

import numpy as np

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec

__all__ = ["KINDS", "all_kinds_store"]

KINDS = (
    ("uint8", (16, 18, 3)),
    ("uint8", (17, 16, 1)),
    ("uint8", (16, 17)),
    ("uint8", (16, 16, 4)),
    ("bool", (100,)),
    ("int8", (2,)),
    ("uint16", ()),
    ("int64", (3, 4)),
    ("uint32", (40,)),
    ("uint64", (30,)),
    ("float16", ()),
    ("float32", (9, 9)),
    ("float64", (2, 2)),
    ("float32", (0,)),
    ("int8", (0, 3)),
)


def all_kinds_store() -> SequenceReplayBuffer:
    """Random bits of every dtype, NaNs of all sorts among them."""
    fields = [
        *(Field(f"observation/{n}", *kind, "raw") for n, kind in enumerate(KINDS)),
        Field("action", "int64", (), "raw"),
        Field("reward", "float64", (), "raw"),
        Field("info/lives", "int64", (), "raw"),
        Field("extra/value", "float32", (), "raw"),
    ]
    names = {field.name.partition("/")[2]: field.name for field in fields[: len(KINDS)]}
    replay = SequenceReplayBuffer()
    replay.bind(Spec(tuple(fields), names, "action"), {"seed": 1})
    rng = np.random.default_rng(0)
    ends = (End.TERMINATED, End.TRUNCATED, End.NONE, End.TERMINATED | End.TRUNCATED)
    for number, end in enumerate(ends):
        rows = {field.name: random_rows(field, 2 * number + 2, rng) for field in fields}
        rows["reward"][0] = 0
        rows["action"][-1] = rows["extra/value"][-1] = 0
        replay.add([Chunk(number, number % 2, 0, end, rows, {"number": number})])
    return replay


def random_rows(field: Field, count: int, rng: np.random.Generator) -> np.ndarray:
    size = field.numpy_dtype.itemsize
    bits = rng.integers(0, 256, (count, *field.shape, size), np.uint8)
    if field.dtype == "bool":
        return bits[..., 0] > 127
    return bits.view(field.dtype).reshape(count, *field.shape)
