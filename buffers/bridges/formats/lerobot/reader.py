"""Reads LeRobot data sets, Stepwell's own exactly, and others by LeRobot's conventions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from stepwell.buffers.bridges.formats.lerobot.features import FrameTable
from stepwell.buffers.bridges.formats.lerobot.meta import VERSION
from stepwell.buffers.bridges.formats.parquet.columns import listed
from stepwell.buffers.bridges.formats.parquet.files import ColumnReader, batches_of, open_file
from stepwell.buffers.bridges.formats.parquet.foreign import ForeignTables, ParquetImport
from stepwell.buffers.bridges.formats.record import Beside, rebuilt
from stepwell.buffers.curation.step_columns import joined
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles

__all__ = ["ForeignLeRobot", "LeRobotImport", "OwnLeRobot", "checked_info"]

_BATCH_ROWS: Final = 1024
_MOST: Final = 2**31
_OPTIONAL: Final = ("next_observation", "reward", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class LeRobotImport:
    """How to read a data set that LeRobot recorded; Stepwell's own is known.

    Args:
        done: What next.done says where there is no next.terminated: that the task ended, as
            LeRobot's own learners take it, that a clock ended the episode, or nothing.
        reward: The feature that holds rewards; without it they are 0.
    """

    done: Literal["terminated", "truncated", "nothing"] = "terminated"
    reward: str = "next.reward"


def checked_info(given: GivenFiles) -> dict[str, Any]:
    """What ``meta/info.json`` says.

    The files lie where LeRobot puts them: paths that it tells are not followed.

    Raises:
        FileNotFoundError: There is no folder.
        ValueError: It is no data set of LeRobot's version 3.
    """
    path = given.path
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of a LeRobot data set, got none")
    file = path / "meta" / "info.json"
    try:
        info = given.read_json(file)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{file}: expected what LeRobot notes about a data set, got something else ({error})"
        ) from error
    version, features = str(info.get("codebase_version")), info.get("features")
    is_told = isinstance(features, dict) and all(
        isinstance(f, dict) and isinstance(f.get("dtype"), str) for f in features.values()
    )
    fps, total = info.get("fps"), info.get("total_episodes")
    is_rate = isinstance(fps, int | float) and 0 < fps < _MOST
    if not is_told or not is_rate or type(total) is not int or not 0 <= total < _MOST:
        raise ValueError(
            f"{file}: expected codebase_version, fps, total_episodes and features, got "
            f"{str(info)[:200]}; fetch the data set again"
        )
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise ValueError(
            f"{path}: expected a LeRobot data set of version {VERSION}, got {version}; convert it "
            f"with lerobot.datasets.v30.convert_dataset_v21_to_v30, or update Stepwell"
        )
    return info


class OwnLeRobot:
    """Reads a data set that Stepwell wrote.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
        given: The folder.
        beside: What Stepwell kept beside it.
        fps: Env steps a second.
    """

    def __init__(
        self, modules: tuple[Any, Any], given: GivenFiles, beside: Beside, fps: int
    ) -> None:
        self._modules = modules
        self._given = given
        self._path = given.path
        self._beside = beside
        record = beside.record()
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.notes: Sequence[str] = ()
        self.episodes: int | None = record.episodes
        self.steps: int | None = record.steps
        self._table = FrameTable(record.spec, fps)

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        files = sorted((self._path / "data").glob("*/*.parquet"))
        frames = ColumnReader(self._modules, self._given, files, self._table.columns)
        index = 0
        for number in range(self.episodes or 0):
            room = self._given.room(f"{self._path}: episode {number}")
            facts, beside = self._beside.take(number, room)
            rows = frames.take(facts["rows"] - 1, room)
            if (rows["episode_index"] != index).any():
                raise ValueError(
                    f"{self._path / 'data'}: expected {facts['rows'] - 1:,} frames of episode "
                    f"{index}, got some of another: files are missing, or were changed since they "
                    f"were written"
                )
            index += facts["rows"] > 1
            columns, edges = self._table.fields(rows, beside)
            yield rebuilt(self.spec, number, joined(self.spec, columns, edges), facts)

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""


class ForeignLeRobot:
    """Reads a data set that LeRobot recorded.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
        given: The folder.
        info: What `checked_info` found.
        options: How to read it.

    Raises:
        ValueError: All observations are videos.
    """

    def __init__(
        self,
        modules: tuple[Any, Any],
        given: GivenFiles,
        info: Mapping[str, Any],
        options: LeRobotImport,
    ) -> None:
        path = given.path
        features: Mapping[str, Any] = info["features"]
        videos = [name for name, f in features.items() if f["dtype"] == "video"]
        seen = [n for n in features if n.startswith("observation") and n not in videos]
        if not seen:
            raise ValueError(
                f"{path}: expected a feature observation.*, got {', '.join(videos) or 'none'}; "
                f"videos are not read: convert them to images with LeRobot"
            )
        terminated, truncated = "next.terminated", "next.truncated"
        self._told = [f"videos are not read: {', '.join(videos)}"] if videos else []
        if "next.terminated" not in features and "next.done" in features:
            if options.done == "terminated":
                terminated = "next.done"
            elif options.done == "truncated" and "next.truncated" not in features:
                truncated = "next.done"
            self._told.append(
                f"next.done is taken for {options.done}; it does not tell terminated from truncated"
            )
        columns = ParquetImport(
            reward=options.reward,
            next_observation="next.observation",
            terminated=terminated,
            truncated=truncated,
            episode="episode_index",
        )
        self._tables = ForeignTables(modules, given, columns, _OPTIONAL)
        self._tasks = _tasks(modules, given)
        self.spec = self._tables.spec
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.episodes: int | None = int(info["total_episodes"])
        self.steps: int | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What could not be told, a clause each."""
        return (*self._told, *self._tables.notes)

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order of the frames; their metadata has ``tasks``."""
        for episode in self._tables:
            tasks = self._tasks[episode.id] if episode.id < len(self._tasks) else []
            yield dataclasses.replace(episode, metadata={"tasks": tasks})

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""


def _tasks(modules: tuple[Any, Any], given: GivenFiles) -> list[list[str]]:
    """The tasks of each episode, in words; empty where they are not told."""
    found: list[list[str]] = []
    room = given.room(given.path / "meta" / "episodes")
    for file in sorted((given.path / "meta" / "episodes").glob("*/*.parquet")):
        with open_file(modules, given, file) as opened:
            if "tasks" in opened.schema_arrow.names:
                for batch in batches_of(opened, given, _BATCH_ROWS, ["tasks"]):
                    rows = listed(batch.column("tasks"), room)
                    found += [[str(task) for task in row or []] for row in rows]
    return found
