"""A slow model of a RAM map, computed from the start for every frame.

Plain functions over a list of snapshots of the RAM, the first one of which is the episode's first
frame. Nothing of the library is used, so that the two can disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Tables = Mapping[str, Any]


def decode(type_: str, data: bytes) -> int:
    """The number in its bytes."""
    order, kind, width = re.fullmatch(r"([<>=|]+)([uidn])(\d)", type_).groups()  # type: ignore[union-attr]
    assert len(data) == int(width)
    if order in ("<>", "><", ">="):  # two halves: the second one first
        half = len(data) // 2
        data = data[half:] + data[:half]
    falling = data if order in (">", "<>") else data[::-1]
    if kind in "ui":
        negative = kind == "i" or len(data) == 8  # stable-retro's numbers have 64 bits and a sign
        return int.from_bytes(falling, "big", signed=negative)
    digits = [(byte >> 4) % 10 * 10 * (kind == "d") + (byte & 15) % 10 for byte in falling]
    return int("".join(f"{two:02d}" if kind == "d" else str(two) for two in digits))


def value(tables: Tables, name: str, ram: bytes) -> int:
    """A variable in a snapshot."""
    entry = tables["vars"][name]
    width = int(entry["type"][-1])
    found = decode(entry["type"], ram[entry["address"] : entry["address"] + width])
    return int(found & entry.get("mask", -1))


def change(tables: Tables, name: str, new: bytes, old: bytes) -> int:
    """Return the change; with a wrap the shortest distance, and backwards if both are equal."""
    plain = value(tables, name, new) - value(tables, name, old)
    wrap: int | None = tables["vars"][name].get("wrap")
    if wrap is None:
        return plain
    ways = [plain % wrap, plain % wrap - wrap]
    return min(ways, key=lambda way: (abs(way), way))


def measure(tables: Tables, key: str, entry: Tables, usual: str, new: bytes, old: bytes) -> int:
    """The number that is paid for or tested."""
    name = entry.get("var", key)
    if entry.get("measurement", usual) == "absolute":
        number = value(tables, name, new)
    else:
        number = change(tables, name, new, old)
    if abs(number) > entry.get("limit", float("inf")):
        return 0
    op, reference = entry.get("op"), entry.get("reference", 0)
    answers = {
        None: number,
        "equal": number == reference,
        "not-equal": number != reference,
        "negative-equal": number == -reference,
        "less-than": number < reference,
        "less-or-equal": number <= reference,
        "greater-than": number > reference,
        "greater-or-equal": number >= reference,
        "zero": number == 0,
        "nonzero": number != 0,
        "positive": number > 0,
        "negative": number < 0,
        "sign": 0 if number == 0 else number // abs(number),
    }
    return int(answers[op])


def pays(tables: Tables, new: bytes, old: bytes) -> dict[str, float]:
    """Return the reward of each term for a frame."""
    found = {}
    for key, entry in tables.get("reward", {}).items():
        number = measure(tables, key, entry, "delta", new, old)
        weight = entry.get("reward", 0) if number > 0 else entry.get("penalty", 0)
        found[key] = float(number * weight)
    return found


def holds(tables: Tables, node: Tables, new: bytes, old: bytes) -> bool:
    """Return True if a condition is met."""
    parts = [
        measure(tables, key, entry, "absolute", new, old) > 0
        for key, entry in node.items()
        if key not in ("condition", "nodes")
    ]
    parts += [holds(tables, below, new, old) for below in node.get("nodes", {}).values()]
    return all(parts) if node.get("condition") == "all" else any(parts)


def is_over(tables: Tables, new: bytes, old: bytes) -> bool:
    """Return True if the game is over."""
    return "terminated" in tables and holds(tables, tables["terminated"], new, old)


def still_frames(tables: Tables, snapshots: Sequence[bytes]) -> int:
    """Frames, counted back from the last, in which nothing that is watched changed."""
    paid = [entry.get("var", key) for key, entry in tables.get("reward", {}).items()]
    watched = tables.get("stuck", {}).get("vars", paid)
    rows = [[value(tables, name, ram) for name in watched] for ram in snapshots]
    count = 0
    while watched and count + 1 < len(rows) and rows[-1 - count] == rows[-2 - count]:
        count += 1
    return count
