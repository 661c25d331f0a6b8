"""Reads the Parquet tables that Stepwell wrote, exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.bridges.formats.parquet.columns import Images
from stepwell.buffers.bridges.formats.parquet.files import ColumnReader, open_file
from stepwell.buffers.bridges.formats.parquet.tables import EPISODE_FILE, EpisodeTable, StepTable
from stepwell.buffers.bridges.formats.record import Record, rebuilt, record_of
from stepwell.buffers.episode import Episode

__all__ = ["OwnTables", "has_record", "made_record"]

_KEY: Final = "stepwell"


def made_record(source: Source, images: Images, *, stack: bool) -> dict[str, str]:
    """What the schema of ``episodes.parquet`` says for the way back.

    Args:
        source: The store.
        images: How pictures are held.
        stack: Frames are held as stacks.
    """
    return {_KEY: record_of(source), f"{_KEY}.held": json.dumps({"images": images, "stack": stack})}


def has_record(modules: tuple[Any, Any], path: Path) -> bool:
    """Whether Stepwell wrote a folder."""
    return path.is_dir() and _KEY.encode() in _metadata(modules, path / EPISODE_FILE)


class OwnTables:
    """Reads a folder, one episode after the other.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
        path: The folder.
    """

    def __init__(self, modules: tuple[Any, Any], path: Path) -> None:
        self._modules = modules
        self._path = path
        texts = _metadata(modules, path / EPISODE_FILE)
        record = Record.read(texts[_KEY.encode()], path / EPISODE_FILE)
        held = json.loads(texts[f"{_KEY}.held".encode()])
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.notes: Sequence[str] = ()
        self._steps = StepTable(record.spec, held["images"], stack=held["stack"])
        self._episodes = EpisodeTable(record.spec, held["images"])
        with open_file(modules, path / EPISODE_FILE) as opened:
            self.episodes: int | None = opened.metadata.num_rows
        self.steps: int | None = record.steps

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        table, steps = self._episodes, self._steps
        summaries = ColumnReader(self._modules, [self._path / EPISODE_FILE], table.columns)
        data = ColumnReader(self._modules, self._files(), steps.needed)
        for number in range(self.episodes or 0):
            row = summaries.take(1)
            rows = data.take(int(row["steps"][0]))
            if not (rows["episode"] == number).all():
                raise ValueError(
                    f"{self._path / 'data'}: expected {int(row['steps'][0]):,} steps of episode "
                    f"{number}, got some of another: files are missing, or were changed since they "
                    f"were written"
                )
            fields = steps.fields(rows, table.edge(row))
            yield rebuilt(self.spec, number, fields, table.facts(row))

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""

    def _files(self) -> list[Path]:
        return sorted((self._path / "data").glob("*.parquet"))


def _metadata(modules: tuple[Any, Any], file: Path) -> dict[bytes, bytes]:
    """The texts in a file's schema; empty where there is no file."""
    if not file.is_file():
        return {}
    with open_file(modules, file) as opened:
        return dict(opened.schema_arrow.metadata or {})
