"""Columns of rows in HDF5 files."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["put_column"]

_CHUNK_BYTES: Final = 256 << 10
_BATCH_BYTES: Final = 32 << 20
_SMALL_BYTES: Final = 512  # less is not worth compressing


def put_column(group: Any, name: str, rows: np.ndarray, compress: bool) -> None:
    """Write an array of h5py's.

    Args:
        group: An ``h5py.Group``.
        name: Name of the new ``h5py.Dataset``; each ``/`` in it makes a group.
        rows: [T, ...]; may be a view that takes more memory when it is copied.
        compress: Deflate it, unless it is small; HDF5 undoes that by itself.
    """
    if not compress or rows.nbytes < _SMALL_BYTES:
        group.create_dataset(name, data=rows)
        return
    row_bytes = rows.nbytes // len(rows)
    chunk_rows = max(1, min(len(rows), _CHUNK_BYTES // row_bytes))
    column = group.create_dataset(
        name,
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=(chunk_rows, *rows.shape[1:]),
        compression="gzip",
        compression_opts=1,
        shuffle=rows.dtype.itemsize > 1,
    )
    # Stacks are views: copied whole, they would take k times the memory of the episode.
    batch_rows = max(chunk_rows, _BATCH_BYTES // row_bytes // chunk_rows * chunk_rows)
    for start in range(0, len(rows), batch_rows):
        column[start : start + batch_rows] = rows[start : start + batch_rows]
