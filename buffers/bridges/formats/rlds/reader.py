"""Reads RLDS data sets, Stepwell's own exactly, and others by RLDS's conventions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.record import Beside, rebuilt
from stepwell.buffers.bridges.formats.rlds.example import Value, decoded
from stepwell.buffers.bridges.formats.rlds.features import Feature, read_features
from stepwell.buffers.bridges.formats.rlds.records import read_records
from stepwell.buffers.bridges.rlds_steps import step_arrays
from stepwell.buffers.curation.step_columns import frames_of, inferred_spec, joined
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles, Room, parse_object
from stepwell.buffers.spec import Spec

__all__ = ["EpisodeFeatures", "ForeignRlds", "OwnRlds", "RldsImport", "dataset_info"]

_NAME: Final = re.compile(r"[\w.-]+")
_STEPS: Final = "steps/"
_ABOUT: Final = "episode_metadata/"
_FLAGS: Final = ("is_first", "is_last", "is_terminal")
_PARTS: Final = ("observation", "action", "reward", "info", "extra")


@dataclass(frozen=True, slots=True)
class RldsImport:
    """How to read somebody else's RLDS data set; Stepwell's own is known.

    Args:
        split: Which split to read.
    """

    split: str = "train"


class EpisodeFeatures:
    """The features of an episode, from its rows and back.

    Args:
        spec: The fields of every row.
        stack: Whole stacks of frames instead of single ones.

    Raises:
        ValueError: TFDS cannot hold a field.
    """

    def __init__(self, spec: Spec, *, stack: bool) -> None:
        self._spec = spec
        self._stack = stack
        self.steps = {
            **{
                f.name: Feature.of(_STEPS + f.name, f, stack=self._is_stack(f.stack))
                for f in spec.fields
            },
            "discount": Feature(f"{_STEPS}discount", "float32"),
            **{name: Feature(_STEPS + name, "bool") for name in _FLAGS},
        }
        """Of each step, by field name."""
        self.about = {
            **{name: Feature(_ABOUT + name, "int64") for name in ("stream", "first_row", "end")},
            **{name: Feature(_ABOUT + name, "bool") for name in ("terminated", "truncated", "cut")},
            "first_reward": Feature(f"{_ABOUT}first_reward", "float64", (), "bytes"),
            "metadata": Feature(f"{_ABOUT}metadata", "object", (), "text"),
        }
        """Of the whole episode."""

    @property
    def all(self) -> list[Feature]:
        """All of them."""
        return [*self.steps.values(), *self.about.values()]

    def values(self, episode: Episode) -> dict[str, Value]:
        """An episode's lists, by feature name.

        Raises:
            ValueError: Stacks are wanted of an episode that lost its first rows.
        """
        arrays = step_arrays(episode, stack=self._stack)
        about = {
            "stream": episode.stream,
            "first_row": episode.first_row,
            "end": int(episode.end),
            "terminated": bool(episode.terminated[-1]),
            "truncated": bool(episode.truncated[-1]),
            "cut": bool(episode.cut[-1]),
            "first_reward": episode.reward[0],
            "metadata": json.dumps(dict(episode.metadata)),
        }
        return {
            **{f.name: f.encoded(arrays[name]) for name, f in self.steps.items()},
            **{f.name: f.encoded(np.array([about[name]])) for name, f in self.about.items()},
        }

    def episode(self, number: int, values: Mapping[str, Value], room: Room) -> Episode:
        """The episode that it was.

        Raises:
            ValueError: The lists were changed since.
        """
        told = {name: f.rows(values.get(f.name), 1, room) for name, f in self.about.items()}
        if any(len(rows) != 1 for rows in told.values()):
            raise ValueError(
                f"episode {number}: expected one value of each of {', '.join(told)}, got others; "
                f"the data set was changed since it was exported"
            )
        about = {name: rows[0] for name, rows in told.items()}
        count = len(values.get(f"{_STEPS}is_last", ()))
        facts = {name: int(about[name]) for name in ("stream", "first_row", "end")}
        columns: dict[str, np.ndarray] = {}
        edges: dict[str, np.ndarray] = {}
        for field in self._spec.fields:
            feature = self.steps[field.name]
            rows = feature.rows(values.get(feature.name), count, room)
            if self._is_stack(field.stack):
                rows = frames_of(rows, field)
            first = field.name.split("/")[0]
            if first in ("action", "extra"):
                edges[field.name], rows = rows[-1:], rows[:-1]
            columns[field.name] = rows
        columns["reward"] = columns["reward"][:-1]
        edges["reward"] = np.array([about["first_reward"]])
        known = {
            **facts,
            "rows": count,
            "metadata": parse_object(str(about["metadata"]), f"episode {number}"),
        }
        return rebuilt(self._spec, number, joined(self._spec, columns, edges), known)

    def _is_stack(self, stack: int) -> bool:
        return self._stack and stack > 1


def dataset_info(given: GivenFiles) -> dict[str, Any]:
    """What ``dataset_info.json`` says, and ``features.json`` under "features".

    Raises:
        FileNotFoundError: There is no folder.
        ValueError: It is no data set of TFDS in TFRecord files.
    """
    path = given.path
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of a TFDS data set, got none")
    try:
        info = given.read_json(path / "dataset_info.json")
        info["features"] = given.read_json(path / "features.json")
        file_format = info.get("fileFormat") or "tfrecord"
        if not _NAME.fullmatch(info["name"]):
            raise ValueError(f"the name {info['name'][:80]!r}")
        for split in info["splits"]:
            _ = str(split["name"]), [int(length) for length in split.get("shardLengths", [])]
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected a TFDS data set with dataset_info.json and features.json, got "
            f"something else ({error}); give the folder that holds them, such as "
            f"name/1.0.0"
        ) from error
    if file_format != "tfrecord":
        raise ValueError(
            f"{path}: expected files of the format tfrecord, got {file_format}; convert it "
            f"with TFDS"
        )
    return info


class OwnRlds:
    """Reads a data set that Stepwell wrote.

    Args:
        given: The folder.
        info: What `dataset_info` found.
        beside: Stepwell's record.
    """

    def __init__(self, given: GivenFiles, info: Mapping[str, Any], beside: Beside) -> None:
        self._given = given
        record = beside.record()
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.notes: Sequence[str] = ()
        self._files, self.episodes = _files(given, info, "train")
        self.steps: int | None = record.steps
        plain = EpisodeFeatures(record.spec, stack=False)
        features, _ = read_features(info["features"])
        is_stack = any(
            f.stack > 1
            and _STEPS + f.name in features
            and features[_STEPS + f.name].shape != f.shape
            for f in record.spec.fields
        )
        self._features = EpisodeFeatures(record.spec, stack=True) if is_stack else plain

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        for number, values, room in _examples(self._given, self._files, self.episodes):
            yield self._features.episode(number, values, room)

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""


class ForeignRlds:
    """Reads a data set that somebody else wrote.

    Args:
        given: The folder.
        info: What `dataset_info` found.
        options: How to read it.

    Raises:
        ValueError: It lacks steps with observations, actions, rewards and flags.
    """

    def __init__(self, given: GivenFiles, info: Mapping[str, Any], options: RldsImport) -> None:
        self._given = given
        self._path = path = given.path
        self._files, self.episodes = _files(given, info, options.split)
        found, unknown = read_features(info["features"])
        self._features = {
            name.removeprefix(_STEPS): feature
            for name, feature in found.items()
            if name.startswith(_STEPS) and name.split("/")[1] in (*_PARTS, *_FLAGS)
        }
        used = {feature.name for feature in self._features.values()}
        self._unread = [*(name for name in found if name not in used), *unknown]
        parts = {name.partition("/")[0] for name in self._features}
        missing = [
            name for name in ("observation", "action", "reward", "is_last") if name not in parts
        ]
        if missing:
            raise ValueError(
                f"{path}: expected steps with observation, action, reward and is_last, got "
                f"{', '.join(sorted(found)) or 'none'}: there is no {missing[0]!r} that is numbers "
                f"or pictures; this is no RLDS data set"
            )
        self._lost = 0
        first = next(iter(_examples(given, self._files, self.episodes)), None)
        if first is None:
            raise ValueError(f"{path}: expected at least one episode, got none")
        self.spec = self._episode(*first).spec
        self._lost = 0
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.steps: int | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What could not be told, a clause each."""
        lossy = [name for name, feature in self._features.items() if feature.is_lossy]
        told = [f"{', '.join(lossy)}: JPEG, which is not what the env gave"] if lossy else []
        unread = [f"not read: {', '.join(self._unread)}"] if self._unread else []
        lost = [
            f"{self._lost:,} episodes have a reward in their last step, which RLDS does not define "
            f"and which was left out"
        ]
        return (
            "streams and metadata are not told: all episodes are of stream 0",
            *told,
            *unread,
            *(lost if self._lost else []),
        )

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order of the files."""
        for number, values, room in _examples(self._given, self._files, self.episodes):
            episode = self._episode(number, values, room)
            if episode.spec != self.spec:
                raise ValueError(
                    f"{self._path}: expected episodes of the same shapes, got another in episode "
                    f"{number}: {self.spec.difference(episode.spec)}"
                )
            yield episode

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""

    def _episode(self, number: int, values: Mapping[str, Value], room: Room) -> Episode:
        count = len(values.get(f"{_STEPS}is_last", ()))
        if not count:
            raise ValueError(f"{self._path}: expected steps in episode {number}, got none")
        rows = {name: f.rows(values.get(f.name), count, room) for name, f in self._features.items()}
        flags = {
            name: rows.pop(name, np.zeros(count, np.bool_)).astype(np.bool_) for name in _FLAGS
        }
        if flags["is_last"][:-1].any() or flags["is_terminal"][:-1].any():
            raise ValueError(
                f"{self._path}: expected is_last and is_terminal in the last step alone, got one "
                f"before it in episode {number}; this is no RLDS data set"
            )
        self._lost += bool(rows["reward"][-1])
        end = End.NONE
        if flags["is_last"][-1]:
            end = End.TERMINATED if flags["is_terminal"][-1] else End.TRUNCATED
        if count == 1:
            end = End.NONE  # no step was taken that could have ended it
        chosen = ("action", "extra", "reward")
        columns = {
            name: part[:-1] if name.split("/")[0] in chosen else part for name, part in rows.items()
        }
        columns["reward"] = columns["reward"].astype(np.float64)
        spec = inferred_spec(columns, f"{self._path}: episode {number}")
        return Episode(spec, number, 0, 0, end, joined(spec, columns, {}), {})


def _files(given: GivenFiles, info: Mapping[str, Any], split: str) -> tuple[list[Path], int]:
    """The files of a split, and its episodes.

    Raises:
        ValueError: There is no such split, or files are missing.
    """
    path = given.path
    splits = {str(each["name"]): each for each in info["splits"]}
    if split not in splits:
        raise ValueError(
            f"{path}: expected a split {split!r}, got {', '.join(splits) or 'none'}; name one in "
            f"the option split"
        )
    lengths = [int(length) for length in splits[split].get("shardLengths", [])]
    prefix = f"{info['name']}-{split}.tfrecord"  # the split is the user's, and may be a pattern
    files = sorted(file for file in path.iterdir() if file.name.startswith(prefix))
    if len(files) != len(lengths) or not files:
        raise ValueError(
            f"{path}: expected {len(lengths)} files named {info['name']}-{split}.tfrecord-*, got "
            f"{len(files)}; fetch the data set again"
        )
    return files, sum(lengths)


def _examples(
    given: GivenFiles, files: Sequence[Path], expected: int | None
) -> Iterator[tuple[int, dict[str, Value], Room]]:
    """Each episode's number and lists, and the memory that is left for what is in them.

    Raises:
        ValueError: There are others than expected.
    """
    number = 0
    for file in files:
        for record in read_records(given.file(file)):
            room = given.room(f"{file}: episode {number}")
            room.take(len(record))
            yield number, decoded(record, room), room
            number += 1
    if number != expected:
        raise ValueError(
            f"{files[0].parent}: expected {expected} episodes, as dataset_info.json says, got "
            f"{number}; fetch the data set again"
        )
