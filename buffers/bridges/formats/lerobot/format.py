"""LeRobot's data sets, version 3.0, written and read without LeRobot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from stepwell.buffers.bridges.formats.format import Format, Reader, Source, Writer
from stepwell.buffers.bridges.formats.lerobot.features import FrameTable, Place
from stepwell.buffers.bridges.formats.lerobot.meta import (
    DATA_PATH,
    EpisodeIndex,
    FilePlace,
    info_text,
    write_tasks,
)
from stepwell.buffers.bridges.formats.lerobot.reader import (
    ForeignLeRobot,
    LeRobotImport,
    OwnLeRobot,
    checked_info,
)
from stepwell.buffers.bridges.formats.lerobot.stats import RunningStats, episode_stats
from stepwell.buffers.bridges.formats.parquet.columns import load_arrow
from stepwell.buffers.bridges.formats.parquet.files import ColumnWriter
from stepwell.buffers.bridges.formats.record import Beside
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["LeRobotExport", "LeRobotFormat", "LeRobotImport"]

_INSTALL: Final = "'stepwell[parquet]'"
_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class LeRobotExport:
    """Options for writing a LeRobot data set.

    Args:
        fps: Env steps a second, from which LeRobot's time stamps are made.
        task: What was to be done, in words: LeRobot hands them to policies that read.
        file_mb: Begin a new file of frames when one has about so many megabytes.
    """

    fps: int = 30
    task: str = "play"
    file_mb: int = 100


class LeRobotFormat(Format):
    """``meta/`` and ``data/`` of LeRobot's v3.0: a frame for each env step.

    A frame has the ``observation.*`` that a step began with (``observation.state``,
    ``observation.image`` or ``observation.images.key`` for pictures), the ``action``, and as
    ``next.reward``, ``next.done``, ``next.terminated`` and ``next.truncated`` what it brought.
    Pictures are PNG, bit for bit; videos lose something and are not offered. LeRobot has no place
    for an episode's final observation: it is kept in a folder ``stepwell/`` for the way back.
    """

    name: ClassVar[str] = "lerobot"
    about: ClassVar[str] = "LeRobot's data sets v3.0, with pictures as PNG; needs no LeRobot"
    install: ClassVar[str | None] = _INSTALL
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any]] = LeRobotExport
    import_options: ClassVar[type[Any]] = LeRobotImport

    def writer(self, source: Source, options: LeRobotExport) -> Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: LeRobotImport) -> Reader:
        """Open a folder of Stepwell's, or of LeRobot's own."""
        modules = load_arrow("reading a LeRobot data set", _INSTALL)
        info = checked_info(files)
        beside = Beside.found(files)
        if beside is not None:
            return OwnLeRobot(modules, files, beside, int(info["fps"]))
        return ForeignLeRobot(modules, files, info, options)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it."""
        return (
            "from lerobot.datasets.lerobot_dataset import LeRobotDataset\n"
            f'frames = LeRobotDataset("stepwell/{path.name}", root="{path}")'
        )


class _Writer:
    def __init__(self, source: Source, options: LeRobotExport) -> None:
        if options.fps < 1 or options.file_mb < 1 or not options.task:
            raise ValueError(
                f"options of format lerobot: expected fps and file_mb of 1 or more and a task in "
                f"words, got {options.fps}, {options.file_mb} and {options.task!r}; give others"
            )
        if not source.steps:
            raise ValueError(
                "export to LeRobot: expected at least one env step, got none; collect more"
            )
        self._modules = load_arrow("exporting to LeRobot", _INSTALL)
        self._source = source
        self._options = options
        self._table = FrameTable(source.spec, options.fps)
        self._file_bytes = options.file_mb * 1_000_000
        self._data = ColumnWriter(
            self._modules, self._table.columns, level=_LEVEL, file_bytes=self._file_bytes
        )
        self._index = EpisodeIndex(self._modules)
        self._stats = {column.name: RunningStats() for column in self._table.columns}
        self._beside = Beside(Path())
        self._folder = Path()
        self._place = FilePlace(-1)
        self._number = self._episodes = self._frames = 0
        self._is_rounded = False

    @property
    def notes(self) -> Sequence[str]:
        """What LeRobot's user should know."""
        left_out = self._number - self._episodes
        stacked = [field for field in self._source.spec.fields if field.stack > 1]
        rounded = ["next.reward is float32; float64 rewards that it rounds are kept beside it"]
        return (
            "final observations are kept for the way back alone: LeRobot has no place for them",
            f"time stamps are made up, of {self._options.fps} env steps a second",
            *(
                f"{self._table.names[f.name]} is one frame a row, of the env's stack of {f.stack}; "
                f"LeRobot's delta_timestamps give stacks"
                for f in stacked
            ),
            *(rounded if self._is_rounded else []),
            *([f"{left_out:,} episodes without a step are kept beside it"] if left_out else []),
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        self._beside = Beside(path / Beside.NAME)
        self._beside.begin(self._source)
        (path / "meta").mkdir()
        self._index.open(path)

    def write(self, episode: Episode) -> None:
        beside = self._table.beside(episode)
        self._is_rounded |= "rewards" in beside
        self._beside.put(self._number, episode, beside)
        self._number += 1
        if not episode.steps:
            return
        if self._place.number < 0 or self._data.bytes >= self._file_bytes:
            self._place = FilePlace(self._place.number + 1)
            self._data.open(self._folder / self._place.path(DATA_PATH))
        rows = self._table.rows(episode, Place(self._episodes, self._frames))
        self._data.write(rows, together=True)
        stats = {c.name: episode_stats(c, rows[c.name]) for c in self._table.columns}
        for name, found in stats.items():
            self._stats[name].add(found)
        self._index.add(
            self._episodes, self._frames, episode.steps, self._options.task, self._place, stats
        )
        self._episodes += 1
        self._frames += episode.steps

    def finish(self) -> None:
        self._data.close()
        self._index.close()
        write_tasks(self._modules, self._folder, [self._options.task])
        stats = {name: running.to_json() for name, running in self._stats.items()}
        self._put("stats.json", json.dumps(stats, indent=1))
        self._put(
            "info.json",
            info_text(
                self._table.features(),
                fps=self._options.fps,
                file_mb=self._options.file_mb,
                episodes=self._episodes,
                frames=self._frames,
            ),
        )

    def close(self) -> None:
        self._data.abandon()
        self._index.abandon()

    def _put(self, name: str, text: str) -> None:
        (self._folder / "meta" / name).write_text(text, encoding="utf-8")
