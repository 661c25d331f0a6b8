"""LeRobot's data sets, written in version 3.0 and read from 2.0 on, without LeRobot."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ...base.untrusted_files import GivenFiles, in_order, parse_object
from ...base.untrusted_json import items, mapping, whole
from ...rows.episode import Episode
from ...rows.step_columns import Rounded, split
from ...spec.spec import Field, Spec, kind_of
from .episode_reader import FoundEpisode
from .file_columns import FileColumn, newest_spaces, sessions_of
from .format import Format, Reader, Source, Writer, stack_notes
from .parquet import ParquetImport, ParquetReader
from .parquet_columns import (
    INSTALL,
    TableWriter,
    batches_of,
    column_of,
    listed,
    load_arrow,
    open_file,
)
from .pictures import picture_axes

_LEVEL: Final = 3
Stats = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class LeRobotExport:
    """Options for writing a LeRobot data set.

    Args:
        fps: Env steps a second, from which LeRobot's time stamps are made.
        task: The task in words; LeRobot passes it to language-conditioned policies.
        file_mb: Approximate size at which a new file of frames is begun, in megabytes.
    """

    fps: int = 30
    task: str = "play"
    file_mb: int = 100


@dataclass(frozen=True, slots=True)
class LeRobotImport:
    """Options for reading a LeRobot data set.

    Args:
        done: Meaning of next.done where there is no next.terminated: the task ended, as
            LeRobot's own learners read it; a time limit ended the episode; or no meaning.
        reward: The feature that holds rewards; without it they are 0.
    """

    done: Literal["terminated", "truncated", "nothing"] = "terminated"
    reward: str = "next.reward"


class LeRobotFormat(Format):
    """``meta/`` and ``data/`` of LeRobot's v3.0: a frame for each env step; v2.0, v2.1 are read."""

    # A frame has the `observation.*` that a step began with (`observation.state`,
    # `observation.image` or `observation.images.key` for pictures), the `action`, and as
    # `next.reward`, `next.done`, `next.terminated` and `next.truncated` its result. Pictures are
    # PNG, bit for bit; videos are lossy and not supported. LeRobot has no place for an episode's
    # final observation.

    name = "lerobot"
    about = "LeRobot's data sets v3.0, with pictures as PNG; needs no LeRobot"
    install = INSTALL
    export_options = LeRobotExport
    import_options = LeRobotImport

    def writer(self, source: Source, options: LeRobotExport) -> Writer:
        """A writer of one folder."""
        return _LeRobotWriter(source, options)

    def reader(self, files: GivenFiles, options: LeRobotImport) -> Reader:
        """Open a data set."""
        modules = load_arrow("reading a LeRobot data set")
        info = checked_info(files)
        return _LeRobotReader(modules, files, info, options)

    def loading(self, path: Path, out: str) -> str:
        """Lines of Python that load it."""
        return (
            "from lerobot.datasets.lerobot_dataset import LeRobotDataset\n"
            f'frames = LeRobotDataset("stepwell/{path.name}", root="{path}")'
        )


class _LeRobotWriter:
    def __init__(self, source: Source, options: LeRobotExport) -> None:
        if options.fps < 1 or options.file_mb < 1 or not options.task:
            raise ValueError(
                f"options of format lerobot: expected fps and file_mb of 1 or more and a task in "
                f"words, got {options.fps}, {options.file_mb} and {options.task!r}; give others"
            )
        source.check_transitions("LeRobot")
        self._modules = load_arrow("exporting to LeRobot")
        self._source = source
        self._options = options
        self._names = _feature_names(source.spec)
        self._columns = [
            *(_column_of(field, self._names[field.name]) for field in source.spec.fields),
            *(FileColumn(name, "bool") for name in _FLAGS),
            FileColumn("timestamp", "float32"),
            *(FileColumn(name, "int64") for name in _COUNTS),
        ]
        self._file_bytes = options.file_mb * 1_000_000
        # The features have other names and shapes than the fields: an import reads these again. The
        # reward is next.reward in all data sets.
        fields = {
            self._names[f.name]: {"field": f.name, "shape": list(f.shape)}
            for f in source.spec.fields
            if f.name != "reward"
        }
        self._data = TableWriter(
            self._modules,
            self._columns,
            level=_LEVEL,
            file_bytes=self._file_bytes,
            facts={"fields": fields, **newest_spaces(source.sessions)},
        )
        self._index = EpisodeIndex(self._modules)
        self._stats: dict[str, Stats] = {}  # of all episodes so far
        self._folder = Path()
        self._file = -1
        self._stepless = self._episodes = self._frames = 0
        self._rounded = {
            c.name: Rounded(c.name, "float32") for c in self._columns if c.dtype == "float64"
        }
        self._rewards = Rounded(_REWARD, "float32")

    @property
    def notes(self) -> Sequence[str]:
        stepless = [f"{self._stepless:,} episodes without a step are left out"]
        return (
            "final observations are left out: LeRobot has no place for them",
            f"time stamps are made up, of {self._options.fps} env steps a second",
            *stack_notes(self._source.spec, "LeRobot's delta_timestamps give them", self._names),
            *self._rewards.notes,
            *(
                f"{note}, by LeRobot as it reads the float64"
                for rounded in self._rounded.values()
                for note in rounded.notes
            ),
            *(stepless if self._stepless else []),
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        self._index.path = path / EPISODES_PATH
        self._index.path.parent.mkdir(parents=True)

    def write(self, episode: Episode) -> None:
        if not episode.steps:
            self._stepless += 1
            return
        if self._file < 0 or self._data.bytes >= self._file_bytes:
            self._file += 1
            chunk, file = divmod(self._file, _CHUNK)
            place = DATA_PATH.format(chunk_index=chunk, file_index=file)
            self._data.open(self._folder / place)
        rows = self._rows(episode)
        for name, rounded in self._rounded.items():
            rounded.cast(rows[name])
        self._data.write(rows, together=True)
        stats = {c.name: episode_stats(c, rows[c.name]) for c in self._columns}
        for name, found in stats.items():
            before = self._stats.get(name)
            self._stats[name] = found if before is None else combined_stats(before, found)
        first, steps = self._frames, episode.steps
        row = {
            "episode_index": self._episodes,
            "tasks": [self._options.task],
            "length": steps,
            "data/chunk_index": self._file // _CHUNK,
            "data/file_index": self._file % _CHUNK,
            "dataset_from_index": first,
            "dataset_to_index": first + steps,
        }
        self._index.add(row, stats)
        self._episodes += 1
        self._frames += steps

    def finish(self) -> None:
        self._data.close()
        self._index.close()
        write_task(self._modules, self._folder, self._options.task)
        stats = {
            feature: {name: values.tolist() for name, values in found.items()}
            for feature, found in self._stats.items()
        }
        info = {
            "codebase_version": VERSION,
            "robot_type": None,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": 1,
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": self._options.file_mb,
            "video_files_size_in_mb": 200,
            "fps": self._options.fps,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": DATA_PATH,
            "video_path": None,
            "features": {column.name: _feature(column) for column in self._columns},
        }
        for name, value, indent in (("stats.json", stats, 1), ("info.json", info, 4)):
            text = json.dumps(value, indent=indent)
            (self._folder / "meta" / name).write_text(text, encoding="utf-8")

    def close(self) -> None:
        self._data.abandon()
        self._index.abandon()

    def _rows(self, episode: Episode) -> dict[str, np.ndarray]:
        """The rows of an episode's frames, [T, ...] by feature name."""
        steps = episode.steps
        frame = np.arange(steps, dtype=np.int64)
        columns = {name: rows[:steps] for name, rows in split(episode).items()}
        columns["reward"] = self._rewards.cast(columns["reward"])
        terminated, truncated = episode.terminated[1:], episode.truncated[1:]
        return {
            **{
                self._names[name]: rows.reshape(steps) if rows.shape[1:] == (1,) else rows
                for name, rows in columns.items()
            },
            "next.done": terminated | truncated,
            "next.terminated": terminated,
            "next.truncated": truncated,
            "timestamp": (frame / self._options.fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(steps, self._episodes, np.int64),
            "index": frame + self._frames,
            "task_index": np.zeros(steps, np.int64),
        }


_REWARD: Final = "next.reward"
_FLAGS: Final = ("next.done", "next.terminated", "next.truncated")
_COUNTS: Final = ("frame_index", "episode_index", "index", "task_index")


def _feature_names(spec: Spec) -> dict[str, str]:
    """Feature names by field name."""
    names = {field.name: _name(field) for field in spec.fields}
    twice = {name: field for field, name in names.items()}
    for field, name in names.items():
        if twice[name] != field or "/" in name:
            raise ValueError(
                f"fields {field!r} and {twice[name]!r}: expected two names in LeRobot, got "
                f"{name!r} for both; rename a key of the space"
            )
    return names


def _column_of(field: Field, name: str) -> FileColumn:
    if field.name == "reward":
        return FileColumn(name, "float32")
    if 0 in field.shape:
        raise ValueError(
            f"field {field.name!r}: expected at least one number a row, got shape "
            f"{field.shape}, which LeRobot cannot hold; leave it out of the env's space"
        )
    column = column_of(name, field, "png")
    return FileColumn(name, field.dtype) if field.shape == (1,) else column


def _name(field: Field) -> str:
    """The feature's name: LeRobot's own where it has one, else the field's with dots."""
    if field.name == "reward":
        return _REWARD
    if field.kind != "observation":
        return field.name.replace("/", ".")
    key = field.key.replace("/", ".")
    if picture_axes(field) is not None:
        return f"observation.images.{key}" if key else "observation.image"
    return f"observation.{key or 'state'}"


def _feature(column: FileColumn) -> dict[str, Any]:
    if column.encoding != "png":
        return {"dtype": column.dtype, "shape": list(column.shape or (1,)), "names": None}
    shape = column.shape
    if column.axes == "chw":
        shape = (*shape[1:], shape[0])
    return {
        "dtype": "image",
        "shape": [*shape, 1] if len(shape) == 2 else list(shape),
        "names": ["height", "width", "channels"],
    }


VERSION: Final = "v3.0"
DATA_PATH: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH: Final = "meta/episodes/chunk-000/file-000.parquet"
TASKS_PATH: Final = "meta/tasks.parquet"
_CHUNK: Final = 1000
"""Files of a folder."""
_GROUP: Final = 100_000
"""Numbers that are written together."""


class EpisodeIndex:
    """Writes ``meta/episodes``: a row for each episode, with its place and statistics."""

    def __init__(self, modules: tuple[Any, Any]) -> None:
        self._arrow, self._parquet = modules
        self.path = Path()
        """The file, which is made with the first rows."""
        self._rows: list[dict[str, Any]] = []
        self._numbers = 0
        self._writer: Any = None

    def add(self, row: dict[str, Any], stats: Mapping[str, Stats]) -> None:
        """Add the row of the next episode, with its statistics."""
        columns = {
            f"stats/{feature}/{name}": values
            for feature, found in stats.items()
            for name, values in found.items()
        }
        place = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._rows.append({**row, **{n: v.tolist() for n, v in columns.items()}, **place})
        # A wide feature has thousands of statistics an episode, so numbers are counted, not rows.
        self._numbers += sum(values.size for values in columns.values())
        if self._numbers >= _GROUP:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows."""
        self._flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is. Can be called twice."""
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
                self.path, table.schema, compression="zstd", use_dictionary=False
            )
        self._writer.write_table(table, row_group_size=len(self._rows))
        self._rows, self._numbers = [], 0


def write_task(modules: tuple[Any, Any], folder: Path, task: str) -> None:
    """Write ``meta/tasks.parquet``: task numbers, with the tasks as pandas' index."""
    # LeRobot reads the file by pandas and looks tasks up by their words: what pandas itself would
    # write says that the column of words is the index.
    arrow, parquet = modules

    def described(name: str | None, kind: str, dtype: str, more: object = None) -> dict[str, Any]:
        names = {"name": name, "field_name": name}
        return {**names, "pandas_type": kind, "numpy_type": dtype, "metadata": more}

    pandas = {
        "index_columns": ["task"],
        "column_indexes": [described(None, "unicode", "object", {"encoding": "UTF-8"})],
        "columns": [
            described("task_index", "int64", "int64"),
            described("task", "unicode", "object"),
        ],
        "pandas_version": "2.0.0",
    }
    schema = arrow.schema(
        [("task_index", arrow.int64()), ("task", arrow.string())],
        metadata={"pandas": json.dumps(pandas)},
    )
    table = arrow.table({"task_index": [0], "task": [task]}, schema=schema)
    parquet.write_table(table, folder / TASKS_PATH)


_QUANTILES: Final = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_PICTURES: Final = 100
"""Number of pictures of an episode in its statistics, evenly spaced."""
_NUMBERS: Final = 10_000_000
"""Numbers of an episode in its statistics; if more, evenly spaced rows except for extremes."""


def episode_stats(column: FileColumn, rows: np.ndarray) -> Stats:
    """Statistics over rows [T, ...] of one episode: of each number of a row, or each channel."""
    # `min`, `max`, `mean`, `std` and quantiles, float64: of the shape of a row ((1,) for a single
    # number), or (C, 1, 1) for pictures, with values scaled to 0 to 1. `count` (1,) int64.
    if column.encoding == "png":
        return _picture_stats(column, rows)
    values = rows.reshape(len(rows), *(column.shape or (1,)))
    chosen = _evenly_spaced(len(rows), max(1, _NUMBERS // max(1, values[0].size)))
    with np.errstate(all="ignore"):
        edges = {"min": values.min(0), "max": values.max(0)}
        exact = {name: edge.astype(np.float64) for name, edge in edges.items()}
    return {**_stats(values[chosen].astype(np.float64), len(rows)), **exact}


def _picture_stats(column: FileColumn, rows: np.ndarray) -> Stats:
    pictures = rows[_evenly_spaced(len(rows), _PICTURES)]
    if column.axes == "hw":
        pictures = pictures[..., None]
    elif column.axes == "chw":
        pictures = np.moveaxis(pictures, 1, -1)
    pixels = pictures.reshape(-1, pictures.shape[-1]).astype(np.float64) / 255
    stats = _stats(pixels, len(pictures))
    return {n: v if n == "count" else v.reshape(-1, 1, 1) for n, v in stats.items()}


def _evenly_spaced(count: int, at_most: int) -> np.ndarray:
    """Evenly spaced indices of at most ``at_most`` of ``count`` rows."""
    return np.round(np.linspace(0, count - 1, min(count, at_most))).astype(np.int64)


def _stats(values: np.ndarray, count: int) -> Stats:
    with np.errstate(all="ignore"):  # the env may return NaN and infinities
        quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
        return {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            "count": np.array([count], np.int64),
            **dict(zip(_QUANTILES, quantiles, strict=True)),
        }


@np.errstate(all="ignore")
def combined_stats(old: Stats, new: Stats) -> Stats:
    """Statistics of two sets of rows together, by Chan, Golub and LeVeque's method."""
    # Quantiles of all rows cannot be computed from those of episodes: the lowest of the lower ones
    # and the highest of the upper ones are kept, as LeRobot does.
    counts = float(old["count"][0]), float(new["count"][0])
    total = sum(counts)
    share = counts[1] / total
    change = new["mean"] - old["mean"]
    variance = (
        old["std"] ** 2 * (1 - share) + new["std"] ** 2 * share + change**2 * share * (1 - share)
    )
    lower = {
        name: (np.minimum if part <= 0.5 else np.maximum)(old[name], new[name])
        for name, part in _QUANTILES.items()
    }
    return {
        "min": np.minimum(old["min"], new["min"]),
        "max": np.maximum(old["max"], new["max"]),
        "mean": old["mean"] + change * share,
        "std": np.sqrt(variance),
        "count": old["count"] + new["count"],
        **lower,
    }


_BATCH_ROWS: Final = 1024
_MOST: Final = 2**31
_FACT_CHARS: Final = 1 << 16
_OPTIONAL: Final = ("next_observation", "reward", "terminated", "truncated")
_PATHS: Final = {
    "v2": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3": DATA_PATH,
}
"""Where the files of a version are if ``meta/info.json`` does not say."""
_PLACES: Final = ("episode_chunk", "episode_index", "chunk_index", "file_index")
_LONE: Final = ("observation.state", "observation.image")
"""LeRobot's names of an observation that is not a Dict."""


def checked_info(given: GivenFiles) -> dict[str, Any]:
    """Read and check ``meta/info.json``."""
    path = given.path
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of a LeRobot data set, got none")
    file = path / "meta" / "info.json"
    try:
        info = given.read_json(file)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{file}: expected the metadata of a LeRobot data set, got something else ({error})"
        ) from error
    version, features = str(info.get("codebase_version")), info.get("features")
    is_described = isinstance(features, dict) and all(
        isinstance(f, dict) and isinstance(f.get("dtype"), str) for f in features.values()
    )
    fps = info.get("fps")
    is_rate = isinstance(fps, int | float) and 0 < fps < _MOST
    if not is_described or not is_rate:
        raise ValueError(
            f"{file}: expected codebase_version, fps, total_episodes and features, got "
            f"{str(info)[:200]}; fetch the data set again"
        )
    whole(info.get("total_episodes"), f"{file}: total_episodes", 0, _MOST)
    if version.partition(".")[0] not in _PATHS:
        raise ValueError(
            f"{path}: expected a LeRobot data set of version v2.0, v2.1 or {VERSION}, got "
            f"{version[:60]}; earlier ones are not read, and later ones by a newer Stepwell, if any"
        )
    return info


def data_files(given: GivenFiles, info: Mapping[str, Any]) -> list[Path]:
    """The files of frames, in order: those below the folder whose paths fit the template."""
    # The template is compared with the names that are there; it is not filled in, nor followed.
    file = given.path / "meta" / "info.json"
    template = info.get("data_path") or _PATHS[info["codebase_version"].partition(".")[0]]
    pattern, seen = "", set[str]()
    try:
        for text, name, form, conversion in string.Formatter().parse(template):
            pattern += re.escape(text)
            if name is not None:
                is_plain = not conversion and re.fullmatch("0?[0-9]?d?", form or "")
                if name not in _PLACES or name in seen or not is_plain:
                    raise ValueError(f"{{{name}}} of the form {form!r}")
                seen.add(name)
                pattern += "[0-9]+"
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file}: expected a data_path of names and {', '.join(_PLACES)}, each once, got "
            f"{str(template)[:200]!r} ({str(error)[:100]}); fetch the data set again"
        ) from error
    found = re.compile(pattern)
    files = in_order(
        each
        for each in given.path.rglob("*.parquet")
        if found.fullmatch(each.relative_to(given.path).as_posix())
    )
    if not files:
        raise ValueError(
            f"{given.path}: expected files named {str(template)[:200]}, as meta/info.json says, "
            f"got none; fetch the data set again"
        )
    return files


class _LeRobotReader(ParquetReader):
    """Reads a data set that LeRobot recorded, described by what `checked_info` returned."""

    def __init__(
        self,
        modules: tuple[Any, Any],
        given: GivenFiles,
        info: Mapping[str, Any],
        options: LeRobotImport,
    ) -> None:
        path = given.path
        self._info = info
        self._features: Mapping[str, Any] = info["features"]
        self._shapes: dict[str, tuple[int, ...]] = {}
        videos = [name for name, f in self._features.items() if f["dtype"] == "video"]
        seen = [n for n in self._features if n.startswith("observation") and n not in videos]
        if not seen:
            raise ValueError(
                f"{path}: expected a feature observation.*, got {', '.join(videos) or 'none'}; "
                f"videos are not read: convert them to images with LeRobot"
            )
        terminated, truncated = "next.terminated", "next.truncated"
        notes = [f"videos are not read: {', '.join(videos)}"] if videos else []
        if "next.terminated" not in self._features and "next.done" in self._features:
            if options.done == "terminated":
                terminated = "next.done"
            elif options.done == "truncated" and "next.truncated" not in self._features:
                truncated = "next.done"
            notes.append(
                f"next.done is read as {options.done}: it covers both terminated and truncated"
            )
        columns = ParquetImport(
            reward=options.reward,
            next_observation="next.observation",
            terminated=terminated,
            truncated=truncated,
            episode="episode_index",
        )
        # The default may be missing, then rewards are 0; a feature that the user names must be
        # there.
        is_named = options.reward != LeRobotImport().reward
        optional = [name for name in _OPTIONAL if not is_named or name != "reward"]
        super().__init__(modules, given, columns, optional, data_files(given, info), notes)
        self._index = _index_of(modules, given)
        self.sessions = sessions_of("lerobot", {**self._known, **self._about()})
        self.episodes = int(info["total_episodes"])

    def _found(self) -> Iterator[FoundEpisode]:
        count = 0
        for found in super()._found():
            yield found
            count += 1
        if count != self.episodes:
            self._notes.add(
                f"meta/info.json tells of {self.episodes:,} episodes: {count:,} are here"
            )

    def _about(self) -> Mapping[str, object]:
        """The facts about the robot, if they are short."""
        names = {n: f["names"] for n, f in self._features.items() if f.get("names") is not None}
        facts = {
            "version": self._info["codebase_version"],
            "fps": self._info["fps"],
            "robot_type": self._info.get("robot_type"),
            "names": names,
        }
        try:
            is_small = len(json.dumps(facts, allow_nan=False)) <= _FACT_CHARS
        except ValueError:
            is_small = False
        return {"lerobot": facts} if is_small else {}

    def _metadata(self, label: object, steps: int) -> dict[str, object]:
        tasks, length = self._index.get(label, ([], None))
        if length not in (None, steps):
            raise ValueError(
                f"{self._where}: expected {length} frames of episode {label}, as meta/ says, got "
                f"{steps}; fetch the data set again"
            )
        return {"tasks": list(tasks)}

    def _counter(self, columns: set[str]) -> str | None:
        """LeRobot's own."""
        return "frame_index" if "frame_index" in columns else None

    def _rename(self, found: dict[str, str]) -> None:
        """Restore the names of an export; a lone state or picture is no Dict."""
        roles, own = list(found.items()), self._own_fields()
        self._shapes = {column: shape for column, (_, shape) in own.items()}
        found.clear()
        for role, column in roles:
            is_lone = column in _LONE and not any(
                name.startswith("observation") and name != column for name in self._features
            )
            name = "observation" if is_lone and not own else own.get(column, (role, ()))[0]
            if name in found or kind_of(name) != kind_of(role):
                raise ValueError(
                    f"{self._where}: expected each feature to be a field of its own, got "
                    f"{column!r} as {name!r}; the data set was changed since it was exported"
                )
            found[name] = column

    def _own_fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The field and its shape of each feature, as an export of Stepwell names them."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        where = f"{self._where}: 'stepwell' in the schema of its files: fields"
        for feature, each in mapping(self._facts.get("fields", {}), where).items():
            facts = mapping(each, where)
            shape = items(facts.get("shape"), where)
            sizes = tuple(whole(size, where, 0, _MOST) for size in shape)
            found[feature] = str(facts.get("field")), sizes
        return found

    def _shaped(self, column: str, rows: np.ndarray) -> np.ndarray:
        """Rows of the declared shape: LeRobot keeps a feature of shape [1] as a number."""
        feature = self._features.get(column, {})
        shape = self._shapes.get(column, feature.get("shape"))
        if feature.get("dtype") == "image" or not isinstance(shape, list | tuple):
            return rows
        is_right = all(isinstance(size, int) and 0 <= size < _MOST for size in shape)
        if is_right and math.prod(shape) == math.prod(rows.shape[1:]):
            return rows.reshape(len(rows), *shape)
        self._notes.add(
            f"{column} is {str(shape)[:60]} in meta/info.json and {list(rows.shape[1:])} in the "
            f"files, which count"
        )
        return rows


def _index_of(
    modules: tuple[Any, Any], given: GivenFiles
) -> dict[object, tuple[list[str], int | None]]:
    """The tasks of each episode in words, and its length, as far as ``meta/`` has them."""
    found: dict[object, tuple[list[str], int | None]] = {}

    def add(row: Mapping[str, Any]) -> None:
        tasks, length = row.get("tasks"), row.get("length")
        number = row.get("episode_index")
        if isinstance(number, int):
            words = [str(task) for task in tasks] if isinstance(tasks, list) else []
            found[number] = words, length if isinstance(length, int) else None

    # Version 2 has a line for each episode, version 3 Parquet files.
    lines = given.path / "meta" / "episodes.jsonl"
    if lines.exists():
        for number, line in enumerate(given.read_bytes(lines).splitlines(), 1):
            if line.strip():
                add(parse_object(line, f"{lines}: line {number}"))
        return found
    budget = given.budget(given.path / "meta" / "episodes")
    for file in in_order((given.path / "meta" / "episodes").glob("*/*.parquet")):
        with open_file(modules, given, file) as opened:
            names = [
                name
                for name in ("episode_index", "tasks", "length")
                if name in opened.schema_arrow.names
            ]
            for batch in batches_of(opened, given, _BATCH_ROWS, names):
                columns = [listed(batch.column(name), budget) for name in names]
                for values in zip(*columns, strict=True):
                    add(dict(zip(names, values, strict=True)))
    return found
