"""Tables of steps as Parquet files: for HuggingFace's `datasets`, pandas, polars, DuckDB, Spark."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from ...base.untrusted_files import GivenFiles, in_order, is_next
from ...rows.episode import End, Episode
from ...rows.step_columns import are_equal, has_final_row, inferred_spec, split
from ...spec.spec import kind_of
from .episode_reader import NO_METADATA, EpisodeReader, FoundEpisode, end_of
from .file_columns import (
    FileColumn,
    as_flags,
    as_rewards,
    check_classes,
    declared_spaces,
    newest_spaces,
    sessions_of,
)
from .format import STACK_OPTION, Format, Reader, Source, Writer, episode_facts, stack_notes
from .parquet_columns import (
    INSTALL,
    Images,
    MissingValue,
    TableWriter,
    array_rows,
    batches_of,
    classes_of,
    column_of,
    extensions_of,
    facts_of,
    has_value,
    leaf_array,
    leaves_of,
    listed,
    load_arrow,
    open_file,
)


@dataclass(frozen=True, slots=True)
class ParquetExport:
    """Options for writing Parquet files.

    Args:
        images: Encoding of pictures, lossless in each case: "png" (what HuggingFace calls Image,
            shown by its viewer), "array" (nested lists of numbers) or "raw" (the array's bytes).
        next_observation: Give each step what it led to as well, in columns next_observation.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        file_mb: Approximate size at which a new file of steps is begun, in megabytes.
        level: Compression level of zstd, 1 to 22.
    """

    images: Images = "png"
    next_observation: bool = False
    stack: bool = False
    file_mb: int = 256
    level: int = 3


@dataclass(frozen=True, slots=True)
class ParquetImport:
    """Names of the columns; the defaults fit what Stepwell exports.

    A row is a step, and rows are in order. A name means the column, and columns that begin
    with it and a dot or a slash: ``observation`` for ``observation.state`` too. Columns
    ``info/name`` and ``extra/name`` are kept as they are.

    Args:
        observation: Observation before the action: numbers, lists of them, or pictures.
        action: The action.
        reward: Reward of the action.
        next_observation: Observation after the action; without it, final ones are unknown.
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


class ParquetFormat(Format):
    """``data/train-00000.parquet``, ...: a row for each *step*; ``episodes.parquet``: one each."""

    # A row of `data/` is a transition, as a loop over `env.step` has it in hand: `observation`, the
    # `action` chosen from it, and the `reward`, `terminated` and `truncated` that it led to;
    # `info/name` came with the observation, `extra/name` with the action; `episode`, `stream` (the
    # env), `step` and `is_first` locate it. An episode's *final* observation is not a step: it is
    # in `episodes.parquet` as `final/observation`, with `steps`, `return`, how the episode ended,
    # and its metadata.

    name = "parquet"
    about = "tables of steps and episodes for HuggingFace datasets, pandas, DuckDB"
    install = INSTALL
    export_options = ParquetExport
    import_options = ParquetImport

    def writer(self, source: Source, options: ParquetExport) -> Writer:
        """A writer of one folder."""
        return _ParquetWriter(source, options)

    def reader(self, files: GivenFiles, options: ParquetImport) -> Reader:
        """Open a data set."""
        modules = load_arrow("reading Parquet files")
        if not files.path.exists():
            raise FileNotFoundError(f"{files.path}: expected Parquet files there, got none")
        plain = ParquetImport()
        optional = [n for n in _OPTIONAL if getattr(options, n) == getattr(plain, n)]
        return ParquetReader(modules, files, options, [*optional, "episode"])

    def loading(self, path: Path, out: str) -> str:
        """The lines that load the steps."""
        return (
            "from datasets import load_dataset\n"
            f'steps = load_dataset("parquet", data_files="{path}/data/*.parquet", split="train")'
        )


EPISODE_FILE: Final = "episodes.parquet"
_FINAL: Final = "final/"
_NEXT: Final = "next_"


class _ParquetWriter:
    def __init__(self, source: Source, options: ParquetExport) -> None:
        if options.file_mb < 1 or not 1 <= options.level <= 22:
            raise ValueError(
                f"options of format parquet: expected file_mb of 1 or more and level of 1 to 22, "
                f"got {options.file_mb} and {options.level}; give others"
            )
        source.check_transitions("Parquet")
        modules = load_arrow("exporting to Parquet")
        self._source = source
        self._options = options
        self._next = source.spec.of_kind("observation") if options.next_observation else ()
        self._finals = [field for field in source.spec.fields if field.name != "reward"]
        self._file_bytes = options.file_mb * 1_000_000
        self._steps, self._episodes = (
            TableWriter(
                modules,
                columns,
                level=options.level,
                file_bytes=self._file_bytes,
                facts=newest_spaces(source.sessions),
            )
            for columns in (self._step_columns(), self._episode_columns())
        )
        self._folder = Path()
        self._number = self._files = 0
        self.notes: Sequence[str] = (
            "a row is a step: reward, terminated and truncated are the result of its action; final "
            "observations are in episodes.parquet",
            *([] if options.stack else stack_notes(source.spec, STACK_OPTION)),
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        (path / "README.md").write_text(_dataset_card(self._source), encoding="utf-8")
        self._open_next()
        self._episodes.open(path / EPISODE_FILE)

    def write(self, episode: Episode) -> None:
        # Made before any file is written, as both may raise.
        steps, summary = self._step_rows(episode), self._episode_row(episode)
        if self._steps.bytes >= self._file_bytes:
            self._open_next()
        self._steps.write(steps)
        self._episodes.write(summary)
        self._number += 1

    def finish(self) -> None:
        self._steps.close()
        self._episodes.close()

    def close(self) -> None:
        self._steps.abandon()
        self._episodes.abandon()

    def _open_next(self) -> None:
        self._steps.open(self._folder / "data" / f"train-{self._files:05d}.parquet")
        self._files += 1

    def _step_columns(self) -> list[FileColumn]:
        images, stack = self._options.images, self._options.stack
        fields = self._source.spec.fields
        return [
            *(FileColumn(name, "int64") for name in ("episode", "stream", "step")),
            *(column_of(f.name, f, images, stack=stack) for f in fields),
            *(FileColumn(name, "bool") for name in ("is_first", "terminated", "truncated")),
            *(column_of(_NEXT + f.name, f, images, stack=stack) for f in self._next),
        ]

    def _step_rows(self, episode: Episode) -> dict[str, np.ndarray]:
        """The rows of an episode's steps, [T, ...] by column name."""
        steps, first_row = episode.steps, episode.first_row
        columns = split(episode, stack=self._options.stack)
        return {
            "episode": np.full(steps, self._number, np.int64),
            "stream": np.full(steps, episode.stream, np.int64),
            "step": np.arange(first_row, first_row + steps, dtype=np.int64),
            **{name: rows[:steps] for name, rows in columns.items()},
            "is_first": episode.is_first[:steps],
            "terminated": episode.terminated[1:],
            "truncated": episode.truncated[1:],
            **{_NEXT + field.name: columns[field.name][1:] for field in self._next},
        }

    def _episode_columns(self) -> list[FileColumn]:
        images = self._options.images
        return [
            *(FileColumn(name, "int64") for name in ("episode", "stream", "steps", "first_row")),
            FileColumn("return", "float64"),
            *(FileColumn(name, "bool") for name in ("terminated", "truncated", "cut")),
            FileColumn("metadata", "str", (), "text"),
            *(column_of(_FINAL + field.name, field, images) for field in self._finals),
        ]

    def _episode_row(self, episode: Episode) -> dict[str, np.ndarray]:
        """An episode's row, [1, ...] by column name."""
        with np.errstate(all="ignore"):  # rewards may be NaN or infinite
            total = float(episode.reward[1:].sum())
        facts = {**episode_facts(episode), "episode": self._number, "steps": episode.steps}
        facts |= {"return": total, "metadata": json.dumps(facts["metadata"])}
        return {
            **{name: np.array([value]) for name, value in facts.items()},
            **{_FINAL + field.name: episode.fields[field.name][-1:] for field in self._finals},
        }


def _dataset_card(source: Source) -> str:
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
`terminated` and `truncated` that it led to. `info/...` came with the observation.
An episode's final observation is `final/observation` in `{EPISODE_FILE}`, which has a row for each
episode. An episode that is neither terminated nor truncated was cut: only its recording stopped.

| field | dtype | shape |
|---|---|---|
{fields}
"""


_BATCH_ROWS: Final = 1024
_MAX_LABEL: Final = 1000
_KEPT: Final = ("info", "extra")
_CHOSEN: Final = ("action", "extra")
_OPTIONAL: Final = ("next_observation", "truncated")
_REPEATED: Final = (
    "{} terminated episodes have no final observation: the last one is there twice, which no "
    "learner bootstraps from"
)
_LOST: Final = (
    "{} episodes that were not terminated have no final observation: they end with a cut at their "
    "last one, without the reward that came after it"
)
_ENDED: Final = np.ones(1, np.bool_)
_Rows: TypeAlias = "dict[str, np.ndarray]"


class ParquetReader(EpisodeReader):
    """Reads a file or a folder of files, one episode after the other; of a folder its ``data``."""

    # Columns of `optional` options may be missing; a missing reward is 0.

    def __init__(
        self,
        modules: tuple[Any, Any],
        given: GivenFiles,
        options: ParquetImport,
        optional: Sequence[str],
        files: Sequence[Path] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(*notes, NO_METADATA)
        path = given.path
        self._modules = modules
        self._given = given
        self._finals = self._read_finals()
        self._read_ahead: list[tuple[object, _Rows]] = []
        self._options = options
        self._optional = optional
        self._files = _parquet_files(path) if files is None else files
        if not self._files:
            raise ValueError(f"{path}: expected files named *.parquet, got none")
        self._where = str(path)
        self._border: tuple[Path, Path] | None = None
        with open_file(modules, given, self._files[0]) as first:
            schema = first.schema_arrow
            self._facts = facts_of(schema, self._files[0])
            self._names, unread = self._named(leaves_of(schema, self._files[0]), self._files[0])
            classes = classes_of(schema, self._files[0])
            extensions = extensions_of(schema)
        self._has_labels = "episode" in self._names or _label(self._files[0], path, options) != ""
        if not self._has_labels and options.episode != ParquetImport().episode:
            self._refuse_column("episode", options.episode, unread, self._files[0])
        self._classes = {
            name: classes[column] for name, column in self._names.items() if column in classes
        }
        self._is_lossy = False
        self._note_columns(unread)
        for column in self._names.values():
            if column in extensions:
                self._notes.add(
                    f"{column} is of the type {extensions[column]}, which pyarrow does not know: "
                    f"its stored values are read"
                )
        # A schema does not say the lengths of lists, nor the sizes of pictures: a row does.
        first_rows, _ = next(self._batches(rows=1), (None, True))
        if first_rows is None:
            raise ValueError(f"{path}: expected at least one row, got none")
        no_steps = {n: part[: has_final_row(n)] for n, part in _fields_of(first_rows).items()}
        spec = inferred_spec(no_steps, self._where)
        self.spec, self._known = declared_spaces(spec, self._classes, self._facts.get("spaces"))
        self.sessions = sessions_of("parquet", self._known)

    def _note_columns(self, unread: Sequence[str]) -> None:
        """Note the columns that are missing, and those that are not read."""
        options = self._options
        for name, without in (
            ("reward", "rewards are 0"),
            ("terminated", "no episode is terminated"),
            ("truncated", "no episode is truncated"),
        ):
            if name not in self._names:
                self._notes.add(f"no column {getattr(options, name)!r}: {without}")
        if not self._has_labels:
            self._notes.add(
                f"no column {options.episode!r}: episodes begin behind terminated and truncated"
            )
        if unread:
            self._notes.add(f"not read: columns {', '.join(unread)}")

    def _found(self) -> Iterator[FoundEpisode]:
        waiting: list[_Rows] = []
        seen: set[object] = set()
        number = 0
        budget = self._given.budget(f"{self._where}: episode 0")
        for rows, is_joined in self._batches(_BATCH_ROWS):
            last = waiting[-1] if waiting else None
            for place, (part, continues) in enumerate(_split_batch(rows, last)):
                if continues and not (is_joined or place):
                    self._refuse_to_join(number)
                if not continues:
                    yield self._episode(number, waiting, seen)
                    waiting, number = [], number + 1
                    budget = self._given.budget(f"{self._where}: episode {number}")
                budget.take(sum(array.nbytes for array in part.values()))
                waiting.append(part)
        if waiting:
            # Of files in any order, one that ends within an episode may not be the last.
            if self._border is not None and not waiting[-1].get("/ended", _ENDED)[-1]:
                self._refuse_to_join(number)
            yield self._episode(number, waiting, seen)

    def _episode(self, number: int, parts: list[_Rows], seen: set[object]) -> FoundEpisode:
        """An episode of T >= 1 steps."""
        # The last step needs a final observation. If the episode terminated and there is none, the
        # last observation is repeated: the value after a termination is 0 in any case. Otherwise
        # the episode is cut there: its last row has the action, and the result of it is unknown, as
        # after the death of a worker.
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        label = rows["episode"][0].item()
        if self._has_labels and label in seen:
            raise ValueError(
                f"{self._where}: expected each episode's rows one after the other, got rows of "
                f"episode {label} in two places; sort them by {self._options.episode!r}, and "
                f"number the files in order"
            )
        seen.add(label)
        final = {
            name.removeprefix(_NEXT): part[-1:]
            for name, part in rows.items()
            if name.startswith(f"{_NEXT}observation")
        }
        if not final and self._has_labels:
            final = self._final_of(label)
        columns = _fields_of(rows)
        self._check_order(number, rows)
        where = f"{self._where}: episode {number}"
        end = end_of(
            {name: rows[name] for name in ("terminated", "truncated")},
            where,
            "name the column that identifies episodes in the option episode",
        )
        facts = self._metadata(label, len(rows["reward"]))
        edges: _Rows = {}
        if not final and not end & End.TERMINATED:
            self._notes.count(_LOST)
            end = End.NONE
            edges = {n: part[-1:] for n, part in columns.items() if kind_of(n) in _CHOSEN}
            columns = {n: part if has_final_row(n) else part[:-1] for n, part in columns.items()}
        else:
            if not final:
                self._notes.count(_REPEATED)
            for name in columns:
                if has_final_row(name):
                    last = final.get(name, columns[name][-1:])
                    columns[name] = np.concatenate([columns[name], last])
        return FoundEpisode(where, columns, end, facts, edges)

    def _final_of(self, label: object) -> _Rows:
        """The final observation of an episode, [1, ...] by field name; empty if there is none."""
        # Labels come in the order of the column `episode`. Other shapes and dtypes than the Spec's
        # are not a final observation.
        for found, rows in itertools.chain(self._read_ahead, self._finals):
            self._read_ahead = [(found, rows)]
            if found == label:
                is_right = all(
                    field.name in rows
                    and rows[field.name].shape == (1, *field.shape)
                    and rows[field.name].dtype == field.numpy_dtype
                    for field in self.spec.of_kind("observation", "info")
                )
                return rows if is_right else {}
        return {}

    def _read_finals(self) -> Iterator[tuple[object, _Rows]]:
        """The rows of ``episodes.parquet``, which an export writes next to the steps."""
        file = self._given.path / EPISODE_FILE
        if not (self._given.path.is_dir() and file.exists()):
            return
        with open_file(self._modules, self._given, file) as opened:
            names = opened.schema_arrow.names
            finals = [name for name in names if name.startswith(_FINAL)]
            if "episode" not in names or not finals:
                return
            for batch in batches_of(opened, self._given, 1, ["episode", *finals]):
                if batch.num_rows:
                    budget = self._given.budget(file)
                    (label,) = listed(batch.column("episode"), budget)
                    try:
                        rows = {n: array_rows(batch.column(n), n, budget)[0] for n in finals}
                    except MissingValue:  # this episode has none
                        rows = {}
                    yield label, {name.removeprefix(_FINAL): part for name, part in rows.items()}

    def _check_order(self, number: int, rows: _Rows) -> None:
        """Refuse rows whose step numbers or observations do not follow from one another."""
        if "/step" in rows:
            steps = rows["/step"].reshape(-1)
            wrong = np.flatnonzero(steps[1:] != steps[:-1] + 1)
            if wrong.size:
                last, step = steps[wrong[0]], steps[wrong[0] + 1]
                raise ValueError(
                    f"{self._where}: expected the rows of an episode in order, and all of them, "
                    f"got {self._names['/step']} {step} after {last} in episode {number}; sort "
                    f"them by it, and leave none out"
                )
        for name, after in rows.items():
            shown = rows.get(name.removeprefix(_NEXT), after)
            if not name.startswith(f"{_NEXT}observation") or shown.shape != after.shape:
                continue
            wrong = np.flatnonzero(~are_equal(shown[1:], after[:-1]))
            if wrong.size and not self._is_lossy:
                raise ValueError(
                    f"{self._where}: expected {self._names[name]!r} to be the observation of the "
                    f"row after it, up to the end of an episode, got another one in step "
                    f"{wrong[0]} of episode {number}; sort the rows, mark the end of episodes, or "
                    f"give that column another name"
                )

    def _batches(self, rows: int) -> Iterator[tuple[_Rows, bool]]:
        """Rows [n, ...] by role; False where they begin a file that need not continue another."""
        before, is_joined = None, True
        self._border = None
        for file in self._files:
            if before is not None and not is_next(file, before):
                is_joined, self._border = False, (before, file)
            before = file
            with open_file(self._modules, self._given, file) as opened:
                leaves = leaves_of(opened.schema_arrow, file)
                names, _ = self._named(leaves, file)
                if names != self._names:
                    raise ValueError(
                        f"{file}: expected the columns of {self._files[0].name}, "
                        f"{', '.join(self._names.values())}, got {', '.join(names.values())}; "
                        f"import it separately"
                    )
                paths = {name: leaves[column] for name, column in names.items()}
                for batch in batches_of(opened, self._given, rows):
                    if batch.num_rows:
                        try:
                            found = self._read(batch, paths, file)
                        except MissingValue as error:
                            self._refuse_nulls(opened, leaves, error.column, file)
                        yield found, is_joined
                        is_joined = True

    def _refuse_nulls(
        self, opened: Any, leaves: Mapping[str, tuple[int, ...]], column: str, file: Path
    ) -> NoReturn:
        """Raise for a column without a value in some rows of a file, which are counted."""
        parts = [
            has_value(leaf_array(batch, leaves[column]))
            for batch in batches_of(opened, self._given, _BATCH_ROWS)
        ]
        there = np.concatenate(parts)
        raise ValueError(
            f"{file}: column {column!r}: expected a value in each row, got none in "
            f"{int((~there).sum()):,} of {len(there):,} rows, the first of them in row "
            f"{int(there.argmin())}; fill or leave them out"
        )

    def _refuse_to_join(self, number: int) -> NoReturn:
        """Raise for an episode in two files that need not follow one another."""
        assert self._border is not None
        before, file = self._border
        raise ValueError(
            f"{self._where}: expected names that say in which order the rows of episode {number} "
            f"are, as part-1 and part-2 do, got {before.name} and {file.name}"
            f"{'' if file.parent == before.parent else ' in two folders'}; number the files, or "
            f"import each file by itself"
        )

    def _read(self, batch: Any, paths: Mapping[str, tuple[int, ...]], file: Path) -> _Rows:
        found: _Rows = {}
        where = str(file)
        budget = self._given.budget(where)
        for name, column in self._names.items():
            array = leaf_array(batch, paths[name])
            if name == "episode":
                found[name] = _labels(listed(array, budget), column, where)
                continue
            try:
                rows, is_lossy = array_rows(array, column, budget)
            except self._modules[0].ArrowException as error:
                raise ValueError(
                    f"{file}: column {column!r}: expected numbers, lists of numbers or pictures, "
                    f"got {array.type} ({error}); write it as numbers"
                ) from error
            if is_lossy:
                self._is_lossy = True
                self._notes.add("pictures are JPEG, which is lossy")
            found[name] = self._shaped(column, rows)
            if name in self._classes:
                check_classes(rows, len(self._classes[name]), column, where)
        for name in ("terminated", "truncated"):
            if name in found:
                found[name] = as_flags(found[name], self._names[name], where)
            else:
                found[name] = np.zeros(batch.num_rows, np.bool_)
        found["reward"] = as_rewards(found.get("reward", np.zeros(batch.num_rows)), where)
        if label := _label(file, self._given.path, self._options):
            found.setdefault("episode", np.full(batch.num_rows, label))
        if "episode" not in found:
            ended = found["terminated"] | found["truncated"]
            before = np.concatenate([[False], ended[:-1]])
            # Counted from the batch's beginning: `_split_batch` joins it with the one before.
            found["episode"] = np.cumsum(before)
            found["/ended"] = ended
        return found

    def _metadata(self, label: object, steps: int) -> dict[str, object]:
        """The facts about an episode of that label; here, none."""
        return {}

    def _shaped(self, column: str, rows: np.ndarray) -> np.ndarray:
        """Rows in the shape that the data set declares for a column; here, those of the file."""
        return rows

    def _named(self, columns: Iterable[str], file: Path) -> tuple[dict[str, str], list[str]]:
        """Column names by role, and columns without a role."""
        found: dict[str, str] = {}
        for field in fields(self._options):
            wanted = getattr(self._options, field.name)
            begins = f"{wanted}/", f"{wanted}."
            matches = [name for name in columns if name == wanted or name.startswith(begins)]
            if not matches and field.name not in self._optional:
                self._refuse_column(field.name, wanted, columns, file)
            for name in matches:
                rest = _nested(name)[len(wanted) + 1 :]
                if not rest:
                    found[field.name] = name
                elif field.name.endswith(("observation", "action")):
                    found[f"{field.name}/{rest}"] = name
        for name in columns:
            first, _, rest = _nested(name).partition("/")
            if first in _KEPT and rest:
                found[f"{first}/{rest}"] = name
        if (counter := self._counter(set(columns))) is not None:
            found["/step"] = counter
        self._rename(found)
        used = set(found.values())
        return found, [name for name in columns if name not in used]

    def _refuse_column(
        self, option: str, wanted: str, columns: Iterable[str], file: Path
    ) -> NoReturn:
        raise ValueError(
            f"{file}: expected a column {wanted!r}, got {', '.join(columns)}; name yours in the "
            f"option {option}"
        )

    def _counter(self, columns: set[str]) -> str | None:
        """The column that counts the steps of an episode, as an export of Stepwell has it."""
        return "step" if {"step", "stream", "is_first"} <= columns else None

    def _rename(self, found: dict[str, str]) -> None:
        """Change the roles of columns that the data set has other names for; here, none."""


def _nested(name: str) -> str:
    """The name with slashes between its parts, which other libraries separate by dots."""
    return name if "/" in name else name.replace(".", "/")


def _fields_of(rows: _Rows) -> _Rows:
    """The rows of the columns that become fields."""
    kinds = ("observation", "action", "reward", *_KEPT)
    return {name: part for name, part in rows.items() if kind_of(name) in kinds}


def _labels(values: list[object], column: str, where: str) -> np.ndarray:
    """The labels of episodes, [T]."""
    is_good = all(
        isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _MAX_LABEL)
        for value in values
    )
    if not is_good:
        raise ValueError(
            f"{where}: expected column {column!r} to hold a number, or a text of at most "
            f"{_MAX_LABEL} characters, in each row, got something else; name another column in the "
            f"option episode"
        )
    return np.array(values)


def _split_batch(rows: _Rows, last: _Rows | None) -> Iterator[tuple[_Rows, bool]]:
    """The rows of each episode of a batch, and True if they continue ``last``, of one episode."""
    labels = rows["episode"]
    borders = [0, *(np.nonzero(labels[1:] != labels[:-1])[0] + 1).tolist(), len(labels)]
    for start, stop in itertools.pairwise(borders):
        if start or last is None:
            continues = not start
        elif "/ended" in rows:
            continues = not last["/ended"][-1]
        else:
            continues = bool(last["episode"][-1] == labels[0])
        yield {name: part[start:stop] for name, part in rows.items()}, continues


def _parquet_files(path: Path) -> list[Path]:
    """The files of a data set, in order, but for those that pyarrow ignores, too."""
    if path.is_file():
        return [path]
    if (path / "_delta_log").exists():
        raise ValueError(
            f"{path}: expected plain Parquet files, got a table of Delta Lake, whose log says "
            f"which of them count; write it as plain files"
        )
    folder = path / "data" if (path / "data").is_dir() else path
    return in_order(
        file
        for file in folder.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )


def _label(file: Path, path: Path, options: ParquetImport) -> str:
    """The episode that a folder's name gives all rows in it, ``episode=3``; empty for none."""
    if not path.is_dir():
        return ""
    named = [part for part in file.relative_to(path).parts[:-1] if "=" in part]
    if named and not any(part.startswith(f"{options.episode}=") for part in named):
        raise ValueError(
            f"{file}: expected rows in their order, got them divided by {named[0]!r}, which says "
            f"nothing of it; write them without partitions, or by episode (the option episode "
            f"names the key)"
        )
    return "/".join(named)
