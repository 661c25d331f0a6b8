"""Wrong calls of the compiled core, which must raise, and senseless ones, which must not crash.

Also run as ``python wild_calls.py CORE SEED COUNT``, for a core that was built with sanitizers.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

__all__ = ["load", "senseless_calls", "wild_calls"]

ERRORS = (BufferError, OverflowError, TypeError, ValueError)
# Leaves of a tree, and the numbers of its memory: levels of 1/16 each down to 2,048, and the ends.
TREES = {64: 129, 2_048: 4_097, 4_096: 4_096 + 256 + 257, 65_536: 65_536 + 4_096 + 256 + 257}
OUTSIDE = (-1, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 70)
NO_NUMBERS: tuple[object, ...] = (None, 1.5, "1", b"1", [], np.int64(1))
NO_MEMORY = (None, 1, 1.5, "text", [1.0], (), object())


def load(path: str) -> Any:
    """The core in a file."""
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_file_location("_native", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Call(NamedTuple):
    """A right call, and what is wrong in place of its arguments."""

    name: str
    arguments: list[Any]
    written: set[int]  # places of the memory that is written to
    wrong: dict[int, list[Any] | Callable[[], list[Any]]]  # by place; else memory of another form

    def damages(self, place: int) -> list[Any]:
        if place in self.wrong:
            found = self.wrong[place]
            return found if isinstance(found, list) else found()
        return _wrong_memory(self.arguments[place].ravel(), is_output=place in self.written)


def wild_calls(core: Any, seed: int, count: int) -> None:
    """Call with one wrong argument at a time: each call raises, and changes no memory."""
    rng = np.random.default_rng(seed)
    makers = (_set, _draw, _copy, _deltas, _items, _steps, _runs, _crc, _chunk)
    for number in range(count):
        call = makers[number % len(makers)](rng)
        arguments = list(call.arguments)
        place = int(rng.integers(len(arguments) + 1))
        if place == len(arguments):  # a wrong number of arguments
            arguments = arguments[:-1] if rng.random() < 0.5 else [*arguments, 1]
        else:
            damages = call.damages(place)
            arguments[place] = damages[int(rng.integers(len(damages)))]
        before = [bytes(one) if _is_memory(one) else b"" for one in arguments]
        try:
            getattr(core, call.name)(*arguments)
        except ERRORS:
            pass
        else:
            raise AssertionError(f"call {number}: {call.name}{tuple(arguments)} was not refused")
        assert before == [bytes(one) if _is_memory(one) else b"" for one in arguments], number
        for argument in arguments:  # a bytearray whose memory was not given back cannot grow
            for one in argument if isinstance(argument, list) else [argument]:
                if isinstance(one, bytearray):
                    one.append(0)


def senseless_calls(core: Any, seed: int, count: int) -> None:
    """Call with arrays of any bits that may overlap each other: a result or an error, no crash."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        capacity = int(rng.choice(list(TREES)))
        memory = np.frombuffer(bytearray(rng.bytes(8 * TREES[capacity])), np.float64)
        if rng.random() < 0.5:  # some of it plausible
            memory[rng.random(len(memory)) < 0.9] = rng.choice([0.0, 1.0, np.inf, np.nan, -1.0])
        size = int(rng.integers(0, 60))
        kept = [rng.random(size) * 100, rng.integers(-(1 << 62), 1 << 62, size)]
        for place in (0, 1):
            if rng.random() < 0.3:
                at = int(rng.integers(len(memory) - size))
                kept[place] = memory[at : at + size]
        points, ids = kept[0].view(np.float64), kept[1].view(np.int64)
        low = int(rng.integers(0, 1 << 40))
        try:
            if number % 2:
                core.tree_draw(memory, capacity, low, points, ids)
            else:
                core.tree_set(memory, capacity, low, low + capacity, ids, points)
        except ERRORS:
            pass
        part = memoryview(memory.data).cast("B")
        size, begin, target = (int(value) for value in rng.integers(0, len(part) // 2, 3))
        core.copy_runs(part, [part], [begin], [target], [size])
        rows, row_bytes, wanted, first = (int(value) for value in rng.integers(1, 9, 4))
        if number % 4:  # some of them plausible
            changes = rng.integers(0, 4, rows - 1).astype("<u4")
            size = 4 * (rows - 1) + 2 * int(changes.sum()) + row_bytes
            part[begin : begin + 4 * (rows - 1)] = changes.tobytes()
        deltas, out = part[begin : begin + size], part[target : target + wanted * row_bytes]
        try:
            core.apply_deltas(deltas, rows, row_bytes, first - 1, out)
        except ERRORS:
            pass
        places, field = rng.integers(-1, 9, 5), deltas
        if number % 4:  # some of them plausible: one block, whose patches have any places
            ends = np.sort(rng.integers(0, 4, rows - 1))
            block = 4 * (rows - 1) + 10 * int(ends.max(initial=0)) + row_bytes
            field = part[begin : begin + 4 + block]
            field[: 4 * rows] = np.array([block, *ends], "<u4").tobytes()
            start = int(rng.integers(rows))
            places = np.array([0, rows, start, min(wanted, rows - start), 0])
        try:
            core.apply_patches(out, [field], places, 16, row_bytes, number % 2 * wanted)
        except ERRORS:
            pass
        senseless_draws(core, rng, memory.view(np.int64))
        core.crc32(part[begin : begin + size], int(rng.integers(1 << 32)))
        senseless_chunk(core, rng, part)


def senseless_draws(core: Any, rng: np.random.Generator, memory: np.ndarray) -> None:
    """Look for items and transitions in chunks of any numbers, of which some are plausible."""
    chunks, count, n, frames = (int(value) for value in rng.integers(1, 6, 4))
    is_joined, kept = int(n == 1), []
    room = (2 - is_joined) * count * int(rng.choice([1, 14, 27]))
    for size in (8 * chunks, 18 * chunks, count, count, 8 * count, room):
        at = int(rng.integers(max(1, len(memory) - size)))
        kept.append(memory[at : at + size] if rng.random() < 0.2 else rng.integers(-2, 6, size))
    if rng.random() < 0.2:
        kept[int(rng.integers(4))][0] = rng.choice([(1 << 63) - 1, -(1 << 63)])
    flags = np.empty((3, count), np.bool_)
    shares = rng.random(count) if rng.random() < 0.5 else kept[4][:count].view(np.float64)
    try:
        core.find_steps(*kept[:2], 0, *kept[2:4], n, frames, is_joined, kept[4], flags, kept[5])
        core.find_runs(*kept[:4], kept[2], kept[3], kept[5])
        core.draw_items(kept[0], kept[0], len(kept[0]), shares, kept[4][: 2 * count])
    except ERRORS:
        pass


def senseless_chunk(core: Any, rng: np.random.Generator, part: memoryview) -> None:
    """Ask whether any bytes are a chunk, with a head, and forms, of which most is plausible."""
    fields = int(rng.integers(0, 4))
    forms = b"".join(
        struct.pack("<Q", 1)
        + struct.pack("<I4sIIQ", k, b"|u1\0", (0, 16)[k % 2], k // 2, int(rng.integers(0, 9)))
        for k in range(fields)
    )
    begin = int(rng.integers(0, len(part) // 2))
    nbytes = int(rng.integers(0, 1_000)) // 8 * 8
    if len(part) - begin >= nbytes >= 8 + 32 * fields:
        struct.pack_into("<II", part, begin, fields, int(rng.integers(0, 20)))
        for k in range(fields):
            place = int(rng.integers(0, nbytes + 9)), int(rng.integers(0, 100))
            entry = k, b"|u1\0", (0, 16)[k % 2], *place
            struct.pack_into("<B4s3xI4xQQ", part, begin + 8 + 32 * k, *entry)
    rows = int(rng.choice([0, 1, 5, 40, 1 << 40, (1 << 63) - 1]))
    if rng.random() < 0.2:
        forms = forms[: int(rng.integers(0, len(forms) + 1))]
    assert core.is_chunk(part, begin, nbytes, rows, forms) in (True, False)


def _is_memory(value: object) -> bool:
    return isinstance(value, np.ndarray | bytearray | memoryview)


def _wrong_memory(right: np.ndarray, *, is_output: bool) -> list[Any]:
    """Memory that is too short or long, cannot be written to, has gaps or is not aligned."""
    shifted = memoryview(bytearray(right.nbytes + 1))[1:]
    found: list[Any] = [
        *NO_MEMORY,
        right[:-1].copy(),
        np.append(right, right[:1]),
        bytearray(right.tobytes() + b"1"),
        bytearray(right.tobytes()[:-1]),
        np.repeat(right, 2)[::2],
        memoryview(np.repeat(right, 2).data)[::2],
        shifted.cast("d" if right.dtype == np.float64 else "q"),
        right.astype(object),
        right.astype(np.complex128),
        right.astype(">i8"),
        right.view(np.float64 if right.dtype == np.int64 else np.int64),
    ]
    if is_output:
        frozen = right.copy()
        frozen.flags.writeable = False
        found += [frozen, bytes(right.tobytes())]
    return found


def _tree(rng: np.random.Generator) -> tuple[int, np.ndarray, int, np.ndarray, np.ndarray]:
    capacity = int(rng.choice(list(TREES)[:3]))
    low, size = int(rng.integers(0, 1_000)), int(rng.integers(2, 40))
    memory = rng.random(TREES[capacity])
    return capacity, memory, low, rng.integers(low, low + capacity, size), rng.random(size)


def _sizes(capacity: int) -> list[Any]:
    """Numbers that are no capacity of the tree."""
    odd = [0, 1, 3, 15, 17, 63, 65, 1 << 20, capacity - 1, 2 * capacity, -capacity]
    return [*OUTSIDE, *NO_NUMBERS, *odd]


def _set(rng: np.random.Generator) -> Call:
    capacity, memory, low, ids, masses = _tree(rng)
    arguments = [memory, capacity, low, low + capacity, ids, masses]
    ends = [-1, -(1 << 63), 1 << 63, 1 << 70, *NO_NUMBERS, low + capacity + 1]
    return Call("tree_set", arguments, {0, 5}, {1: _sizes(capacity), 2: ends, 3: ends})


def _draw(rng: np.random.Generator) -> Call:
    capacity, memory, low, ids, points = _tree(rng)
    lows = [-1, (1 << 63) - capacity, -(1 << 63), 1 << 63, 1 << 70, *NO_NUMBERS]
    wrong: dict[int, Any] = {1: _sizes(capacity), 2: lows}
    return Call("tree_draw", [memory, capacity, low, points, ids], {0, 3, 4}, wrong)


def _copy(rng: np.random.Generator) -> Call:
    out = bytearray(rng.bytes(int(rng.integers(1, 200))))
    count = int(rng.integers(1, 6))
    sources = [bytearray(rng.bytes(int(rng.integers(1, 200)))) for _ in range(count)]
    sizes = [int(rng.integers(0, 1 + min(len(out), len(source)))) for source in sources]
    begins = [
        int(rng.integers(0, 1 + len(source) - size))
        for source, size in zip(sources, sizes, strict=True)
    ]
    targets = [int(rng.integers(0, 1 + len(out) - size)) for size in sizes]
    arguments: list[Any] = [out, sources, begins, targets, sizes]
    at = int(rng.integers(count))
    short = bytearray(max(low + size for low, size in zip(targets, sizes, strict=True)))
    objects = np.array([None] * len(out), object)
    outs = [*NO_MEMORY, bytes(out), objects, np.zeros(len(out)), *([short[:-1]] if short else [])]
    too_large = {
        2: [len(sources[at]) - sizes[at] + 1],
        3: [len(out) - sizes[at] + 1],
        4: [len(out) - targets[at] + 1, len(sources[at]) - begins[at] + 1],
    }

    def lists(place: int) -> list[Any]:
        right = arguments[place]
        found: list[Any] = [None, 1, tuple(right), right[:-1], [*right, right[0]], "text"]
        wrong: list[Any] = [*OUTSIDE, None, 1.5, "1", np.int64(1), *too_large.get(place, [])]
        if place == 1:
            wrong = [*NO_MEMORY, memoryview(b"123456")[::2]]
        return found + [[*right[:at], value, *right[at + 1 :]] for value in wrong]

    wrong = {place: partial(lists, place) for place in (1, 2, 3, 4)}
    return Call("copy_runs", arguments, {0}, {0: outs, **wrong})


def _deltas(rng: np.random.Generator) -> Call:
    rows, row_bytes = (int(value) for value in rng.integers(2, 9, 2))
    start = int(rng.integers(0, rows))
    wanted = int(rng.integers(1, rows - start + 1))
    counts = rng.integers(1, 5, rows - 1).astype("<u4")
    changes = bytes(int(counts.sum()))
    deltas = bytearray(counts.tobytes() + 2 * changes + rng.bytes(row_bytes))
    out = bytearray(rng.bytes(wanted * row_bytes))
    fewer, more = counts.copy(), counts.copy()
    fewer[-1] -= 1
    more[0] += 1 << 31
    rest = bytes(deltas[counts.nbytes :])
    longer = bytearray((rows - start + 1) * row_bytes)
    wrong: dict[int, Any] = {
        0: [
            *(*NO_MEMORY, deltas[:-1], deltas[1:], deltas + b"1"),
            *(bytearray(each.tobytes() + rest) for each in (fewer, more)),
            memoryview(bytes(2 * len(deltas)))[::2],
        ],
        1: [*OUTSIDE, *NO_NUMBERS, 0, rows - 1, rows + 1],
        2: [*OUTSIDE, *NO_NUMBERS, 0, row_bytes - 1, row_bytes + 1],
        3: [*OUTSIDE, *NO_NUMBERS, rows, rows - wanted + 1],
        4: [
            *(*NO_MEMORY, bytes(out), np.array([None] * len(out), object)),
            *(out[:-1], bytearray(), longer),
        ],
    }
    return Call("apply_deltas", [deltas, rows, row_bytes, start, out], {4}, wrong)


def _items(rng: np.random.Generator) -> Call:
    known, count = (int(value) for value in rng.integers(2, 9, 2))
    running, shift = np.arange(1, known + 1), rng.integers(0, 9, known)
    shares, found = rng.random(count), np.zeros((2, count), np.int64)

    def wrong_shares() -> list[Any]:
        odd = [np.append(shares[1:], share) for share in (-0.1, 1.0, np.nan, np.inf)]
        return [*_wrong_memory(shares, is_output=False), *odd]

    wrong: dict[int, Any] = {2: [-1, 0, known + 1, 1 << 63, *NO_NUMBERS], 3: wrong_shares}
    return Call("draw_items", [running, shift, known, shares, found], {4}, wrong)


def _steps(rng: np.random.Generator) -> Call:
    count = int(rng.integers(2, 9))
    table, records = np.zeros((2, 8), np.int64), np.zeros((2, 18), np.int64)
    chunk, start = np.zeros((2, count), np.int64)
    found, flags = np.zeros((8, count), np.int64), np.zeros((3, count), np.bool_)
    room = np.zeros(2 * 27 * count, np.int64)
    large = [1 << 63, 1 << 70, *NO_NUMBERS]
    wrong: dict[int, Any] = {
        **{2: large, 5: [-1, 0, *large], 6: [-1, 1 << 31, *large], 7: [-1, 2, *large]},
        9: [*NO_MEMORY, flags[:2], bytes(flags), flags.astype(np.int64)],
        # There may be more room, and less than all segments take.
        10: [*NO_MEMORY, room[:1], room.astype(">i8"), bytes(room)],
    }
    arguments = [table, records, 0, chunk, start, 1, 2, 0, found, flags, room]
    return Call("find_steps", arguments, {8, 9, 10}, wrong)


def _runs(rng: np.random.Generator) -> Call:
    count = int(rng.integers(2, 9))
    table, records = np.zeros((2, 8), np.int64), np.zeros((2, 18), np.int64)
    room = np.zeros(13 * count, np.int64)
    arguments = [table, records, *np.zeros((4, count), np.int64), room]
    return Call("find_runs", arguments, {6}, {6: [*NO_MEMORY, room.astype(">i8"), bytes(room)]})


def _crc(rng: np.random.Generator) -> Call:
    data = bytearray(rng.bytes(int(rng.integers(2, 200))))
    wrong: dict[int, Any] = {
        0: [*NO_MEMORY, memoryview(bytes(2 * len(data)))[::2]],
        1: [-1, 1 << 32, 1 << 63, 1 << 70, *NO_NUMBERS],
    }
    return Call("crc32", [data, int(rng.integers(1 << 32))], set(), wrong)


def _chunk(rng: np.random.Generator) -> Call:
    memory: list[Any] = [*NO_MEMORY, memoryview(bytes(160))[::2]]
    large: list[Any] = [1 << 63, 1 << 70, -(1 << 70), *NO_NUMBERS]  # others are those of no chunk
    arguments = [bytearray(rng.bytes(80)), int(rng.integers(0, 40)), 40, 1, bytearray(32)]
    return Call("is_chunk", arguments, set(), {0: memory, 4: memory, 1: large, 2: large, 3: large})


if __name__ == "__main__":
    tested, first_seed, calls = load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    wild_calls(tested, first_seed, calls)
    senseless_calls(tested, first_seed, calls // 20)
