"""Reads Parquet files that somebody else wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.parquet.columns import array_rows, listed
from stepwell.buffers.bridges.formats.parquet.files import batches_of, open_file
from stepwell.buffers.bridges.formats.parquet.steps import LoneSteps, as_flags
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles

__all__ = ["ForeignTables", "ParquetImport"]

_BATCH_ROWS: Final = 1024
_LABEL: Final = 1000
_KEPT: Final = ("info", "extra")
_Rows = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ParquetImport:
    """Which columns of somebody else's tables are what; Stepwell's own are known.

    A row is a step, and rows are in order. A name stands for the column, and for columns that begin
    with it and a dot or a slash: ``observation`` for ``observation.state`` too. Columns
    ``info/name`` and ``extra/name`` are kept as they are.

    Args:
        observation: What the action was chosen from: numbers, lists of them, or pictures.
        action: What was chosen.
        reward: What the action brought.
        next_observation: What it led to; without it, final observations are not known.
        terminated: The MDP ended with this step.
        truncated: The env's clock ended the episode with this step.
        episode: A number or text that changes where an episode begins; without it, episodes begin
            behind terminated and truncated.
    """

    observation: str = "observation"
    action: str = "action"
    reward: str = "reward"
    next_observation: str = "next_observation"
    terminated: str = "terminated"
    truncated: str = "truncated"
    episode: str = "episode"


class ForeignTables:
    """Reads a file or a folder of files, one episode after the other.

    Args:
        modules: ``pyarrow`` and ``pyarrow.parquet``.
        given: A file, or a folder; if it has a folder ``data``, only that is read.
        options: Which columns are what.
        optional: Options whose columns need not be there; what lacks a reward has 0 of it.

    Raises:
        ValueError: There is no file, or a column is missing.
    """

    def __init__(
        self,
        modules: tuple[Any, Any],
        given: GivenFiles,
        options: ParquetImport,
        optional: Sequence[str] = ("next_observation", "truncated", "episode"),
    ) -> None:
        path = given.path
        self._modules = modules
        self._given = given
        self._options = options
        self._optional = optional
        self._files = _files(path)
        if not self._files:
            raise ValueError(f"{path}: expected files named *.parquet, got none")
        self._where = str(path)
        self._steps = LoneSteps(self._where)
        with open_file(modules, given, self._files[0]) as first:
            self._names, unread = self._named(first.schema_arrow.names, self._files[0])
        self._is_lossy = False
        self._told = _told(self._names, unread, options)
        first_rows = next(self._batches(rows=1), None)
        if first_rows is None:
            raise ValueError(f"{path}: expected at least one row, got none")
        self.spec = self._steps.settle(self._fields(first_rows))
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.episodes: int | None = None
        self.steps: int | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What could not be told, a clause each."""
        lossy = ["pictures are JPEG, which is not what the env gave"] if self._is_lossy else []
        return (*self._told, *lossy, *self._steps.notes.texts())

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order of the rows."""
        waiting: list[_Rows] = []
        seen: set[object] = set()
        number = 0
        room = self._given.room(f"{self._where}: episode 0")
        for rows in self._batches(_BATCH_ROWS):
            for part, goes_on in _parted(rows, waiting[-1] if waiting else None):
                if not goes_on:
                    yield self._episode(number, waiting, seen)
                    waiting, number = [], number + 1
                    room = self._given.room(f"{self._where}: episode {number}")
                room.take(sum(array.nbytes for array in part.values()))
                waiting.append(part)
        if waiting:
            yield self._episode(number, waiting, seen)

    def close(self) -> None:
        """Nothing is open between two episodes but what the iterator holds."""

    def _episode(self, number: int, parts: list[_Rows], seen: set[object]) -> Episode:
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        label = rows["episode"][0].item()
        if "episode" in self._names and label in seen:
            raise ValueError(
                f"{self._where}: expected each episode's rows one after the other, got rows of "
                f"episode {label} in two places; sort them by {self._options.episode!r}"
            )
        seen.add(label)
        following = {
            name.removeprefix("next_"): part[-1:]
            for name, part in rows.items()
            if name.startswith("next_observation")
        }
        fields_ = self._fields(rows)
        flags = rows["terminated"], rows["truncated"]
        return self._steps.episode(number, fields_, *flags, following or None)

    def _fields(self, rows: _Rows) -> _Rows:
        """The rows of what becomes a field."""
        first = ("observation", "action", "reward", *_KEPT)
        return {name: part for name, part in rows.items() if name.partition("/")[0] in first}

    def _batches(self, rows: int) -> Iterator[_Rows]:
        """Rows [n, ...] by what they are, a file's and then the next one's."""
        for file in self._files:
            with open_file(self._modules, self._given, file) as opened:
                names, _ = self._named(opened.schema_arrow.names, file)
                if names != self._names:
                    raise ValueError(
                        f"{file}: expected the columns of {self._files[0].name}, got others; "
                        f"import it by itself"
                    )
                try:
                    for batch in batches_of(opened, self._given, rows):
                        if batch.num_rows:
                            yield self._read(batch, str(file))
                except (self._modules[0].ArrowException, OSError) as error:
                    if isinstance(error, ValueError) and not isinstance(
                        error, self._modules[0].ArrowException
                    ):
                        raise
                    raise ValueError(
                        f"{file}: expected a whole Parquet file, got a damaged one ({error})"
                    ) from error

    def _read(self, batch: Any, where: str) -> _Rows:
        found: _Rows = {}
        room = self._given.room(where)
        for name, column in self._names.items():
            array = batch.column(batch.schema.names.index(column))
            if name == "episode":
                found[name] = _labels(listed(array, room), column, where)
            else:
                found[name], is_lossy = array_rows(array, column, room)
                self._is_lossy |= is_lossy
        for name in ("terminated", "truncated"):
            if name in found:
                found[name] = as_flags(found[name], self._names[name], where)
            else:
                found[name] = np.zeros(batch.num_rows, np.bool_)
        if "reward" not in found:
            found["reward"] = np.zeros(batch.num_rows)
        if "episode" not in found:
            ended = found["terminated"] | found["truncated"]
            before = np.concatenate([[False], ended[:-1]])
            # Counted from the batch's beginning: `_parted` knows how the one before it ended.
            found["episode"] = np.cumsum(before)
            found["/ended"] = ended
        return found

    def _named(self, columns: Sequence[str], file: Path) -> tuple[dict[str, str], list[str]]:
        """Column names by what they are, and those that are nothing.

        Raises:
            ValueError: One is missing.
        """
        found: dict[str, str] = {}
        for field in fields(self._options):
            wanted = getattr(self._options, field.name)
            matches = [name for name in columns if _is_of(name, wanted)]
            if not matches and field.name not in self._optional:
                raise ValueError(
                    f"{file}: expected a column {wanted!r}, got {', '.join(columns)}; name yours "
                    f"in the option {field.name}"
                )
            for name in matches:
                rest = name[len(wanted) + 1 :].replace(".", "/")
                if not rest:
                    found[field.name] = name
                elif field.name.endswith(("observation", "action")):
                    found[f"{field.name}/{rest}"] = name
        for name in columns:
            first, _, rest = name.replace(".", "/").partition("/")
            if first in _KEPT and rest:
                found[f"{first}/{rest}"] = name
        used = set(found.values())
        return found, [name for name in columns if name not in used]


def _labels(values: list[object], column: str, where: str) -> np.ndarray:
    """What tells episodes apart, [T].

    Raises:
        ValueError: It is neither numbers nor short texts.
    """
    is_good = all(
        isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LABEL)
        for value in values
    )
    if not is_good:
        raise ValueError(
            f"{where}: expected column {column!r} to hold a number, or a text of at most {_LABEL} "
            f"characters, in each row, got something else; name another column in the option "
            f"episode"
        )
    return np.array(values)


def _parted(rows: _Rows, last: _Rows | None) -> Iterator[tuple[_Rows, bool]]:
    """The rows of each episode, and whether they go on with the one before.

    Args:
        rows: A batch.
        last: The rows before it, of one episode.
    """
    labels = rows["episode"]
    borders = [0, *(np.nonzero(labels[1:] != labels[:-1])[0] + 1).tolist(), len(labels)]
    for start, stop in itertools.pairwise(borders):
        if start or last is None:
            goes_on = not start
        elif "/ended" in rows:
            goes_on = not last["/ended"][-1]
        else:
            goes_on = bool(last["episode"][-1] == labels[0])
        yield {name: part[start:stop] for name, part in rows.items()}, goes_on


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    folder = path / "data" if (path / "data").is_dir() else path
    return sorted(folder.rglob("*.parquet"))


def _is_of(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith((f"{wanted}/", f"{wanted}."))


def _told(names: Mapping[str, str], unread: Sequence[str], options: ParquetImport) -> list[str]:
    notes = ["streams and metadata are not told: all episodes are of stream 0"]
    if "reward" not in names:
        notes.append(f"no column {options.reward!r}: rewards are 0")
    if "terminated" not in names:
        notes.append(f"no column {options.terminated!r}: nothing is terminated")
    if "truncated" not in names:
        notes.append(f"no column {options.truncated!r}: nothing is truncated")
    if "episode" not in names:
        notes.append(
            f"no column {options.episode!r}: episodes begin behind terminated and truncated"
        )
    if unread:
        notes.append(f"not read: columns {', '.join(unread)}")
    return notes
