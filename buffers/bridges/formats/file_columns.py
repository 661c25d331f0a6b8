"""The columns of tables and records, as Parquet files and RLDS data sets hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stepwell.buffers.bridges.formats.png import Axes, picture_axes
from stepwell.buffers.spec import Field

__all__ = ["Encoding", "FileColumn"]

Encoding = Literal["array", "raw", "zlib", "png", "jpeg", "text"]
"""The encoding of rows: numbers, the array's bytes, these bytes compressed, pictures, or texts."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file: its name in the file, the rows in numpy, and their encoding.

    Args:
        name: The column's name or path.
        dtype: numpy's name of the dtype; ``"str"`` for texts.
        shape: Shape of one row; -1 where a length is not known.
        encoding: Encoding of a row.
        axes: Axes of a picture; None if the rows are something else, or it is not known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    encoding: Encoding = "array"
    axes: Axes | None = None

    @classmethod
    def of(cls, name: str, field: Field, holder: str, *, stack: bool = False) -> FileColumn:
        """The column of a field, as numbers.

        Args:
            name: The column's name or path.
            field: The field.
            holder: Kind of the file, for the error message.
            stack: Whole stacks of frames instead of single ones; they are not pictures.

        Raises:
            ValueError: The file cannot hold such a dtype.
        """
        shape = field.source_shape if stack else field.shape
        dtype = field.numpy_dtype
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError(
                f"field {field.name!r}: expected numbers or booleans, got {field.dtype}, which a "
                f"{holder} cannot hold; convert it in a wrapper of the env"
            )
        axes = picture_axes(field) if shape == field.shape else None
        return cls(name, field.dtype, shape, axes=axes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in numpy; 0 for texts, and where a length is not known."""
        if -1 in self.shape:
            return 0
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
