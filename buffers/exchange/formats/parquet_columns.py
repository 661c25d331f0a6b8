"""Parquet files: numpy's rows as Arrow's columns and back, bit for bit; written and read."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from ...base.optional_libraries import load_library
from ...base.untrusted_files import GivenFiles, MemoryBudget, parse_object
from ...spec.spec import Field
from .file_columns import FileColumn
from .pictures import decoded_rows, encoded_rows, is_lossy

Images = Literal["png", "array", "raw"]
"""The form of pictures: PNG files in the struct that HuggingFace calls Image, nested lists of
numbers, or the bytes of the array."""

INSTALL: Final = "'stepwell[parquet]'"
SLICE_BYTES: Final = 1 << 24
"""Rows are converted and read in slices of this size, which bounds the extra memory."""
_MAX_DIMS: Final = 5  # of HuggingFace's arrays


def load_arrow(wanted_for: str) -> tuple[ModuleType, ModuleType]:
    """``pyarrow`` and ``pyarrow.parquet``; before version 16 a float16 cannot be written."""
    arrow = load_library("pyarrow", wanted_for, install=INSTALL, at_least="16")
    return arrow, load_library("pyarrow.parquet", wanted_for, install=INSTALL)


def column_of(name: str, field: Field, images: Images, *, stack: bool = False) -> FileColumn:
    """The column of a field; whole stacks of frames are no pictures."""
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


_OWN: Final = "stepwell"


def schema_of(arrow: Any, columns: Sequence[FileColumn], facts: Mapping[str, object]) -> Any:
    """The schema of a file, with metadata for HuggingFace's `datasets` and facts for `facts_of`."""
    found, features = zip(*(_described(arrow, column) for column in columns), strict=True)
    named = dict(zip((column.name for column in columns), features, strict=True))
    texts = {"huggingface": json.dumps({"info": {"features": named}})}
    if facts:
        texts[_OWN] = json.dumps(facts)
    return arrow.schema(found, metadata=texts)


def _described(arrow: Any, column: FileColumn) -> tuple[Any, dict[str, Any]]:
    """Arrow's field of a column, and what HuggingFace's `datasets` calls it."""
    if column.encoding == "png":
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        return arrow.field(column.name, kind), {"_type": "Image"}
    if column.encoding in ("raw", "text"):
        is_raw = column.encoding == "raw"
        kind = arrow.binary() if is_raw else arrow.string()
        value = {"dtype": "binary" if is_raw else "string", "_type": "Value"}
        return arrow.field(column.name, kind), value
    shape, kind = column.shape, arrow.from_numpy_dtype(np.dtype(column.dtype))
    value = {"dtype": column.dtype, "_type": "Value"}
    if not shape:
        return arrow.field(column.name, kind), value
    if len(shape) == 1:
        kind = arrow.list_(kind, shape[0]) if shape[0] else arrow.list_(kind)
        feature = {"feature": value, "length": shape[0] or -1, "_type": "Sequence"}
        return arrow.field(column.name, kind), feature
    for _ in shape:
        kind = arrow.list_(kind)
    # HuggingFace's type, from which its `datasets` reads the shape; plain lists for others.
    name = f"Array{len(shape)}D"
    texts = {
        "ARROW:extension:name": f"datasets.features.features.{name}ExtensionType",
        "ARROW:extension:metadata": json.dumps([list(shape), column.dtype]),
    }
    feature = {"shape": list(shape), "dtype": column.dtype, "_type": name}
    return arrow.field(column.name, kind, metadata=texts), feature


def _array(arrow: Any, column: FileColumn, kind: Any, rows: np.ndarray) -> Any:
    """Rows [T, ...] as an Arrow array of length T and of that type."""
    shape = column.shape
    if column.encoding == "png" and column.axes is not None:
        files = arrow.array(encoded_rows(rows, column.axes), arrow.binary())
        paths = arrow.nulls(len(rows), arrow.string())
        return arrow.StructArray.from_arrays([files, paths], fields=list(kind))
    if column.encoding == "raw":
        return arrow.array([np.ascontiguousarray(row).tobytes() for row in rows], kind)
    if column.encoding == "text":
        return arrow.array(rows.tolist(), kind)
    values = arrow.array(np.ascontiguousarray(rows).reshape(-1))
    if len(shape) == 1 and shape[0]:
        return arrow.FixedSizeListArray.from_arrays(values, shape[0])
    for place in range(len(shape), 0, -1):
        count, size = len(rows) * math.prod(shape[: place - 1]), shape[place - 1]
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        values = arrow.ListArray.from_arrays(arrow.array(offsets), values)
    return values


def listed(array: Any, budget: MemoryBudget) -> list[Any]:
    """The bytes or texts of an Arrow array without chunks."""
    budget.take(array.nbytes + 64 * len(array))
    found: list[Any] = array.to_pylist()
    return found


def facts_of(schema: Any, file: Path) -> dict[str, Any]:
    """The facts about its rows that Stepwell wrote into a schema; empty for other files."""
    text = (schema.metadata or {}).get(_OWN.encode())
    return {} if text is None else parse_object(text, f"{file}: {_OWN!r} in its schema")


def classes_of(schema: Any, file: Path) -> dict[str, list[str]]:
    """The names of the classes of each column that HuggingFace's `datasets` calls a ClassLabel."""
    text = (schema.metadata or {}).get(b"huggingface")
    facts = {} if text is None else parse_object(text, f"{file}: 'huggingface' in its schema")
    found: dict[str, list[str]] = {}

    def add(name: str, feature: Any) -> None:
        if not isinstance(feature, dict):
            return
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel":
            if isinstance(names, list) and names and all(isinstance(each, str) for each in names):
                found[name] = names
        elif "_type" not in feature:
            for key, part in feature.items():
                add(f"{name}/{key}", part)

    info = facts.get("info")
    features = info.get("features") if isinstance(info, dict) else None
    for name, feature in (features if isinstance(features, dict) else {}).items():
        add(name, feature)
    return found


def leaves_of(schema: Any, file: Path) -> dict[str, tuple[int, ...]]:
    """The columns of a schema by name, as the places of their field and of fields in it."""
    # A struct is a Dict of columns, as HuggingFace's `datasets` holds one: `observation/state`.
    found: dict[str, tuple[int, ...]] = {}

    def add(name: str, kind: Any, path: tuple[int, ...]) -> None:
        if str(kind).startswith("struct<") and kind.num_fields and not _is_picture(kind):
            for place in range(kind.num_fields):
                part = kind.field(place)
                add(f"{name}/{part.name}", part.type, (*path, place))
        elif found.setdefault(name, path) != path:
            raise ValueError(
                f"{file}: expected columns of different names, got two named {name!r}; rename one"
            )

    for place, name in enumerate(schema.names):
        add(name, schema.field(place).type, (place,))
    return found


def extensions_of(schema: Any) -> dict[str, str]:
    """The extension types that pyarrow does not know, by column: their stored values are read."""
    key, known = b"ARROW:extension:name", b"datasets.features."
    names = {field.name: (field.metadata or {}).get(key, known) for field in schema}
    return {
        column: name[:60].decode(errors="replace")
        for column, name in names.items()
        if not name.startswith(known)
    }


def leaf_array(batch: Any, path: tuple[int, ...]) -> Any:
    """The values of one of `leaves_of`: null where the struct around it is."""
    place, *inner = path
    array = batch.column(place)
    for place in inner:
        array = array.flatten()[place]
    return array


def _is_picture(kind: Any) -> bool:
    """True for what HuggingFace calls Image: a struct of a file's bytes and its path."""
    if not str(kind).startswith("struct<"):
        return False
    types = {
        kind.field(place).name: str(kind.field(place).type) for place in range(kind.num_fields)
    }
    return set(types) <= {"bytes", "path"} and types.get("bytes") in ("binary", "large_binary")


def array_rows(array: Any, name: str, budget: MemoryBudget) -> tuple[np.ndarray, bool]:
    """Rows [T, ...] of an Arrow array without chunks; True if they are lossy pictures (JPEG)."""
    # It may hold numbers, in lists of equal lengths, or pictures.
    length = len(array)
    if array.null_count:
        raise MissingValue(name)
    if hasattr(array, "to_numpy_ndarray"):  # Arrow's tensor type
        if array.storage.flatten().null_count:
            raise MissingValue(name)
        return array.to_numpy_ndarray(), False
    if getattr(array.type, "extension_name", "") == "arrow.bool8":
        return array.storage.to_numpy(zero_copy_only=False) != 0, False
    if hasattr(array, "storage"):  # HuggingFace's type, where its `datasets` is loaded
        array = array.storage
    kind = str(array.type)
    if _is_picture(array.type) or kind in ("binary", "large_binary"):
        files = array.field("bytes") if _is_picture(array.type) else array
        if files.null_count:
            raise ValueError(f"column {name!r}: expected pictures as bytes in it, got paths only")
        listed_files = listed(files, budget)
        try:
            return decoded_rows(listed_files, budget=budget), any(map(is_lossy, listed_files))
        except ValueError as error:
            raise ValueError(f"column {name!r}, {error}") from error
    shape: list[int] = []
    while "list" in str(array.type).partition("<")[0]:
        if array.null_count:
            raise MissingValue(name)
        lengths = array.value_lengths() if hasattr(array, "value_lengths") else None
        size = array.type.list_size if lengths is None else _common_length(lengths.to_numpy(), name)
        shape.append(size)
        array = array.flatten()
    is_coded = str(array.type).startswith("dictionary<")
    if array.null_count or (is_coded and array.dictionary.null_count):
        raise MissingValue(name)
    rows = array.to_numpy(zero_copy_only=False)
    if rows.dtype.kind not in "biuf":
        raise ValueError(
            f"column {name!r}: expected numbers, lists of numbers or pictures, got {kind}; write "
            f"it as numbers, name another column for it, or leave it out if it may be missing"
        )
    return rows.reshape(length, *shape), False


class MissingValue(ValueError):
    """A row of the named column holds no value, or a list with a gap."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"column {name!r}: expected a value in each row, got rows without one; fill them"
        )
        self.column = name


def has_value(array: Any) -> np.ndarray:
    """For each row of an Arrow array, whether it and all that is in it is there: [T], bool."""
    found = np.asarray(array.is_valid())
    if hasattr(array, "storage"):
        array = array.storage
    if str(array.type).startswith("dictionary<"):
        array = array.dictionary_decode()
        found = np.asarray(array.is_valid())
    if "list" in str(array.type).partition("<")[0]:
        import pyarrow.compute

        rows = np.asarray(pyarrow.compute.list_parent_indices(array))
        found[rows[~has_value(array.flatten())]] = False
    return found


def _common_length(lengths: np.ndarray, name: str) -> int:
    if len(lengths) and (lengths != lengths[0]).any():
        other = lengths[lengths != lengths[0]][0]
        raise ValueError(
            f"column {name!r}: expected rows of one shape, got lists of {lengths[0]} and of "
            f"{other}; pad them"
        )
    return int(lengths[0]) if len(lengths) else 0


_FIXED_BYTES: Final = 16
"""Bytes of the longest number that Parquet holds as bytes."""


class TableWriter:
    """Writes rows into files of about ``file_bytes``, whose row groups are not larger."""

    def __init__(
        self,
        modules: tuple[Any, Any],
        columns: Sequence[FileColumn],
        *,
        level: int,
        file_bytes: int,
        facts: Mapping[str, object],  # for `facts_of`
    ) -> None:
        self._arrow, self._parquet = modules
        self._columns = columns
        self._level = level
        self._group_bytes = min(2 * SLICE_BYTES, file_bytes)
        self._schema = schema_of(self._arrow, columns, facts)
        self._file: BinaryIO | None = None
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes written to the open file, without buffered rows; 0 if no file is open."""
        return self._file.tell() if self._file is not None else 0

    def open(self, path: Path) -> None:
        """Begin a file; one that is open is completed."""
        self.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._writer = self._parquet.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=self._level,
            # Floats seldom repeat, and a dictionary would merge different NaNs.
            use_dictionary=[leaf_of(c) for c in self._columns if np.dtype(c.dtype).kind != "f"],
        )

    def write(self, rows: Mapping[str, np.ndarray], *, together: bool = False) -> None:
        """Write rows [T, ...] by column name, ``together`` as one row group, else collected."""
        total, sizes = len(rows[self._columns[0].name]), [each.row_bytes for each in self._columns]
        if not total:
            return
        step = max(1, SLICE_BYTES // max(1, *sizes))
        arrays = [
            self._arrow.chunked_array(
                _array(self._arrow, column, kind, rows[column.name][start : start + step])
                for start in range(0, total, step)
            )
            for column, kind in zip(self._columns, self._schema.types, strict=True)
        ]
        self._waiting.append(self._arrow.table(arrays, schema=self._schema))
        self._waiting_bytes += sum(sizes) * total
        if together or self._waiting_bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows as a row group."""
        if self._waiting:
            table = self._arrow.concat_tables(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """Complete the open file. Can be called twice."""
        if self._file is None:
            return
        try:
            self.flush()
            self._writer.close()
        except BaseException:
            self.abandon()
            raise
        file, self._file, self._writer = self._file, None, None
        file.close()

    def abandon(self) -> None:
        """Close the open file after an error. Can be called twice."""
        file, writer = self._file, self._writer
        self._waiting, self._file, self._writer = [], None, None
        if file is not None:
            with contextlib.suppress(Exception):  # another error was raised already
                writer.close()  # else it writes when it is garbage collected
            with contextlib.suppress(Exception):
                file.close()


@contextlib.contextmanager
def whole_file(arrow: Any, file: Path) -> Generator[None]:
    """Name the file in errors of Arrow and of the system about its contents."""
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{file}: expected a whole Parquet file, or one of Arrow, got another or a damaged one "
            f"({str(error)[:200]}); fetch it again"
        ) from error


@contextlib.contextmanager
def open_file(modules: tuple[Any, Any], given: GivenFiles, file: Path) -> Generator[Any]:
    """A `pyarrow.parquet.ParquetFile`, whose rows `batches_of` gives; Arrow's errors name it."""
    arrow, parquet = modules
    given.file(file)
    with whole_file(arrow, file), parquet.ParquetFile(file) as opened:
        _check_groups(opened.metadata, given.budget(file))
        yield opened


def batches_of(
    opened: Any, given: GivenFiles, rows: int, columns: list[str] | None = None
) -> Iterator[Any]:
    """Iterate over the rows of a file of `open_file`, in batches; column names have no dots."""
    # A value that a row group stores once may be repeated in each of its rows.
    metadata, largest = opened.metadata, 1
    for number in range(metadata.num_row_groups):
        for chunk in _chunks(metadata.row_group(number)):
            if chunk.physical_type == "BYTE_ARRAY" and _is_coded(chunk):
                largest = max(largest, chunk.total_uncompressed_size)
    most = max(1, given.budget("").left // 4 // largest)
    yield from opened.iter_batches(batch_size=min(rows, most), columns=columns)


def _check_groups(metadata: Any, budget: MemoryBudget) -> None:
    """Raise for a file whose row groups take more memory than an episode may."""
    largest = 0
    leaves = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        pairs = zip(_chunks(group), leaves, strict=True)
        sizes = [_most_bytes(chunk, leaf) for chunk, leaf in pairs]
        if min(sizes, default=0) < 0 or group.num_rows < 0:
            raise ValueError(f"group {number}: expected rows, got fewer than none: it is damaged")
        largest = max(largest, sum(sizes))
    budget.take(largest)
    wide = [leaf for leaf in leaves if leaf.length > _FIXED_BYTES]
    if wide:
        raise ValueError(
            f"column {wide[0].path!r}: expected numbers, or bytes of any length, got rows of "
            f"{wide[0].length:,} bytes; write it again"
        )


def _chunks(group: Any) -> list[Any]:
    """The metadata of the columns of a row group."""
    return [group.column(place) for place in range(group.num_columns)]


def _is_coded(chunk: Any) -> bool:
    """True if a value may take fewer bytes in the file than in memory."""
    return not set(chunk.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"}


def _most_bytes(chunk: Any, leaf: Any) -> int:
    """Bytes that one column of a group of rows may take at once."""
    nbytes: int = chunk.total_uncompressed_size
    if leaf.physical_type == "BYTE_ARRAY":  # those of a row that is a list are read at once
        is_list = leaf.max_repetition_level > 0 and _is_coded(chunk)
        return nbytes * int(chunk.num_values) if is_list else nbytes
    return max(nbytes, 8 * int(chunk.num_values))  # runs of equal numbers take no bytes in the file
