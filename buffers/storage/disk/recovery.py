"""Decides which slots of a segment are committed, for writer and readers alike. Pure.

Committed slots are also checked against the rules of a writer, as checksums detect accidents only.

A flush writes its data, then its slots in copy A, waits until both are on the medium, then writes
the slots in copy B. So a valid slot in B proves that its flush was completed, and a flush that
never returned can only be the last one of the open segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import StoreCorrupt
from ...base.untrusted_json import MOST
from ...rows.episode import End
from .format import MOST_STREAM, SLOT, Header, TableCopy, repair_advice

_NUMBERS = (
    *("position", "episode", "stream", "first_row", "rows"),
    *("row_id", "total_steps", "offset", "nbytes"),
)
_FIRST_NUMBER = 4  # the position is at byte 32 of a slot, followed by the others
_MOST_END = sum(End)
_LOST = int(End.LOST)


class CommittedSlots(NamedTuple):
    """The committed slots of a segment, as found in its two slot tables."""

    # [n], dtype `SLOT`; of a lost one only the number is known, its end is End.LOST
    slots: np.ndarray
    missing_a: np.ndarray  # numbers of slots whose copy A must be written again
    missing_b: np.ndarray  # the same for copy B
    lost: np.ndarray  # numbers of slots of which no copy is left, or two that differ
    torn: int = 0  # slots found of a flush that never returned


def sealed_slots(a: TableCopy, b: TableCopy) -> CommittedSlots:
    """The slots of a segment that is complete: every one of them was committed."""
    return _committed(a, b, len(a.slots), 0)


def open_slots(
    a: TableCopy,
    b: TableCopy,
    where: str,  # the file's name, for the message
    # the bytes of a slot's chunk have the right checksum
    is_data_right: Callable[[np.ndarray], bool],
) -> CommittedSlots:
    """The committed slots of the segment that was, or still is, being written."""
    found = np.flatnonzero(a.is_valid | b.is_valid)
    if not len(found):
        return _committed(a, b, 0, 0)
    slots = _best(a, b)
    last = slots[found[np.argmax(slots["group"][found])]]
    begin, end = int(last["group"]), int(last["group"]) + int(last["group_slots"])
    if not begin <= int(last["number"]) or end > len(slots) or found[-1] >= end:
        raise StoreCorrupt(
            f"{where}: slot {last['number']} is of a flush of slots {begin} to {end - 1}, expected "
            f"one with slots {last['number']} to {found[-1]}, below {len(slots)}; "
            f"{repair_advice(where)}"
        )
    group = range(begin, end)
    is_certain = b.is_valid[begin:end].any()
    if not is_certain and not all(
        a.is_valid[number] and is_data_right(slots[number]) for number in group
    ):
        return _committed(a, b, begin, int((found >= begin).sum()))
    return _committed(a, b, end, 0)


def check_slots(
    committed: CommittedSlots,
    header: Header,
    data_end: int,  # where its data may end at the latest
    where: str,  # the file's name, for the message
) -> None:
    """Refuse slots that no writer has written, whatever their checksums say."""
    slots = committed.slots
    if not len(slots):
        return
    # One block of numbers: numpy is many times as fast with it as with the fields one by one.
    numbers = _numbers_of(slots)
    if not len(committed.lost) and _are_in_order(numbers, slots, header, data_end):
        return  # mostly
    position, episode, stream, _, rows, row_id, total_steps, offset, nbytes = numbers
    is_lost = slots["end"] & _LOST != 0
    is_unknown = episode == -1  # lost, with all that was known of it
    is_out = (numbers < 0) | (numbers > MOST)
    is_out[_NUMBERS.index("stream")] = (stream < -MOST_STREAM) | (stream > MOST_STREAM)
    is_out[_NUMBERS.index("episode"), is_unknown] = False

    def refuse(is_wrong: Any, name: str, expected: str, least: Any = None) -> None:
        if is_wrong.any():
            number = int(is_wrong.argmax())
            values = dict(zip(_NUMBERS, numbers[:, number].tolist(), strict=True))
            values |= {"end": int(slots["end"][number]), "head_bytes": int(head_bytes[number])}
            if least is not None:
                expected = f"{expected} {int(least[number])}".strip()
            raise StoreCorrupt(
                f"{where}: slot {number} is not what a writer has made: {name}: expected "
                f"{expected}, got {values[name]} ({values}); {repair_advice(where)}"
            )

    head_bytes = slots["head_bytes"]
    for name, wrong in zip(_NUMBERS, is_out, strict=True):
        first = -MOST_STREAM if name == "stream" else 0
        most = MOST_STREAM if name == "stream" else MOST
        refuse(wrong, name, f"{first} to {most}")
    refuse(slots["end"] > _MOST_END, "end", f"at most {_MOST_END}")
    refuse(is_unknown & (~is_lost | (rows != 0) | (nbytes != 0)), "episode", "one for its rows")
    refuse(~is_unknown & (rows == 0), "rows", "at least 1")
    expected = header.position + np.arange(len(slots))
    expected[committed.lost] = position[committed.lost]  # only its place is known
    refuse(position != expected, "position", "", expected)
    least_bytes = header.chunks.least_bytes(rows)
    refuse(~is_unknown & (nbytes < least_bytes), "nbytes", "at least", least_bytes)
    refuse(~is_unknown & (head_bytes > nbytes), "head_bytes", "at most", nbytes)
    known = np.flatnonzero(~is_unknown)
    stop = offset + nbytes
    limit = np.where(is_lost, header.file_bytes, data_end)
    is_wrong = ~is_unknown & ((offset < header.data_offset) | (stop > limit))
    refuse(is_wrong, "offset", f"its bytes within {header.data_offset} to {data_end}")
    before = np.append(-1, known[:-1]) if len(known) else known
    is_next = before == known - 1  # the slot before it is known, too
    follows = before >= 0
    for name, begin, end, first in (
        ("offset", offset, stop, header.data_offset),
        ("row_id", row_id, row_id + rows, header.counters.next_row_id),
    ):
        least = begin.copy()
        least[known] = np.where(follows, end[before], first)
        wrong = begin < least
        wrong[known] |= is_next & follows & (begin[known] != least[known])
        refuse(wrong, name, "the end of the slot before,", least)
    least = total_steps.copy()
    least[known] = np.where(follows, total_steps[before], header.counters.total_steps)
    refuse(total_steps < least, "total_steps", "at least", least)


def _numbers_of(slots: np.ndarray) -> np.ndarray:
    """The 64-bit numbers of slots, [numbers, n], in the order of `_NUMBERS`; a copy."""
    words = slots.view("<i8").reshape(len(slots), -1)
    return np.ascontiguousarray(words[:, _FIRST_NUMBER : _FIRST_NUMBER + len(_NUMBERS)].T)


def _are_in_order(numbers: np.ndarray, slots: np.ndarray, header: Header, data_end: int) -> bool:
    """True if no slot is lost and all numbers are valid: a fast form of `check_slots`."""
    position, _, stream, _, rows, row_id, total_steps, offset, nbytes = numbers
    stop, next_row_id = offset + nbytes, row_id + rows
    return bool(
        # A stream may be below zero.
        numbers.max() <= MOST
        and min(numbers[:2].min(), numbers[3:].min()) >= 0
        and -MOST_STREAM <= stream.min() <= stream.max() <= MOST_STREAM
        and slots["end"].max() < _LOST
        and rows.min() > 0
        and (position - position[0] == np.arange(len(slots))).all()
        and position[0] == header.position
        and offset[0] == header.data_offset
        and (offset[1:] == stop[:-1]).all()
        and stop[-1] <= data_end
        and row_id[0] >= header.counters.next_row_id
        and (row_id[1:] == next_row_id[:-1]).all()
        and total_steps[0] >= header.counters.total_steps
        and (total_steps[1:] >= total_steps[:-1]).all()
        and (slots["head_bytes"] <= nbytes).all()
        and (nbytes >= header.chunks.least_bytes(rows)).all()
    )


def _best(a: TableCopy, b: TableCopy) -> np.ndarray:
    """The valid copy of each slot."""
    if a is b:
        return a.slots.copy()
    return np.where(b.is_valid, _raw(b), _raw(a)).view(SLOT)


def _raw(copy: TableCopy) -> np.ndarray:
    """A copy's slots as plain bytes, with which numpy is ten times as fast as with their fields."""
    return copy.slots.view(f"V{SLOT.itemsize}")


def _committed(a: TableCopy, b: TableCopy, count: int, torn: int) -> CommittedSlots:
    valid_a, valid_b = a.is_valid[:count], b.is_valid[:count]
    is_lost = ~(valid_a | valid_b)
    if a is not b:
        is_lost |= (_raw(a) != _raw(b))[:count] & valid_a & valid_b
    slots = _best(a, b)[:count]
    for number in np.flatnonzero(is_lost).tolist():
        slots[number] = _placeholder(slots[number - 1] if number else None)
    return CommittedSlots(
        slots,
        np.flatnonzero(~valid_a & ~is_lost),
        np.flatnonzero(~valid_b & ~is_lost),
        np.flatnonzero(is_lost),
        torn,
    )


def _placeholder(before: np.ndarray | None) -> np.ndarray:
    """A slot in place of a lost one: it follows the one before, and has no rows."""
    slot = np.zeros((), SLOT)
    slot["end"], slot["episode"], slot["stream"] = int(End.LOST), -1, -1
    if before is not None:
        slot["row_id"] = before["row_id"] + before["rows"]
        slot["total_steps"] = before["total_steps"]
        slot["offset"] = before["offset"] + before["nbytes"]
    return slot
