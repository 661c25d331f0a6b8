"""A block of rows as its first row, and the bytes that change from each row to the next.

::

    counts      u32 for each row but the first: how many changes lead to it from the row before
    steps       u8 for each change: from the place of the row's last change, or from 0, to its place
    values      u8 for each change: the byte there
    first row   its bytes

A change further on than 255 bytes follows others, which write the bytes that are there.
"""

from __future__ import annotations

import numpy as np

from ..base import native

_COUNT_BYTES, _CHANGE_BYTES = 4, 2
_LONGEST_STEP = 255


def least_bytes(rows: int, row_bytes: int) -> int:
    """Length of the deltas of rows that are all the same."""
    return _COUNT_BYTES * (rows - 1) + row_bytes


def deltas_of(rows: np.ndarray, most_bytes: int) -> np.ndarray | None:
    """The deltas of rows [n, bytes of a row] uint8, as bytes; None above ``most_bytes``."""
    count, row_bytes = rows.shape
    least = least_bytes(count, row_bytes)
    place = _changes(rows)
    if least + _CHANGE_BYTES * len(place) > most_bytes:
        return None
    # Where each row's changes begin and end among all.
    ends_of_rows = np.searchsorted(place, np.arange(count) * row_bytes)
    steps = np.diff(place, prepend=0)
    first = ends_of_rows[:-1][np.diff(ends_of_rows) > 0]
    steps[first] = place[first] % row_bytes
    more = np.maximum(steps - 1, 0) // _LONGEST_STEP
    steps -= _LONGEST_STEP * more
    ends = np.cumsum(more + 1)
    total = int(ends[-1]) if len(ends) else 0
    if least + _CHANGE_BYTES * total > most_bytes:
        return None
    out = np.empty(least + _CHANGE_BYTES * total, np.uint8)
    head = _COUNT_BYTES * (count - 1)
    out[:head].view("<u4")[:] = np.diff(np.append(0, ends)[ends_of_rows])
    short, values = out[head : head + total], out[head + total : head + 2 * total]
    short[:] = _LONGEST_STEP
    short[ends - 1] = steps
    if total > len(place):
        before = place - steps - _LONGEST_STEP * (ends - 2)
        between = np.repeat(before, more + 1) + _LONGEST_STEP * np.arange(total)
        between[ends - 1] = place
        place = between
    values[:] = rows[1:].reshape(-1)[place]
    out[head + 2 * total :] = rows[0]
    return out


def _changes(rows: np.ndarray) -> np.ndarray:
    """Places of the bytes that differ from those a row before, counted from the second row on."""
    if rows.shape[1] % 8:
        return np.flatnonzero(rows[1:] != rows[:-1])
    words = rows.view(np.uint64)  # of eight bytes: few of them change
    word = np.flatnonzero(words[1:] != words[:-1])
    pairs = (part.reshape(-1)[word].view(np.uint8) for part in (words[1:], words[:-1]))
    byte = np.flatnonzero(np.not_equal(*pairs))
    place: np.ndarray = word[byte >> 3] * 8 + (byte & 7)
    return place


def apply_deltas(deltas: bytes, rows: int, row_bytes: int, start: int, out: memoryview) -> None:
    """Restore rows of a block, one or more from ``start`` on, as many as ``out`` has room for."""
    if native.core is not None:
        native.core.apply_deltas(deltas, rows, row_bytes, start, out)
        return
    head = _COUNT_BYTES * (rows - 1)
    room = len(deltas) - least_bytes(rows, row_bytes)
    counts = np.frombuffer(deltas, "<u4", rows - 1 if room >= 0 else 0)
    total, rest = divmod(room, _CHANGE_BYTES)
    if room < 0 or rest or total != int(counts.sum()):
        raise ValueError(
            f"{len(deltas)} bytes of deltas are not of {rows} rows of {row_bytes} bytes"
        )
    restored = np.frombuffer(out, np.uint8).reshape(-1, row_bytes)
    counts = counts[: start + len(restored) - 1]
    ends = np.zeros(len(counts) + 1, np.int64)
    np.add.accumulate(counts, out=ends[1:])
    used = int(ends[-1])
    sums = np.zeros(used + 1, np.int64)
    np.add.accumulate(np.frombuffer(deltas, np.uint8, used, head), out=sums[1:])
    place = sums[1:] - np.repeat(sums[ends[:-1]], counts)
    if used and int(place.max()) >= row_bytes:
        raise ValueError(f"a change of byte {place.max()} in rows of {row_bytes} bytes")
    values = np.frombuffer(deltas, np.uint8, used, head + total)
    _, *borders = ends[start:].tolist()
    low = int(ends[start])
    row = restored[0]
    row[:] = np.frombuffer(deltas, np.uint8, row_bytes, head + _CHANGE_BYTES * total)
    row[place[:low]] = values[:low]  # of several changes of a byte, numpy leaves the last
    for number, high in enumerate(borders, 1):
        before, row = row, restored[number]
        row[:] = before
        row[place[low:high]] = values[low:high]
        low = high
