"""The flags of rows that were gathered: only an episode's first and last row can have any."""

from __future__ import annotations

import numpy as np

from stepwell.buffers.episode import End
from stepwell.buffers.sampling.row_reader import Segments

__all__ = ["FLAGS", "fill_flags", "fill_mask"]

FLAGS = ("is_first", "is_last", "terminated", "truncated", "cut", "mask")


def fill_flags(flags: np.ndarray, records: np.ndarray, segments: Segments) -> None:
    """Set the flags of gathered rows.

    Args:
        flags: [6, rows] bool, overwritten; in the order of `FLAGS`.
        records: [S] the records of the segments' chunks.
        segments: Where the rows lie.
    """
    flags[:5] = False
    first = segments.target[records["first_row"] + segments.start == 0]
    flags[0, first] = True
    stop = segments.start + segments.rows
    is_last = (stop == records["rows"]) & (records["is_tail"] == 1)
    last = np.flatnonzero(is_last)
    if len(last):
        row, end = (segments.target + segments.rows - 1)[last], records["end"][last]
        terminated = end & int(End.TERMINATED) != 0
        truncated = end & int(End.TRUNCATED) != 0
        flags[1, row] = True
        flags[2, row] = terminated
        flags[3, row] = truncated
        flags[4, row] = ~(terminated | truncated)


def fill_mask(mask: np.ndarray, target: np.ndarray, count: np.ndarray) -> bool:
    """Mark the rows that runs go to, and say whether those are all.

    Args:
        mask: [rows] bool, overwritten.
        target: [R] first row of each run.
        count: [R] rows of it.
    """
    if int(count.sum()) == len(mask):
        mask[:] = True
        return True
    edges = np.zeros(len(mask) + 1, np.int8)
    edges[target] += 1
    np.subtract.at(edges, target + count, 1)
    np.greater(np.cumsum(edges[:-1]), 0, out=mask)
    return False
