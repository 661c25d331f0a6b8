"""A block of rows as its first row, and the words of eight bytes that differ from row to row.

::

    ends        u32 for each row but the first: how many words the patches up to it have together
    steps       u16 for each word: from the row's word before, or from 0, to its place in the row
    values      8 bytes for each word: what is there; zeros behind the end of a row
    first row   its bytes

The patch of every 16th row is against the first row, any other's against the row before: a row is
reached by the first one, one patch, and 15 more at most. Of most images few words change, so that
a restored row is a copy of the row before, which is in the processor's cache, and few words: that
takes less time than to fetch the row itself from memory. `docs/disk-format.md` has the limits.
"""

from __future__ import annotations

import numpy as np

from ..base import native

_ANCHOR_EVERY = 16  # as in _native.c
_END_BYTES, _STEP_BYTES, _WORD_BYTES = 4, 2, 8
_CHANGE_BYTES = _STEP_BYTES + _WORD_BYTES


def patches_of(rows: np.ndarray, most_bytes: int) -> np.ndarray | None:
    """The patches of rows [n, bytes of a row] uint8, as bytes; None above ``most_bytes``."""
    count, row_bytes = rows.shape
    least = _END_BYTES * (count - 1) + row_bytes
    if most_bytes < least:
        return None
    if native.core is not None:
        out = np.empty(most_bytes, np.uint8)
        size = native.core.find_patches(rows, row_bytes, out)
        return out[:size] if size else None
    words = _words_of(rows)
    row = np.arange(1, count)
    reference = np.where(row % _ANCHOR_EVERY, row - 1, 0)  # against which each patch is
    row, place = np.nonzero(words[1:] != words[reference])
    total = len(row)
    if least + _CHANGE_BYTES * total > most_bytes:
        return None
    out = np.empty(least + _CHANGE_BYTES * total, np.uint8)
    head, middle = _END_BYTES * (count - 1), _END_BYTES * (count - 1) + _STEP_BYTES * total
    out[:head].view("<u4")[:] = np.searchsorted(row, np.arange(count - 1), "right")
    steps = np.diff(place, prepend=0)
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    steps[begins] = place[begins]
    out[head:middle] = steps.astype("<u2").view(np.uint8)
    out[middle : middle + _WORD_BYTES * total] = words[row + 1, place].view(np.uint8)
    out[middle + _WORD_BYTES * total :] = rows[0]
    return out


def _words_of(rows: np.ndarray) -> np.ndarray:
    """Rows [n, bytes] as words of eight bytes [n, words], zeros behind the end of each."""
    behind = -rows.shape[1] % _WORD_BYTES
    if behind:
        rows = np.pad(rows, ((0, 0), (0, behind)))
    return rows.view(np.uint64)


def apply_patches(patches: bytes, rows: int, row_bytes: int, start: int, out: np.ndarray) -> None:
    """Restore rows of a block, as many as ``out`` [n, bytes of a row] has, from ``start`` on."""
    head = _END_BYTES * (rows - 1)
    total, rest = divmod(len(patches) - head - row_bytes, _CHANGE_BYTES)
    ends = np.frombuffer(patches, "<u4", rows - 1 if total >= 0 else 0)
    if total < 0 or rest or (int(ends[-1]) if rows > 1 else 0) != total:
        raise ValueError(
            f"{len(patches)} bytes of patches are not of {rows} rows of {row_bytes} bytes"
        )
    words = np.zeros(-(-row_bytes // _WORD_BYTES), np.uint64)
    row = words.view(np.uint8)[:row_bytes]
    row[:] = np.frombuffer(patches, np.uint8, row_bytes, head + _CHANGE_BYTES * total)
    first = words.copy()
    # The patches from the anchor on. Of each row, the places are the sums of its own steps.
    anchor, stop = start // _ANCHOR_EVERY * _ANCHOR_EVERY, start + len(out)
    # In `borders` are the ends of patches, before that of each row and behind it.
    borders = np.append(np.int64(0), ends[: stop - 1].astype(np.int64))[max(0, anchor - 1) :]
    borders = borders if anchor else np.append(np.int64(0), borders)
    counts, begin = np.diff(borders), int(borders[0])
    count = int(borders[-1]) - begin
    if counts.min() < 0 or borders[-1] > total:
        raise ValueError(f"a patch of {counts.min()} words in rows of {row_bytes} bytes")
    sums = np.zeros(count + 1, np.int64)
    steps = np.frombuffer(patches, "<u2", count, head + _STEP_BYTES * begin)
    np.add.accumulate(steps, out=sums[1:])
    place = sums[1:] - np.repeat(sums[borders[:-1] - begin], counts)
    if count and int(place.max()) >= len(words):
        raise ValueError(f"a patch of word {place.max()} in rows of {row_bytes} bytes")
    offset = head + _STEP_BYTES * total + _WORD_BYTES * begin
    values = np.frombuffer(patches, np.uint64, count, offset)
    low = 0
    for number, high in enumerate((borders[1:] - begin).tolist(), anchor):
        if number % _ANCHOR_EVERY == 0:
            words[:] = first
        words[place[low:high]] = values[low:high]
        low = high
        if number >= start:
            out[number - start] = row


# --- deltas, which older versions wrote in place of patches, and which are only read --------------
#
# counts      u32 for each row but the first: how many changes lead to it from the row before
# steps       u8 for each change: from the place of the row's last change, or from 0, to its place
# values      u8 for each change: the byte there
# first row   its bytes
#
# A change further on than 255 bytes follows others, which write the bytes that are there.

_DELTA_BYTES = 2


def least_deltas(rows: int, row_bytes: int) -> int:
    """Length of the deltas of rows that are all the same."""
    return _END_BYTES * (rows - 1) + row_bytes


def apply_deltas(deltas: bytes, rows: int, row_bytes: int, start: int, out: memoryview) -> None:
    """Restore rows of a block, one or more from ``start`` on, as many as ``out`` has room for."""
    if native.core is not None:
        native.core.apply_deltas(deltas, rows, row_bytes, start, out)
        return
    head = _END_BYTES * (rows - 1)
    room = len(deltas) - least_deltas(rows, row_bytes)
    counts = np.frombuffer(deltas, "<u4", rows - 1 if room >= 0 else 0)
    total, rest = divmod(room, _DELTA_BYTES)
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
    row[:] = np.frombuffer(deltas, np.uint8, row_bytes, head + _DELTA_BYTES * total)
    row[place[:low]] = values[:low]  # of several changes of a byte, numpy leaves the last
    for number, high in enumerate(borders, 1):
        before, row = row, restored[number]
        row[:] = before
        row[place[low:high]] = values[low:high]
        low = high
