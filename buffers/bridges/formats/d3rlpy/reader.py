"""Reads d3rlpy's files: those that Stepwell wrote bit for bit, others as d3rlpy would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from stepwell.buffers.bridges.formats.d3rlpy.columns import D3rlpyRows
from stepwell.buffers.bridges.formats.d3rlpy.foreign import ForeignEpisodes
from stepwell.buffers.bridges.formats.record import Record, rebuilt
from stepwell.buffers.bridges.formats.step_columns import joined
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Spec

__all__ = ["COLUMNS", "INSTALL", "RECORD", "VERSION", "D3rlpyReader", "quoted"]

INSTALL: Final = "'stepwell[d3rlpy]'"
VERSION: Final = "2.1"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
RECORD: Final = "stepwell"  # a group that d3rlpy does not look into


class D3rlpyReader:
    """Reads one file; see `Reader`.

    Args:
        path: The file.
        use_record: Make use of what Stepwell noted in it.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is something else.
        ImportError: h5py is not installed.
    """

    def __init__(self, path: Path, use_record: bool) -> None:
        h5py = load_library("h5py", "format d3rlpy", install=INSTALL)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: expected a file of d3rlpy's, got no file")
        self._path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path}: expected an HDF5 file, got another ({error})") from error
        try:
            self._open(use_record)
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[Episode]:
        """All episodes."""
        for number in range(self._total):
            columns = self._columns(number)
            if self._foreign is not None:
                yield self._foreign.episode(number, columns)
            elif self._rows is not None:
                yield self._own(number, columns, self._rows)

    @property
    def notes(self) -> Sequence[str]:
        """What d3rlpy's columns do not tell."""
        return () if self._foreign is None else self._foreign.notes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self, use_record: bool) -> None:
        """Look at what is there.

        Raises:
            ValueError: It is another file.
        """
        file, path = self._file, self._path
        if "version" not in file or "num_episodes" not in file:
            cure = "load it by d3rlpy.dataset.MDPDataset or load_v1, and dump it again"
            raise ValueError(
                f"{path}: expected a file that d3rlpy 2 has dumped, got another; {cure}"
            )
        version = _text(file["version"])
        found = [_text(name) for name in file["columns"]] if "columns" in file else []
        if version != VERSION or sorted(found) != sorted(COLUMNS):
            raise ValueError(
                f"{path}: expected version {VERSION} with {', '.join(COLUMNS)}, got {version} "
                f"with {', '.join(found)}; load it by d3rlpy, and dump plain episodes"
            )
        self._total = int(file["num_episodes"][()])
        self.episodes: int | None = self._total
        self.steps: int | None = None
        self._foreign: ForeignEpisodes | None = None
        self._rows: D3rlpyRows | None = None
        if use_record and RECORD in file:
            record = Record.read(file[f"{RECORD}/store"][()].tobytes(), path)
            shown = json.loads(file[f"{RECORD}/shown"][()].tobytes())
            self._rows = D3rlpyRows(record.spec, shown["stack"], shown["channels_first"])
        else:
            first = self._columns(0) if self._total else {}
            self._foreign = ForeignEpisodes(first, str(path))
            record = Record(self._foreign.spec, ())
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions

    def _columns(self, number: int) -> dict[str, Any]:
        """An episode as d3rlpy would load it.

        Raises:
            ValueError: Something of it is missing.
        """
        found: dict[str, Any] = {}
        for name in COLUMNS:
            key = f"{name}_{number}"
            if key in self._file:
                found[name] = self._file[key][()]
                continue
            parts: list[np.ndarray] = []
            while f"{key}_{len(parts)}" in self._file:
                parts.append(self._file[f"{key}_{len(parts)}"][()])
            if not parts:
                raise ValueError(f"{self._path}: expected {key}, got none; the file is damaged")
            found[name] = parts
        return found

    def _own(self, number: int, columns: Mapping[str, Any], rows: D3rlpyRows) -> Episode:
        """An episode as it was when Stepwell wrote it."""
        group = self._file.get(f"{RECORD}/{number}")
        if group is None:
            raise ValueError(
                f"{self._path}: expected what Stepwell noted about episode {number}, got nothing: "
                f"the file was changed since it was exported; read it by the option record=false"
            )
        kept: dict[str, np.ndarray] = {}
        group.visititems(lambda name, node: kept.update(_read(name, node)))
        facts = json.loads(kept["facts"].tobytes())
        steps = facts["rows"] - 1
        named = {name: kept[f"rows/{quoted(name)}"] for name in _others(self.spec)}
        edges = {name: rows[-1:] for name, rows in named.items() if name.startswith("extra/")}
        named |= {name: named[name][:-1] for name in edges}
        shown = columns["observations"]
        for part, field in zip([shown] if rows.is_single else shown, rows.parts, strict=True):
            named[field.name] = rows.frames(part, field)
            last = f"last/{quoted(field.name)}"
            if last in kept:
                named[field.name] = np.concatenate([named[field.name], kept[last]])
        action = rows.action
        named[action.name] = columns["actions"][:steps].reshape(-1, *action.shape)
        rounded = columns["rewards"][:steps, 0].astype(np.float64)
        named["reward"] = kept["rewards"] if "rewards" in kept else rounded
        for name in ("reward", action.name):
            if f"edges/{quoted(name)}" in kept:
                edges[name] = kept[f"edges/{quoted(name)}"]
        return rebuilt(self.spec, number, joined(self.spec, named, edges), facts)


def quoted(name: str) -> str:
    """A field's name as that of a dataset: HDF5 would make groups of its parts.

    Example:
        >>> quoted("info/lives")
        'info%2Flives'
    """
    return quote(name, safe="")


def _read(name: str, node: Any) -> dict[str, np.ndarray]:
    """A dataset by its name; nothing of a group."""
    return {name: node[()]} if hasattr(node, "shape") else {}


def _others(spec: Spec) -> list[str]:
    """Fields that d3rlpy has no place for."""
    return [name for name in spec.names if name.startswith(("info/", "extra/"))]


def _text(value: Any) -> str:
    found = value[()] if hasattr(value, "shape") and value.shape == () else value
    return found.decode() if isinstance(found, bytes) else str(found)
