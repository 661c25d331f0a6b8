"""A folder of numpy's own files, one for each episode: to look at with nothing but numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from stepwell.buffers.bridges.formats.format import Format, Source
from stepwell.buffers.bridges.formats.options import NoOptions
from stepwell.buffers.bridges.formats.record import Beside, Record, rebuilt
from stepwell.buffers.curation.step_columns import (
    StepColumns,
    frames_of,
    inferred_spec,
    joined,
    split,
    stacks_of,
)
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles, Room
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["NpzExport", "NpzFormat"]

_PLURALS: Final = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "info": "infos",
    "extra": "extras",
}
_SINGULARS: Final = {plural: name for name, plural in _PLURALS.items()}
_NEEDED: Final = ("rewards", "terminations", "truncations")


@dataclass(frozen=True, slots=True)
class NpzExport:
    """Options for writing npz files.

    Args:
        compress: Deflate the files.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
    """

    compress: bool = True
    stack: bool = False


class NpzFormat(Format):
    """``000000.npz``, ``000001.npz``, ...: T + 1 ``observations``, T of all else.

    ``observations`` (or ``observations/key``), ``actions``, ``rewards`` [T] float64,
    ``terminations`` and ``truncations`` [T] bool, ``infos/name`` [T + 1], ``extras/name`` [T].
    """

    name: ClassVar[str] = "npz"
    about: ClassVar[str] = "a file of numpy arrays for each episode; needs nothing but numpy"
    install: ClassVar[str | None] = None
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any]] = NpzExport
    import_options: ClassVar[type[Any]] = NoOptions

    def writer(self, source: Source, options: NpzExport) -> _Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: NoOptions) -> _Reader:
        """Open a folder."""
        return _Reader(files)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load the first episode."""
        return f'import numpy as np\nepisode = np.load("{path / "000000.npz"}")'


class _Writer:
    def __init__(self, source: Source, options: NpzExport) -> None:
        self._source = source
        self._options = options
        self._number = 0
        self._folder = Path()
        self.notes: Sequence[str] = ()

    def begin(self, path: Path) -> None:
        self._folder = path
        Beside(path / Beside.NAME).begin(self._source)

    def write(self, episode: Episode) -> None:
        columns = split(episode)
        # Any: numpy's own keywords have types that arrays do not have.
        arrays: dict[str, Any] = self._arrays(episode, columns)
        save = np.savez_compressed if self._options.compress else np.savez
        save(self._folder / f"{self._number:06d}.npz", **arrays)
        Beside(self._folder / Beside.NAME).put(self._number, episode, columns.edges)
        self._number += 1

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _arrays(self, episode: Episode, columns: StepColumns) -> dict[str, np.ndarray]:
        observation = dict(columns.observation)
        for name, rows in observation.items():
            field = self._source.spec[name]
            if self._options.stack and field.stack > 1:
                observation[name] = stacks_of(rows, field, episode.first_row)
        named = {**observation, **columns.action, **columns.info, **columns.extra}
        return {
            **{_renamed(name, _PLURALS): rows for name, rows in named.items()},
            "rewards": columns.reward,
            "terminations": columns.terminated,
            "truncations": columns.truncated,
        }


class _Reader:
    def __init__(self, given: GivenFiles) -> None:
        path = given.path
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: expected a folder of npz files, got no folder")
        self._given = given
        self._files = sorted(path.glob("*.npz"))
        if not self._files:
            raise ValueError(f"{path}: expected files named *.npz, got none")
        self._beside = Beside.found(given)
        record = self._beside.record() if self._beside else None
        self.notes: Sequence[str] = ()
        if record is None:
            first = self._files[0]
            self.notes = ("streams and metadata are not told: all episodes are of stream 0",)
            record = Record(_spec_of(_columns_of(given, first, given.room(first)), first), ())
        if record.episodes not in (None, len(self._files)):
            raise ValueError(
                f"{path}: expected {record.episodes:,} files named *.npz, got "
                f"{len(self._files):,}: the data set was changed since it was exported; remove "
                f"{path / Beside.NAME} to read what is there"
            )
        self.spec = record.spec
        self.sessions = record.sessions
        self.episodes: int | None = len(self._files)
        self.steps: int | None = record.steps

    def __iter__(self) -> Iterator[Episode]:
        for number, file in enumerate(self._files):
            room = self._given.room(file)
            columns = _columns_of(self._given, file, room)
            if self._beside is not None:
                facts, edges = self._beside.take(number, room)
                yield rebuilt(self.spec, number, self._rows(columns, edges, file), facts)
            else:
                yield self._foreign(number, columns, file)

    def close(self) -> None:
        pass

    def _foreign(self, number: int, columns: dict[str, np.ndarray], file: Path) -> Episode:
        """An episode of a folder that Stepwell did not write."""
        spec = _spec_of(columns, file)
        if spec != self.spec:
            raise ValueError(
                f"{file}: expected the arrays of {self._files[0].name}, got others: "
                f"{self.spec.difference(spec)}; import it by itself"
            )
        end = End.NONE
        for flag, name in ((End.TERMINATED, "terminations"), (End.TRUNCATED, "truncations")):
            if columns[name].any() and columns[name].argmax() < len(columns[name]) - 1:
                raise ValueError(
                    f"{file}: expected {name} to be set in the last step alone, got it in step "
                    f"{columns[name].argmax()}; write each episode to a file of its own"
                )
            end |= flag if columns[name][-1:].any() else End.NONE
        rows = self._rows(columns, {}, file)
        return Episode(self.spec, number, 0, 0, end, rows, {})

    def _rows(
        self, columns: dict[str, np.ndarray], edges: Mapping[str, np.ndarray], file: Path
    ) -> dict[str, np.ndarray]:
        """All rows, [T + 1, ...] by field name."""
        named = {_renamed(name, _SINGULARS): rows for name, rows in columns.items()}
        for field in self.spec.fields:
            if field.name not in named:
                raise ValueError(
                    f"{file}: expected {_renamed(field.name, _PLURALS)!r}, got none; the folder "
                    f"holds files of two kinds, or was changed: mend or remove that file"
                )
            if field.stack > 1 and named[field.name].ndim == len(field.shape) + 2:
                named[field.name] = frames_of(named[field.name], field)
        return joined(self.spec, named, edges)


def _columns_of(given: GivenFiles, file: Path, room: Room) -> dict[str, np.ndarray]:
    """All arrays of a file.

    Raises:
        ValueError: It is no npz file of plain arrays, or lacks some.
    """
    columns = given.read_arrays(file, room)
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise ValueError(
            f"{file}: expected arrays observations, actions, {', '.join(_NEEDED)}, got "
            f"{', '.join(columns) or 'none'}; add {missing[0]!r}"
        )
    return columns


def _spec_of(columns: Mapping[str, np.ndarray], file: Path) -> Spec:
    """The fields that a foreign file's arrays are."""
    named = {
        _renamed(name, _SINGULARS): rows
        for name, rows in columns.items()
        if name not in ("terminations", "truncations")
    }
    return inferred_spec(named, str(file))


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """A field's name with its first part as the other side calls it."""
    first, slash, rest = name.partition("/")
    return names.get(first, first) + slash + rest
