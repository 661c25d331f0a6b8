"""Which slots of a segment are committed: the same judgement for writer and readers. Pure.

A flush writes its data, then its slots in copy A, waits until both are on the medium, then writes
the slots in copy B. So a whole slot in B says that its flush came through, and a flush that never
returned can only be the last one of the segment that was being written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepwell.buffers.disk.format import Copy
from stepwell.buffers.errors import StoreCorrupt

__all__ = ["Verdict", "judge_open", "judge_sealed"]


class Verdict(NamedTuple):
    """What was found in a segment's slot tables.

    Args:
        slots: The committed slots [n], dtype `SLOT`.
        heal_a: Numbers of slots whose copy A must be written again.
        heal_b: The same for copy B.
        torn: Slots found of a flush that never returned.
    """

    slots: np.ndarray
    heal_a: np.ndarray
    heal_b: np.ndarray
    torn: int = 0


def judge_sealed(a: Copy, b: Copy, where: str) -> Verdict:
    """Judge the slots of a segment that is complete: every one of them was committed.

    Raises:
        StoreCorrupt: Both copies of a slot are damaged, or they differ.
    """
    _check_whole(a, b, len(a.slots), where)
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
        StoreCorrupt: A slot is damaged that was committed for certain.
    """
    found = np.flatnonzero(a.is_valid | b.is_valid)
    if not len(found):
        return _committed(a, b, 0, 0)
    slots = _best(a, b)
    last = slots[found[np.argmax(slots["group"][found])]]
    begin, end = int(last["group"]), int(last["group"]) + int(last["group_slots"])
    _check_whole(a, b, begin, where)
    if end > len(slots) or found[-1] >= end:
        raise StoreCorrupt(f"{where}: its slots contradict each other; restore it from a copy")
    group = range(begin, end)
    is_certain = b.is_valid[begin:end].any()
    if is_certain:
        _check_whole(a, b, end, where)
    elif not all(a.is_valid[number] and is_data_right(slots[number]) for number in group):
        return _committed(a, b, begin, int((found >= begin).sum()))
    return _committed(a, b, end, 0)


def _best(a: Copy, b: Copy) -> np.ndarray:
    """Of each slot the copy that is whole."""
    return np.where(b.is_valid, b.slots, a.slots)


def _check_whole(a: Copy, b: Copy, count: int, where: str) -> None:
    """Refuse a slot of the first ``count`` of which no copy is left, or two that differ."""
    is_valid = (a.is_valid | b.is_valid)[:count]
    differs = (a.slots != b.slots)[:count] & (a.is_valid & b.is_valid)[:count]
    bad = np.flatnonzero(~is_valid | differs)
    if len(bad):
        raise StoreCorrupt(
            f"{where}: both copies of slot {bad[0]} are damaged, so that a piece is lost; "
            f"restore the file from a copy"
        )


def _committed(a: Copy, b: Copy, count: int, torn: int) -> Verdict:
    return Verdict(
        _best(a, b)[:count],
        np.flatnonzero(~a.is_valid[:count]),
        np.flatnonzero(~b.is_valid[:count]),
        torn,
    )
