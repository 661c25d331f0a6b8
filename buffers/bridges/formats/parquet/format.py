"""Tables of steps as Parquet files: for HuggingFace's `datasets`, pandas, polars, DuckDB, Spark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from stepwell.buffers.bridges.formats.format import Format, Reader, Source, Writer
from stepwell.buffers.bridges.formats.parquet.columns import Images, load_arrow
from stepwell.buffers.bridges.formats.parquet.files import ColumnWriter
from stepwell.buffers.bridges.formats.parquet.foreign import ForeignTables, ParquetImport
from stepwell.buffers.bridges.formats.parquet.reader import OwnTables, has_record, made_record
from stepwell.buffers.bridges.formats.parquet.tables import EPISODE_FILE, EpisodeTable, StepTable
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["ParquetExport", "ParquetFormat", "ParquetImport"]

_INSTALL: Final = "'stepwell[parquet]'"


@dataclass(frozen=True, slots=True)
class ParquetExport:
    """Options for writing Parquet files.

    Args:
        images: How pictures are held, exactly in each case: "png" (what HuggingFace calls Image,
            shown by its viewer), "array" (nested lists of numbers) or "raw" (the array's bytes).
        next_observation: Give each step what it led to as well, in columns next_observation.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        file_mb: Begin a new file of steps when one has about so many megabytes.
        level: Of zstd's compression, 1 to 22.
    """

    images: Images = "png"
    next_observation: bool = False
    stack: bool = False
    file_mb: int = 256
    level: int = 3


class ParquetFormat(Format):
    """``data/train-00000.parquet``, ...: a row for each *step*; ``episodes.parquet``: one each.

    A row of ``data/`` is a transition, as a loop over ``env.step`` has it in hand: ``observation``,
    the ``action`` chosen from it, and the ``reward``, ``terminated`` and ``truncated`` that this
    action brought; ``info/name`` came with the observation, ``extra/name`` with the action;
    ``episode``, ``stream`` (the env), ``step`` and ``is_first`` say where it belongs. An
    episode's *final* observation is no step: it stands in ``episodes.parquet`` as
    ``final/observation``, beside ``steps``, ``return``, how the episode ended, and its metadata.
    """

    name: ClassVar[str] = "parquet"
    about: ClassVar[str] = "tables of steps and episodes for HuggingFace datasets, pandas, DuckDB"
    install: ClassVar[str | None] = _INSTALL
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any]] = ParquetExport
    import_options: ClassVar[type[Any]] = ParquetImport

    def writer(self, source: Source, options: ParquetExport) -> Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: ParquetImport) -> Reader:
        """Open a folder of Stepwell's, or Parquet files of anybody's."""
        modules = load_arrow("reading Parquet files", _INSTALL)
        if not files.path.exists():
            raise FileNotFoundError(f"{files.path}: expected Parquet files there, got nothing")
        if has_record(modules, files):
            return OwnTables(modules, files)
        return ForeignTables(modules, files, options)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load the steps."""
        return (
            "from datasets import load_dataset\n"
            f'steps = load_dataset("parquet", data_files="{path}/data/*.parquet", split="train")'
        )


class _Writer:
    def __init__(self, source: Source, options: ParquetExport) -> None:
        if options.file_mb < 1 or not 1 <= options.level <= 22:
            raise ValueError(
                f"options of format parquet: expected file_mb of 1 or more and level of 1 to 22, "
                f"got {options.file_mb} and {options.level}; give others"
            )
        modules = load_arrow("exporting to Parquet", _INSTALL)
        self._source = source
        self._options = options
        self._steps = StepTable(
            source.spec,
            options.images,
            stack=options.stack,
            next_observation=options.next_observation,
        )
        self._episodes = EpisodeTable(source.spec, options.images)
        self._file_bytes = options.file_mb * 1_000_000
        self._step_writer = ColumnWriter(
            modules, self._steps.columns, level=options.level, file_bytes=self._file_bytes
        )
        self._episode_writer = ColumnWriter(
            modules,
            self._episodes.columns,
            level=options.level,
            file_bytes=self._file_bytes,
            metadata=made_record(source, options.images, stack=options.stack),
        )
        self._folder = Path()
        self._number = self._files = 0
        self.notes: Sequence[str] = tuple(_notes(source, options))

    def begin(self, path: Path) -> None:
        self._folder = path
        (path / "README.md").write_text(_card(self._source), encoding="utf-8")
        self._open_next()
        self._episode_writer.open(path / EPISODE_FILE)

    def write(self, episode: Episode) -> None:
        # Made before anything is written: both may refuse.
        steps = self._steps.rows(episode, self._number)
        summary = self._episodes.rows(episode, self._number)
        if self._step_writer.bytes >= self._file_bytes:
            self._open_next()
        self._step_writer.write(steps)
        self._episode_writer.write(summary)
        self._number += 1

    def finish(self) -> None:
        self._step_writer.close()
        self._episode_writer.close()

    def close(self) -> None:
        self._step_writer.abandon()
        self._episode_writer.abandon()

    def _open_next(self) -> None:
        self._step_writer.open(self._folder / "data" / f"train-{self._files:05d}.parquet")
        self._files += 1


def _notes(source: Source, options: ParquetExport) -> list[str]:
    notes = [
        "a row is a step: reward, terminated and truncated are what its action brought; final "
        "observations stand in episodes.parquet"
    ]
    stacked = [field for field in source.spec.fields if field.stack > 1]
    if stacked and not options.stack:
        notes.append(
            f"{stacked[0].name} is one frame a row, of the env's stack of {stacked[0].stack}; "
            f"option stack=true writes stacks"
        )
    return notes


def _card(source: Source) -> str:
    """The page that HuggingFace shows, and reads the names of the two tables from."""
    fields = "\n".join(
        f"| `{re.sub('[|]', '', f.name)}` | {f.dtype} | {list(f.shape)} |"
        for f in source.spec.fields
    )
    return f"""---
configs:
- config_name: steps
  data_files: data/*.parquet
  default: true
- config_name: episodes
  data_files: {EPISODE_FILE}
tags:
- reinforcement-learning
---

# {source.episodes:,} episodes, {source.steps:,} steps

A row of `data/` is a step: `observation`, the `action` chosen from it, and the `reward`,
`terminated` and `truncated` that this action brought. `info/...` came with the observation.
An episode's final observation is `final/observation` in `{EPISODE_FILE}`, which has a row for each
episode. An episode that is neither terminated nor truncated was cut: only its recording stopped.

| field | dtype | shape |
|---|---|---|
{fields}
"""
