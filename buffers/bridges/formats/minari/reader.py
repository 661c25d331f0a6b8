"""Reads Minari data sets: those that Stepwell wrote bit for bit, others by Minari's rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.buffers.bridges.formats.minari.files import HDF5_NAME, INSTALL, RECORD_NAME
from stepwell.buffers.bridges.formats.minari.foreign import ForeignRows
from stepwell.buffers.bridges.formats.minari.given_data import GivenData
from stepwell.buffers.bridges.formats.minari.options import MinariImport
from stepwell.buffers.bridges.formats.record import Beside, Record, rebuilt
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.curation.step_columns import frames_of, joined
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles, parse_object
from stepwell.buffers.spec import Spec, flatten

__all__ = ["MinariReader"]

_GROUP = 64  # episodes of one file that are asked for at once


class MinariReader:
    """Reads one data set; see `Reader`.

    Args:
        files: The data set's folder, or its ``data``.
        options: How.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no data set of Minari's, or holds what Stepwell has no field for.
        ImportError: Minari, or what these files need, is not installed.
    """

    def __init__(self, files: GivenFiles, options: MinariImport) -> None:
        path = files.path
        data = path if (path / "metadata.json").exists() else path / "data"
        if not (data / "metadata.json").exists():
            raise FileNotFoundError(
                f"{path}: expected a Minari data set, got none; one that is not on this machine is "
                f"fetched by `minari download ID`"
            )
        given = files if data != path else files.at(data.absolute().parent)
        self._given = given
        self._data = data
        self._checked = GivenData(given, data)
        storage = _storage_of(data)
        self._total = self._checked.episodes
        self.notes: Sequence[str] = ()
        self._beside = Beside.found(given) if options.record else None
        self._foreign: ForeignRows | None = None
        if self._beside is not None:
            record = self._beside.record()
            stems = [file.stem for file in self._beside.folder.glob("*.npz")]
            self._unseen = {int(stem) for stem in stems if stem.isascii() and stem.isdecimal()}
        else:
            self._foreign = ForeignRows(storage, data, self._checked, options.infos)
            record = Record(self._foreign.spec, ())
            self._unseen = set[int]()
            self.notes = self._foreign.notes
            storage = self._foreign.storage
        self._storage = storage
        self.spec: Spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.episodes: int | None = self._total + len(self._unseen)
        self.steps: int | None = self._checked.steps

    def __iter__(self) -> Iterator[Episode]:
        """All episodes."""
        seen = self._seen()
        for number in range(self._total + len(self._unseen)):
            if number in self._unseen and self._beside is not None:
                facts, fields = self._beside.take(number)
                yield rebuilt(self.spec, number, fields, facts)
            else:
                yield next(seen)

    def close(self) -> None:
        """Minari opens files for each read."""

    def _seen(self) -> Iterator[Episode]:
        """Those that Minari sees."""
        # Asked for several of its files, Arrow refuses them unless all have the same columns.
        group = _GROUP if self._storage.FORMAT == "hdf5" else 1
        for start in range(0, self._total, group):
            numbers = range(start, min(start + group, self._total))
            for number in numbers:
                self._checked.check(number)
            facts = self._storage.get_episode_metadata(numbers)
            columns = self._storage.get_episodes(numbers)
            if self._foreign is not None:
                for number, one, told in zip(numbers, columns, facts, strict=True):
                    yield self._foreign.episode(number, one, told)
                continue
            for number, one, record in zip(numbers, columns, self._records(numbers), strict=True):
                yield self._own(number, one, record)

    def _own(self, number: int, columns: Mapping[str, Any], record: Mapping[str, Any]) -> Episode:
        """An episode as it was when Stepwell wrote it."""
        named: dict[str, np.ndarray] = {"reward": columns["rewards"]}
        for layout, tree in (
            (self.spec.observation, columns["observations"]),
            (self.spec.action, columns["actions"]),
        ):
            named |= {name: np.asarray(rows) for name, rows in flatten(layout, tree)}
        for field in self.spec.fields:
            first, _, rest = field.name.partition("/")
            if first in ("info", "extra"):
                rows = _info(columns["infos"], rest if first == "info" else field.name)
                named[field.name] = rows if first == "info" else rows[:-1]
            elif field.stack > 1 and named[field.name].ndim == len(field.shape) + 2:
                named[field.name] = frames_of(named[field.name], field)
        edges = {
            name: np.frombuffer(bytes.fromhex(text), self.spec[name].numpy_dtype).reshape(
                1, *self.spec[name].shape
            )
            for name, text in record["edges"].items()
        }
        return rebuilt(self.spec, number, joined(self.spec, named, edges), record["facts"])

    def _records(self, numbers: range) -> Iterator[Mapping[str, Any]]:
        """What Stepwell noted about episodes.

        Raises:
            ValueError: There is nothing about one.
        """
        with contextlib.ExitStack() as stack:
            file: Any = None
            if self._storage.FORMAT == "hdf5":
                h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
                file = stack.enter_context(h5py.File(self._data / HDF5_NAME, "r"))
            for number in numbers:
                path = self._data / str(number) / RECORD_NAME
                group = file[f"episode_{number}"] if file is not None else {}
                if "stepwell" in group:
                    yield _record(np.asarray(group["stepwell"][()]).tobytes(), self._data, number)
                elif path.exists():
                    yield _record(self._given.read_bytes(path), self._data, number)
                else:
                    raise ValueError(
                        f"{self._data}: expected what Stepwell noted about episode {number}, got "
                        f"nothing: the data set was changed since it was exported; read what is "
                        f"there by the option record=false"
                    )


def _storage_of(data: Path) -> Any:
    """Minari's own reader of a folder.

    Raises:
        ValueError: It is none that the installed Minari can read.
    """
    found = load_library(
        "minari.dataset.minari_storage",
        "format minari",
        install=INSTALL,
        package="minari",
        at_least="0.5.4",
    )
    try:
        return found.MinariStorage.read(data)
    except ImportError as error:
        raise ImportError(f"format minari: {error}: pip install {INSTALL}") from error
    except Exception as error:  # whatever its files and its env make it raise
        raise ValueError(
            f"{data}: expected a data set that the installed Minari can read, got "
            f"{type(error).__name__}: {error}; look at it with `minari show`"
        ) from error


def _record(text: bytes, data: Path, number: int) -> dict[str, Any]:
    """What Stepwell noted about an episode.

    Raises:
        ValueError: It is something else.
    """
    found = parse_object(text, f"{data}: episode {number}")
    facts, edges = found.get("facts"), found.get("edges")
    if not isinstance(facts, dict) or not isinstance(edges, dict):
        raise ValueError(
            f"{data}: expected facts and edges of episode {number}, got {str(found)[:200]}; read "
            f"what is there by the option record=false"
        )
    return found


def _info(infos: Mapping[str, Any], name: str) -> Any:
    """A column of infos: by its whole name, as arrow has it, or part by part as hdf5 has it."""
    if name in infos:
        return infos[name]
    first, _, rest = name.partition("/")
    return _info(infos[first], rest)
