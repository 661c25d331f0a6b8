"""Which slots of a segment are committed: the same judgement for writer and readers. Pure.

A flush writes its data, then its slots in copy A, waits until both are on the medium, then writes
the slots in copy B. So a whole slot in B says that its flush came through, and a flush that never
returned can only be the last one of the segment that was being written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepwell.buffers.disk.format import SLOT, Copy, cure
from stepwell.buffers.episode import End
from stepwell.buffers.errors import StoreCorrupt

__all__ = ["Verdict", "judge_open", "judge_sealed"]


class Verdict(NamedTuple):
    """What was found in a segment's slot tables.

    Args:
        slots: The committed slots [n], dtype `SLOT`; of a lost one only the place is known, and
            ``End.LOST`` says so.
        heal_a: Numbers of slots whose copy A must be written again.
        heal_b: The same for copy B.
        lost: Numbers of slots of which no copy is left, or two that differ.
        torn: Slots found of a flush that never returned.
    """

    slots: np.ndarray
    heal_a: np.ndarray
    heal_b: np.ndarray
    lost: np.ndarray
    torn: int = 0


def judge_sealed(a: Copy, b: Copy) -> Verdict:
    """Judge the slots of a segment that is complete: every one of them was committed."""
    return _committed(a, b, len(a.slots), 0)


def judge_open(
    a: Copy, b: Copy, where: str, is_data_right: Callable[[np.ndarray], bool]
) -> Verdict:
    """Judge the slots of the segment that was, or still is, being written.

    Args:
        a: Copy A of all slots.
        b: Copy B of all slots.
        where: The file's name, for the message.
        is_data_right: Whether the bytes of a slot's piece have the right checksum.

    Raises:
        StoreCorrupt: The slots cannot come from one writer.
    """
    found = np.flatnonzero(a.is_valid | b.is_valid)
    if not len(found):
        return _committed(a, b, 0, 0)
    slots = _best(a, b)
    last = slots[found[np.argmax(slots["group"][found])]]
    begin, end = int(last["group"]), int(last["group"]) + int(last["group_slots"])
    if end > len(slots) or found[-1] >= end:
        raise StoreCorrupt(f"{where}: its slots contradict each other; {cure(where)}")
    group = range(begin, end)
    is_certain = b.is_valid[begin:end].any()
    if not is_certain and not all(
        a.is_valid[number] and is_data_right(slots[number]) for number in group
    ):
        return _committed(a, b, begin, int((found >= begin).sum()))
    return _committed(a, b, end, 0)


def _best(a: Copy, b: Copy) -> np.ndarray:
    """Of each slot the copy that is whole."""
    return np.where(b.is_valid, _raw(b), _raw(a)).view(SLOT)


def _raw(copy: Copy) -> np.ndarray:
    """A copy's slots as plain bytes, with which numpy is ten times as fast as with their fields."""
    return copy.slots.view(f"V{SLOT.itemsize}")


def _committed(a: Copy, b: Copy, count: int, torn: int) -> Verdict:
    valid_a, valid_b = a.is_valid[:count], b.is_valid[:count]
    differs = (_raw(a) != _raw(b))[:count] & valid_a & valid_b
    is_lost = ~(valid_a | valid_b) | differs
    slots = _best(a, b)[:count]
    for number in np.flatnonzero(is_lost).tolist():
        slots[number] = _placeholder(slots[number - 1] if number else None)
    return Verdict(
        slots,
        np.flatnonzero(~valid_a & ~is_lost),
        np.flatnonzero(~valid_b & ~is_lost),
        np.flatnonzero(is_lost),
        torn,
    )


def _placeholder(before: np.ndarray | None) -> np.ndarray:
    """What stands for a lost slot: it comes after the one before, and holds nothing."""
    slot = np.zeros((), SLOT)
    slot["end"], slot["episode"], slot["stream"] = int(End.LOST), -1, -1
    if before is not None:
        slot["row_id"] = before["row_id"] + before["rows"]
        slot["total_steps"] = before["total_steps"]
        slot["offset"] = before["offset"] + before["nbytes"]
    return slot
