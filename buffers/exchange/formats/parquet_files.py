"""Parquet files of a folder: written one after the other as they get full, and read as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from ...base.untrusted_files import GivenFiles, MemoryBudget
from .file_columns import FileColumn
from .parquet_columns import (
    SLICE_BYTES,
    as_table,
    leaf_of,
    schema_of,
)

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
        facts: Mapping[str, object] | None = None,
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
        table = as_table(self._arrow, self._columns, rows)
        if not table.num_rows:
            return
        self._waiting.append(table)
        self._waiting_bytes += sum(column.row_bytes for column in self._columns) * table.num_rows
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


def open_file(modules: tuple[Any, Any], given: GivenFiles, file: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`, whose rows `batches_of` gives."""
    arrow, parquet = modules
    given.file(file)
    try:
        opened = parquet.ParquetFile(file)
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{file}: expected a Parquet file, got another or a damaged one ({error})"
        ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(opened.close)
        _check_groups(opened.metadata, given.budget(file))
        stack.pop_all()
    return opened


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
