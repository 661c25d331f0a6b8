"""Columns of Parquet files: numpy's rows as Arrow's arrays, and back, bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

import numpy as np

from stepwell.buffers.bridges.formats.png import (
    Axes,
    decoded_rows,
    encoded_rows,
    is_lossy,
    picture_axes,
)
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.given_files import Room
from stepwell.buffers.spec import Field

__all__ = ["Column", "Images", "array_rows", "listed", "load_arrow", "schema_of", "text_column"]

Images = Literal["png", "array", "raw"]
"""The form of pictures: PNG files in the struct that HuggingFace calls Image, nested lists of
numbers, or the bytes of the array."""

_MAX_DIMS: Final = 5  # of HuggingFace's arrays
_KINDS: Final = "biuf"


def load_arrow(wanted_for: str, install: str) -> tuple[ModuleType, ModuleType]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Args:
        wanted_for: The feature that needs them; begins the error message.
        install: Arguments of ``pip install``.

    Raises:
        ImportError: They are not installed, or too old: before 16 a float16 cannot be written.
    """
    arrow = load_library("pyarrow", wanted_for, install=install, at_least="16")
    return arrow, load_library("pyarrow.parquet", wanted_for, install=install)


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and the form of its rows in numpy.

    Args:
        name: The column's.
        dtype: numpy's name of the dtype.
        shape: Shape of one row.
        kind: The encoding; ``array`` for all fields that are not pictures.
        axes: Axes of a picture, if the rows are pictures.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    kind: Images | Literal["text"] = "array"
    axes: Axes | None = None

    @classmethod
    def of(cls, name: str, field: Field, images: Images, *, stack: bool = False) -> Column:
        """The column of a field.

        Args:
            name: The column's.
            field: The field.
            images: Encoding of pictures.
            stack: Whole stacks of frames, not single ones; they are not pictures.

        Raises:
            ValueError: Parquet has no such dtype, or a row has too many dimensions.
        """
        shape = field.source_shape if stack else field.shape
        axes = None if shape != field.shape else picture_axes(field)
        if field.numpy_dtype.kind not in _KINDS:
            raise ValueError(
                f"field {field.name!r}: expected numbers or booleans, got {field.dtype}, which a "
                f"Parquet table cannot hold; convert it in a wrapper of the env"
            )
        if len(shape) > _MAX_DIMS:
            raise ValueError(
                f"field {field.name!r}: expected rows of {_MAX_DIMS} dimensions at most, got shape "
                f"{shape}; reshape it in a wrapper of the env"
            )
        return cls(name, field.dtype, shape, "array" if axes is None else images, axes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in numpy; of a text 0."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def leaf(self) -> str:
        """The path of the stored leaf column in the Parquet schema."""
        if self.kind == "png":
            return f"{self.name}.bytes"
        return self.name + (".list.element" * len(self.shape) if self.kind == "array" else "")

    def arrow_type(self, arrow: Any) -> Any:
        """Arrow's type of it."""
        if self.kind == "png":
            return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        if self.kind in ("raw", "text"):
            return arrow.binary() if self.kind == "raw" else arrow.string()
        found = arrow.from_numpy_dtype(np.dtype(self.dtype))
        if len(self.shape) == 1 and self.shape[0]:
            return arrow.list_(found, self.shape[0])
        for _ in self.shape:
            found = arrow.list_(found)
        return found

    def feature(self) -> dict[str, Any]:
        """The description for HuggingFace's `datasets`, which gives rows of that shape."""
        if self.kind == "png":
            return {"_type": "Image"}
        dtype = {"raw": "binary", "text": "string"}.get(self.kind, self.dtype)
        value = {"dtype": dtype, "_type": "Value"}
        if self.kind != "array" or not self.shape:
            return value
        if len(self.shape) == 1:
            return {"feature": value, "length": self.shape[0] or -1, "_type": "Sequence"}
        name = f"Array{len(self.shape)}D"
        return {"shape": list(self.shape), "dtype": self.dtype, "_type": name}

    def arrow_field(self, arrow: Any) -> Any:
        """Arrow's field of it."""
        found = self.arrow_type(arrow)
        if self.kind != "array" or len(self.shape) < 2:
            return arrow.field(self.name, found)
        # HuggingFace's type, from which its `datasets` reads the shape; plain lists for others.
        name = f"datasets.features.features.Array{len(self.shape)}DExtensionType"
        texts = {
            "ARROW:extension:name": name,
            "ARROW:extension:metadata": json.dumps([list(self.shape), self.dtype]),
        }
        return arrow.field(self.name, found, metadata=texts)

    def array(self, arrow: Any, rows: np.ndarray) -> Any:
        """Rows [T, ...] as an Arrow array of length T."""
        found_type = self.arrow_type(arrow)
        if self.kind == "png" and self.axes is not None:
            files = arrow.array(encoded_rows(rows, self.axes), arrow.binary())
            paths = arrow.nulls(len(rows), arrow.string())
            return arrow.StructArray.from_arrays([files, paths], fields=list(found_type))
        if self.kind == "raw":
            return arrow.array([np.ascontiguousarray(row).tobytes() for row in rows], found_type)
        if self.kind == "text":
            return arrow.array(rows.tolist(), found_type)
        values = arrow.array(np.ascontiguousarray(rows).reshape(-1))
        if len(self.shape) == 1 and self.shape[0]:
            return arrow.FixedSizeListArray.from_arrays(values, self.shape[0])
        for place in range(len(self.shape), 0, -1):
            count, size = len(rows) * math.prod(self.shape[: place - 1]), self.shape[place - 1]
            offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
            values = arrow.ListArray.from_arrays(arrow.array(offsets), values)
        return values


def text_column(name: str) -> Column:
    """A column of texts."""
    return Column(name, "U", (), "text")


def listed(array: Any, room: Room) -> list[Any]:
    """The bytes or texts of an Arrow array.

    Args:
        array: One without chunks.
        room: The memory that is left for the values.

    Raises:
        ValueError: The memory is not enough.
    """
    room.take(array.nbytes + 64 * len(array))
    found: list[Any] = array.to_pylist()
    return found


def array_rows(array: Any, name: str, room: Room) -> tuple[np.ndarray, bool]:
    """Rows [T, ...] of any Arrow array that holds numbers, in lists of equal lengths, or pictures.

    Args:
        array: One without chunks.
        name: The column's, for error messages.
        room: The memory that is left for them.

    Returns:
        The rows, and whether they were pictures that lost something (JPEG).

    Raises:
        ValueError: It holds something else, rows of different shapes, or nulls.
    """
    length = len(array)
    if hasattr(array, "to_numpy_ndarray"):  # Arrow's tensor type
        return array.to_numpy_ndarray(), False
    if hasattr(array, "storage"):  # HuggingFace's type, where its `datasets` is loaded
        array = array.storage
    kind = str(array.type)
    is_picture = kind.startswith("struct<") and "bytes: binary" in kind
    if is_picture or kind in ("binary", "large_binary"):
        files = array.field("bytes") if is_picture else array
        if files.null_count:
            raise ValueError(f"column {name!r}: expected pictures as bytes in it, got paths only")
        return _pictures(listed(files, room), name, room)
    shape: list[int] = []
    while "list" in str(array.type).partition("<")[0]:
        if array.null_count:
            break
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        size = array.type.list_size if lengths is None else _only(lengths.to_numpy(), name)
        shape.append(size)
        array = array.flatten()
    if array.null_count:
        raise ValueError(
            f"column {name!r}: expected a value in each row, got none in {array.null_count:,} of "
            f"{length:,}; fill or leave them out"
        )
    rows = array.to_numpy(zero_copy_only=False)
    if rows.dtype.kind not in _KINDS:
        raise ValueError(
            f"column {name!r}: expected numbers, lists of numbers or pictures, got {kind}; leave "
            f"the column out"
        )
    return rows.reshape(length, *shape), False


def schema_of(arrow: Any, columns: Sequence[Column], metadata: dict[str, str] | None = None) -> Any:
    """The schema of a file, with the metadata for HuggingFace's `datasets` and Stepwell.

    Args:
        arrow: The module.
        columns: In their order.
        metadata: Further texts.
    """
    features = {column.name: column.feature() for column in columns}
    texts = {"huggingface": json.dumps({"info": {"features": features}}), **(metadata or {})}
    fields = [column.arrow_field(arrow) for column in columns]
    return arrow.schema(fields, metadata=texts)


def _pictures(files: list[bytes], name: str, room: Room) -> tuple[np.ndarray, bool]:
    try:
        return decoded_rows(files, room=room), any(map(is_lossy, files))
    except ValueError as error:
        raise ValueError(f"column {name!r}, {error}") from error


def _only(lengths: np.ndarray, name: str) -> int:
    """The length of all lists.

    Raises:
        ValueError: They differ.
    """
    if len(lengths) and (lengths != lengths[0]).any():
        other = lengths[lengths != lengths[0]][0]
        raise ValueError(
            f"column {name!r}: expected rows of one shape, got lists of {lengths[0]} and of "
            f"{other}; pad them"
        )
    return int(lengths[0]) if len(lengths) else 0
