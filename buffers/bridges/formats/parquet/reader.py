"""Reads the Parquet tables that Stepwell wrote, exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.bridges.formats.parquet.columns import Images
from stepwell.buffers.bridges.formats.parquet.files import ColumnReader, open_file
from stepwell.buffers.bridges.formats.parquet.tables import EPISODE_FILE, EpisodeTable, StepTable
from stepwell.buffers.bridges.formats.record import Record, rebuilt, record_of
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles, parse_object

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


def has_record(modules: tuple[Any, Any], given: GivenFiles) -> bool:
    """Whether Stepwell wrote a folder."""
    return given.path.is_dir() and _KEY.encode() in _metadata(modules, given)


class OwnTables:
    """Reads a folder, one episode after the other.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
        given: The folder.

    Raises:
        ValueError: What Stepwell noted is damaged.
    """

    def __init__(self, modules: tuple[Any, Any], given: GivenFiles) -> None:
        self._modules = modules
        self._given = given
        self._path = path = given.path
        texts = _metadata(modules, given)
        record = Record.read(texts[_KEY.encode()], path / EPISODE_FILE)
        held = parse_object(texts.get(f"{_KEY}.held".encode(), b""), path / EPISODE_FILE)
        if held.get("images") not in get_args(Images) or not isinstance(held.get("stack"), bool):
            raise ValueError(
                f"{path / EPISODE_FILE}: expected to be told how pictures are held, got {held}; "
                f"put it back from a copy"
            )
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.notes: Sequence[str] = ()
        self._steps = StepTable(record.spec, held["images"], stack=held["stack"])
        self._episodes = EpisodeTable(record.spec, held["images"])
        with open_file(modules, given, path / EPISODE_FILE) as opened:
            self.episodes: int | None = opened.metadata.num_rows
        self.steps: int | None = record.steps

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        table, steps = self._episodes, self._steps
        given = self._given
        summaries = ColumnReader(self._modules, given, [self._path / EPISODE_FILE], table.columns)
        data = ColumnReader(self._modules, given, self._files(), steps.needed)
        for number in range(self.episodes or 0):
            room = given.room(f"{self._path}: episode {number}")
            row = summaries.take(1, room)
            if row["steps"][0] < 0:
                raise ValueError(
                    f"{self._path / EPISODE_FILE}: expected steps of 0 or more in episode "
                    f"{number}, got {row['steps'][0]}; put it back from a copy"
                )
            rows = data.take(int(row["steps"][0]), room)
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


def _metadata(modules: tuple[Any, Any], given: GivenFiles) -> dict[bytes, bytes]:
    """The texts in the schema of the episodes' file; empty where there is no file."""
    file = given.path / EPISODE_FILE
    if not file.exists():
        return {}
    with open_file(modules, given, file) as opened:
        return dict(opened.schema_arrow.metadata or {})
