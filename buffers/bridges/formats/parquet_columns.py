"""Columns of Parquet files: numpy's rows as Arrow's arrays, and back, bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, Literal

import numpy as np

from stepwell.buffers.bridges.formats.file_columns import FileColumn
from stepwell.buffers.bridges.formats.png import decoded_rows, encoded_rows, is_lossy
from stepwell.buffers.given_files import MemoryBudget
from stepwell.buffers.optional_libraries import load_library
from stepwell.buffers.spec import Field

__all__ = [
    "SLICE_BYTES",
    "Images",
    "array_rows",
    "as_table",
    "column_of",
    "leaf_of",
    "listed",
    "load_arrow",
    "schema_of",
]

Images = Literal["png", "array", "raw"]
"""The form of pictures: PNG files in the struct that HuggingFace calls Image, nested lists of
numbers, or the bytes of the array."""

SLICE_BYTES: Final = 1 << 24
"""Rows are converted and read in slices of this size, which bounds the extra memory."""
_MAX_DIMS: Final = 5  # of HuggingFace's arrays


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


def column_of(name: str, field: Field, images: Images, *, stack: bool = False) -> FileColumn:
    """The column of a field.

    Args:
        name: The column's name.
        field: The field.
        images: Encoding of pictures.
        stack: Whole stacks of frames instead of single ones; they are not pictures.

    Raises:
        ValueError: Parquet has no such dtype, or a row has too many dimensions.
    """
    column = FileColumn.of(name, field, "Parquet table", stack=stack)
    if len(column.shape) > _MAX_DIMS:
        raise ValueError(
            f"field {field.name!r}: expected rows of {_MAX_DIMS} dimensions at most, got shape "
            f"{column.shape}; reshape it in a wrapper of the env"
        )
    return column if column.axes is None else replace(column, encoding=images)


def leaf_of(column: FileColumn) -> str:
    """The path of the stored leaf column in the Parquet schema."""
    if column.encoding == "png":
        return f"{column.name}.bytes"
    return column.name + (".list.element" * len(column.shape) * (column.encoding == "array"))


def as_table(arrow: Any, columns: Sequence[FileColumn], rows: Mapping[str, np.ndarray]) -> Any:
    """Rows [T, ...] by column name as a table."""
    total = len(rows[columns[0].name])
    step = max(1, SLICE_BYTES // max(1, *(column.row_bytes for column in columns)))
    arrays = [
        arrow.chunked_array(
            [
                _array(arrow, column, rows[column.name][start : start + step])
                for start in range(0, total, step)
            ],
            _type_of(arrow, column),
        )
        for column in columns
    ]
    return arrow.table(arrays, schema=schema_of(arrow, columns))


def schema_of(arrow: Any, columns: Sequence[FileColumn]) -> Any:
    """The schema of a file, with the metadata for HuggingFace's `datasets`."""
    features = {column.name: _feature(column) for column in columns}
    texts = {"huggingface": json.dumps({"info": {"features": features}})}
    return arrow.schema([_arrow_field(arrow, column) for column in columns], metadata=texts)


def _type_of(arrow: Any, column: FileColumn) -> Any:
    """Arrow's type of a column."""
    if column.encoding == "png":
        return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    if column.encoding in ("raw", "text"):
        return arrow.binary() if column.encoding == "raw" else arrow.string()
    found = arrow.from_numpy_dtype(np.dtype(column.dtype))
    if len(column.shape) == 1 and column.shape[0]:
        return arrow.list_(found, column.shape[0])
    for _ in column.shape:
        found = arrow.list_(found)
    return found


def _feature(column: FileColumn) -> dict[str, Any]:
    """The description for HuggingFace's `datasets`, which gives rows of that shape."""
    if column.encoding == "png":
        return {"_type": "Image"}
    dtype = {"raw": "binary", "text": "string"}.get(column.encoding, column.dtype)
    value = {"dtype": dtype, "_type": "Value"}
    if column.encoding != "array" or not column.shape:
        return value
    if len(column.shape) == 1:
        return {"feature": value, "length": column.shape[0] or -1, "_type": "Sequence"}
    name = f"Array{len(column.shape)}D"
    return {"shape": list(column.shape), "dtype": column.dtype, "_type": name}


def _arrow_field(arrow: Any, column: FileColumn) -> Any:
    """Arrow's field of a column."""
    found = _type_of(arrow, column)
    if column.encoding != "array" or len(column.shape) < 2:
        return arrow.field(column.name, found)
    # HuggingFace's type, from which its `datasets` reads the shape; plain lists for others.
    name = f"datasets.features.features.Array{len(column.shape)}DExtensionType"
    texts = {
        "ARROW:extension:name": name,
        "ARROW:extension:metadata": json.dumps([list(column.shape), column.dtype]),
    }
    return arrow.field(column.name, found, metadata=texts)


def _array(arrow: Any, column: FileColumn, rows: np.ndarray) -> Any:
    """Rows [T, ...] as an Arrow array of length T."""
    found_type, shape = _type_of(arrow, column), column.shape
    if column.encoding == "png" and column.axes is not None:
        files = arrow.array(encoded_rows(rows, column.axes), arrow.binary())
        paths = arrow.nulls(len(rows), arrow.string())
        return arrow.StructArray.from_arrays([files, paths], fields=list(found_type))
    if column.encoding == "raw":
        return arrow.array([np.ascontiguousarray(row).tobytes() for row in rows], found_type)
    if column.encoding == "text":
        return arrow.array(rows.tolist(), found_type)
    values = arrow.array(np.ascontiguousarray(rows).reshape(-1))
    if len(shape) == 1 and shape[0]:
        return arrow.FixedSizeListArray.from_arrays(values, shape[0])
    for place in range(len(shape), 0, -1):
        count, size = len(rows) * math.prod(shape[: place - 1]), shape[place - 1]
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        values = arrow.ListArray.from_arrays(arrow.array(offsets), values)
    return values


def listed(array: Any, budget: MemoryBudget) -> list[Any]:
    """The bytes or texts of an Arrow array.

    Args:
        array: One without chunks.
        budget: The memory that is left for the values.

    Raises:
        ValueError: The memory is not enough.
    """
    budget.take(array.nbytes + 64 * len(array))
    found: list[Any] = array.to_pylist()
    return found


def array_rows(array: Any, name: str, budget: MemoryBudget) -> tuple[np.ndarray, bool]:
    """Rows [T, ...] of any Arrow array that holds numbers, in lists of equal lengths, or pictures.

    Args:
        array: One without chunks.
        name: The column's, for error messages.
        budget: The memory that is left for them.

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
        return _pictures(listed(files, budget), name, budget)
    shape: list[int] = []
    while "list" in str(array.type).partition("<")[0]:
        if array.null_count:
            break
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        size = array.type.list_size if lengths is None else _common_length(lengths.to_numpy(), name)
        shape.append(size)
        array = array.flatten()
    if array.null_count:
        raise ValueError(
            f"column {name!r}: expected a value in each row, got none in {array.null_count:,} of "
            f"{length:,}; fill or leave them out"
        )
    rows = array.to_numpy(zero_copy_only=False)
    if rows.dtype.kind not in "biuf":
        raise ValueError(
            f"column {name!r}: expected numbers, lists of numbers or pictures, got {kind}; leave "
            f"the column out"
        )
    return rows.reshape(length, *shape), False


def _pictures(files: list[bytes], name: str, budget: MemoryBudget) -> tuple[np.ndarray, bool]:
    try:
        return decoded_rows(files, budget=budget), any(map(is_lossy, files))
    except ValueError as error:
        raise ValueError(f"column {name!r}, {error}") from error


def _common_length(lengths: np.ndarray, name: str) -> int:
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
