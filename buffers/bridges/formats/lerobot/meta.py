"""The files of a LeRobot data set's folder ``meta``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = [
    "DATA_PATH",
    "EPISODES_PATH",
    "TASKS_PATH",
    "VERSION",
    "EpisodeIndex",
    "FilePlace",
    "info_text",
    "write_tasks",
]

VERSION: Final = "v3.0"
DATA_PATH: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH: Final = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
TASKS_PATH: Final = "meta/tasks.parquet"
_CHUNK: Final = 1000
"""Files of a folder."""
_GROUP: Final = 100_000
"""Numbers that are written together."""


class FilePlace:
    """The n-th file of a data set.

    Args:
        number: n, from 0.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunk, self.file = divmod(number, _CHUNK)

    def path(self, template: str) -> str:
        """Its path."""
        return template.format(chunk_index=self.chunk, file_index=self.file)


class EpisodeIndex:
    """Writes ``meta/episodes``: a row for each episode, with its place and statistics.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
    """

    def __init__(self, modules: tuple[Any, Any]) -> None:
        self._arrow, self._parquet = modules
        self._rows: list[dict[str, Any]] = []
        self._numbers = 0
        self._writer: Any = None
        self._path = Path()

    def open(self, folder: Path) -> None:
        """Settle where the data set is."""
        self._path = folder / FilePlace(0).path(EPISODES_PATH)
        self._path.parent.mkdir(parents=True)

    def add(
        self,
        number: int,
        first: int,
        steps: int,
        task: str,
        place: FilePlace,
        stats: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """Add the next episode.

        Args:
            number: Its number.
            first: Number of its first frame in the data set.
            steps: Its frames.
            task: What was to be done.
            place: The file that it is in.
            stats: Of each feature.
        """
        self._rows.append(
            {
                "episode_index": number,
                "tasks": [task],
                "length": steps,
                "data/chunk_index": place.chunk,
                "data/file_index": place.file,
                "dataset_from_index": first,
                "dataset_to_index": first + steps,
                **{
                    f"stats/{feature}/{name}": values.tolist()
                    for feature, found in stats.items()
                    for name, values in found.items()
                },
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self._numbers += sum(values.size for found in stats.values() for values in found.values())
        if self._numbers >= _GROUP:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self.abandon()

    def abandon(self) -> None:
        """Let the file go as it is. Twice does no harm."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _flush(self) -> None:
        if not self._rows:
            return
        schema = self._writer.schema if self._writer is not None else None
        table = self._arrow.Table.from_pylist(self._rows, schema=schema)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(
                self._path, table.schema, compression="zstd", use_dictionary=False
            )
        self._writer.write_table(table, row_group_size=len(self._rows))
        self._rows, self._numbers = [], 0


def write_tasks(modules: tuple[Any, Any], folder: Path, tasks: list[str]) -> None:
    """Write ``meta/tasks.parquet``: task numbers, with the tasks as pandas' index."""
    arrow, parquet = modules
    described = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": numpy,
            "metadata": None,
        }
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    names = {
        "name": None,
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": {"encoding": "UTF-8"},
    }
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [names],
        "columns": described,
        "pandas_version": "2.0.0",
    }
    schema = arrow.schema(
        [("task_index", arrow.int64()), ("task", arrow.string())],
        metadata={"pandas": json.dumps(pandas)},
    )
    rows = {"task_index": list(range(len(tasks))), "task": tasks}
    parquet.write_table(arrow.table(rows, schema=schema), folder / TASKS_PATH)


def info_text(
    features: dict[str, dict[str, Any]], *, fps: int, file_mb: int, episodes: int, frames: int
) -> str:
    """What ``meta/info.json`` says."""
    info = {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": _CHUNK,
        "data_files_size_in_mb": file_mb,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }
    return json.dumps(info, indent=4)
