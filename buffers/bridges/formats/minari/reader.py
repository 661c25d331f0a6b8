"""Reads Minari data sets: those that Stepwell wrote bit for bit, others by Minari's rules."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.buffers.bridges.formats.minari.files import HDF5_NAME, INSTALL, RECORD_NAME
from stepwell.buffers.bridges.formats.minari.foreign import ForeignRows
from stepwell.buffers.bridges.formats.minari.options import MinariImport
from stepwell.buffers.bridges.formats.record import Beside, Record, rebuilt
from stepwell.buffers.bridges.formats.step_columns import frames_of, joined
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Spec, flatten

__all__ = ["MinariReader"]

_GROUP = 64  # episodes of one file that are asked for at once


class MinariReader:
    """Reads one data set; see `Reader`.

    Args:
        path: The data set's folder, or its ``data``.
        options: How.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no data set of Minari's, or holds what Stepwell has no field for.
        ImportError: Minari, or what these files need, is not installed.
    """

    def __init__(self, path: Path, options: MinariImport) -> None:
        data = path if (path / "metadata.json").is_file() else path / "data"
        if not (data / "metadata.json").is_file():
            raise FileNotFoundError(
                f"{path}: expected a Minari data set, got none; one that is not on this machine is "
                f"fetched by `minari download ID`"
            )
        self._data = data
        storage = _storage_of(data)
        metadata = storage.metadata
        self._total: int = metadata["total_episodes"]
        self.notes: Sequence[str] = ()
        self._beside = Beside.found(data.parent) if options.record else None
        self._foreign: ForeignRows | None = None
        if self._beside is not None:
            record = self._beside.record()
            self._unseen = {int(file.stem) for file in self._beside.folder.glob("*.npz")}
        else:
            self._foreign = ForeignRows(storage, data, options.infos)
            record = Record(self._foreign.spec, ())
            self._unseen = set[int]()
            self.notes = self._foreign.notes
            storage = self._foreign.storage
        self._storage = storage
        self.spec: Spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions
        self.episodes: int | None = self._total + len(self._unseen)
        self.steps: int | None = metadata["total_steps"]

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
                    yield json.loads(group["stepwell"][()].tobytes())
                elif path.is_file():
                    yield json.loads(path.read_bytes())
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


def _info(infos: Mapping[str, Any], name: str) -> Any:
    """A column of infos: by its whole name, as arrow has it, or part by part as hdf5 has it."""
    if name in infos:
        return infos[name]
    first, _, rest = name.partition("/")
    return _info(infos[first], rest)
