"""Reads an archive by docs/archive-format.md alone, with none of the library's code."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import zstandard


def read_archive(path: Path) -> dict[str, Any]:
    """The facts, chunks, episodes and rows of an archive, as plain lists."""
    sections = sections_of(path.read_bytes())
    facts = json.loads(sections["facts", 0])
    fields = facts["facts"]["spec"]["fields"]
    found: dict[str, Any] = {"facts": facts, **table_of(sections["chunks", 0])}
    found["rows"] = rows_of(sections, "rows", fields, found["chunks"])
    found["checks"] = np.frombuffer(sections["checks", 0], "<u4").tolist()
    if ("ledger", 0) in sections:
        found["ledger"] = table_of(sections["ledger", 0])
        found["actions"] = rows_of(sections, "actions", fields, found["ledger"]["chunks"])
    if ("folder", 0) in sections:
        data, count = Bytes(sections["folder", 0]), len(found["chunks"])
        found["flushes"], ids, steps = (column(data, count) for _ in range(3))
        rows = [chunk["rows"] for chunk in found["chunks"]]
        not_reset = [chunk["rows"] - (chunk["first_row"] == 0) for chunk in found["chunks"]]
        found["row_ids"] = [own + sum(rows[:k]) for k, own in enumerate(ids)]
        found["total_steps"] = [own + sum(not_reset[: k + 1]) for k, own in enumerate(steps)]
    return found


def group_checks(episodes: list[list[bytes]], group_rows: int, rows: list[int]) -> list[int]:
    """The checksums of groups, of the bytes of each field of each episode."""
    groups: list[list[int]] = [[]]
    count = 0
    for number, more in enumerate(rows):
        groups[-1].append(number)
        count += more
        if count >= group_rows:
            groups.append([])
            count = 0
    groups = [group for group in groups if group]
    return [
        crc32(b"".join(struct.pack("<I", crc32(episodes[number][field])) for number in group))
        for field in range(len(episodes[0]))
        for group in groups
    ]


class Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        taken, self.data = self.data[:count], self.data[count:]
        assert len(taken) == count
        return taken

    def unpack(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))


def sections_of(data: bytes) -> dict[tuple[str, int], bytes]:
    assert data[:16] == bytes.fromhex("93535741 0d0a1a0a 01000000 00000000")
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    (count,) = struct.unpack("<I", data[-36:-32])
    offset, found = 16, {}
    for k in range(count):
        begin = len(data) - 36 - 32 * (count - k)
        kind, number, nbytes, holds, crc = struct.unpack("<8sIQQI", data[begin : begin + 32])
        packed = data[offset : offset + nbytes]
        assert crc32(packed) == crc
        contents = packed if nbytes == holds else zstandard.decompress(packed)
        assert len(contents) == holds
        found[kind.rstrip(b"\0").decode(), number] = contents
        offset += nbytes
    assert offset == len(data) - 36 - 32 * count
    return found


def column(data: Bytes, count: int, order: list[int] | None = None) -> list[int]:
    coding, width, least = data.unpack("BBq")
    planes = [data.take(count) for _ in range(width)]
    numbers, before = [], 0
    for k in range(count):
        number = sum(plane[k] << 8 * byte for byte, plane in enumerate(planes)) + least
        before = number + (before if coding & 1 else 0)
        numbers.append((before + 2**63) % 2**64 - 2**63)
    if not coding & 2:
        return numbers
    assert order is not None
    placed = [0] * count
    for number, place in zip(numbers, order, strict=True):
        placed[place] = number
    return placed


def derived(seed: int, number: int) -> int:
    block, place = divmod(number - 1, 64)
    words = np.random.SeedSequence(seed, spawn_key=(block,)).generate_state(64)
    return int(words[place] >> 1)


def table_of(contents: bytes) -> dict[str, Any]:
    data = Bytes(contents)
    chunks, count, head_bytes = data.unpack("QQI")
    head = json.loads(data.take(head_bytes))
    ids, streams = column(data, count), column(data, count)

    def by_stream(of: list[int]) -> list[int]:
        """Places in a list of episodes, sorted by their streams."""
        return sorted(range(len(of)), key=lambda place: streams[of[place]])

    shapes = column(data, count, by_stream([*range(count)]))
    values: dict[str, dict[int, Any]] = {}
    for key in dict.fromkeys(key for shape in head["shapes"] for key in shape):
        having = [k for k in range(count) if key in head["shapes"][shapes[k]]]
        order = by_stream(having)
        numbers: list[Any] = column(data, len(having), order)
        if key not in head["numbers"]:
            numbers = [json.loads(data.take(length)) for length in numbers]
        elif key == "seed":
            given, last = column(data, numbers.count(0)), -1
            for place in order:
                if numbers[place]:
                    numbers[place] = derived(last, numbers[place])
                else:
                    numbers[place] = last = given.pop(0)
        values[key] = dict(zip(having, numbers, strict=True))
    episodes = [
        {
            "id": ids[k],
            "stream": streams[k],
            "metadata": {key: values[key][k] for key in head["shapes"][shapes[k]]},
        }
        for k in range(count)
    ]
    episode_of = column(data, chunks)
    order = by_stream(episode_of)
    rows, ends = column(data, chunks, order), column(data, chunks, order)
    missing, next_row = column(data, chunks), dict[int, int]()
    found = []
    for episode, length, end, gap in zip(episode_of, rows, ends, missing, strict=True):
        first = next_row.get(episode, 0) + gap
        next_row[episode] = first + length - (end == 4)
        found.append({"episode": episode, "first_row": first, "rows": length, "end": end})
    assert not data.data
    return {"episodes": episodes, "chunks": found}


def rows_of(
    sections: dict[tuple[str, int], bytes], kind: str, fields: list[Any], chunks: list[Any]
) -> dict[str, list[bytes]]:
    """The bytes of each row of all chunks, by field."""
    has_action = [
        k + 1 < chunk["rows"] or not chunk["end"] for chunk in chunks for k in range(chunk["rows"])
    ]
    found: dict[str, list[bytes]] = {}
    for place, field in enumerate(fields):
        if (kind, place) not in sections:
            continue
        dtype, shape = np.dtype(field["dtype"]), field["shape"]
        row_bytes = dtype.itemsize * math.prod(shape)
        length = max(1, (2 << 20) // max(1, row_bytes))
        found[field["name"]] = [
            row
            for block, begin in enumerate(range(0, len(has_action), length))
            for row in block_of(
                Bytes(sections[kind, place + 4096 * block]),
                has_action[begin : begin + length],
                dtype,
                math.prod(shape),
            )
        ]
    return found


def block_of(
    data: Bytes, has_action: list[bool], dtype: np.dtype[Any], elements: int
) -> list[bytes]:
    (coding,) = data.unpack("B")
    is_there = has_action if coding >= 128 else [True] * len(has_action)
    count, row_bytes = sum(is_there), dtype.itemsize * elements
    if coding % 128 == 0:
        planes = [data.take(count) for _ in range(row_bytes)]
        rows = [bytes(plane[k] for plane in planes) for k in range(count)]
    else:
        columns = [digits_of(data, coding % 128, count, dtype) for _ in range(elements)]
        rows = [b"".join(own[k] for own in columns) for k in range(count)]
    assert not data.data
    left = iter(rows)
    return [next(left) if there else bytes(row_bytes) for there in is_there]


def digits_of(data: Bytes, coding: int, count: int, dtype: np.dtype[Any]) -> list[bytes]:
    """One element of all rows."""
    least, base = data.unpack("QH")
    digits: list[int] = []
    if coding == 1:
        each = 1
        while max(2, base) ** (each + 1) <= 256:
            each += 1
        for byte in data.take(-(-count // each)):
            digits += [byte // base**power % base for power in reversed(range(each))]
    else:
        for begin in range(0, count, 1000):
            length = min(1000, count - begin)
            nbytes = -(-(base**length - 1).bit_length() // 8)
            number = int.from_bytes(data.take(nbytes), "big")
            digits += [number // base**power % base for power in reversed(range(length))]
    size = dtype.itemsize
    return [
        ((digit + least) % 2 ** (8 * size)).to_bytes(size, "little") for digit in digits[:count]
    ]
