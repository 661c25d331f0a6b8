"""Reads d3rlpy's files: those that Stepwell wrote bit for bit, others as d3rlpy would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from stepwell.buffers.bridges.formats.d3rlpy.columns import D3rlpyRows
from stepwell.buffers.bridges.formats.d3rlpy.foreign import ForeignEpisodes
from stepwell.buffers.bridges.formats.hdf5_columns import check_group, open_given, read_column
from stepwell.buffers.bridges.formats.record import Record, checked_facts, rebuilt
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.curation.step_columns import joined
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles, Room, parse_object
from stepwell.buffers.spec import Spec

__all__ = ["COLUMNS", "INSTALL", "RECORD", "VERSION", "D3rlpyReader", "quoted"]

INSTALL: Final = "'stepwell[d3rlpy]'"
VERSION: Final = "2.1"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
RECORD: Final = "stepwell"  # a group that d3rlpy does not look into


class D3rlpyReader:
    """Reads one file; see `Reader`.

    Args:
        files: The file.
        use_record: Make use of what Stepwell noted in it.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is something else.
        ImportError: h5py is not installed.
    """

    def __init__(self, files: GivenFiles, use_record: bool) -> None:
        h5py = load_library("h5py", "format d3rlpy", install=INSTALL)
        if not files.path.exists() or files.path.is_dir():
            raise FileNotFoundError(f"{files.path}: expected a file of d3rlpy's, got no file")
        self._files = files
        self._path = files.path
        self._file = open_given(h5py, files, files.path)
        try:
            check_group(h5py, self._file, str(files.path), texts=True)
            self._open(use_record)
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[Episode]:
        """All episodes."""
        for number in range(self._total):
            room = self._files.room(f"{self._path}: episode {number}")
            columns = self._columns(number, room)
            if self._foreign is not None:
                yield self._foreign.episode(number, columns)
            elif self._rows is not None:
                yield self._own(number, columns, self._rows, room)

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
        room = self._files.room(path)
        version = _text(read_column(file["version"], room))
        names = read_column(file["columns"], room) if "columns" in file else ()
        found = [_text(name) for name in np.atleast_1d(names).tolist()]
        if version != VERSION or sorted(found) != sorted(COLUMNS):
            raise ValueError(
                f"{path}: expected version {VERSION} with {', '.join(COLUMNS)}, got {version} "
                f"with {', '.join(found)}; load it by d3rlpy, and dump plain episodes"
            )
        total = np.asarray(read_column(file["num_episodes"], room))
        if total.shape or total.dtype.kind not in "iu" or total < 0:
            raise ValueError(f"{path}: expected num_episodes as a whole number, got {total}")
        self._total = int(total)
        self.episodes: int | None = self._total
        self.steps: int | None = None
        self._foreign: ForeignEpisodes | None = None
        self._rows: D3rlpyRows | None = None
        if use_record and RECORD in file:
            kept = {name: self._bytes(f"{RECORD}/{name}", room) for name in ("store", "shown")}
            record = Record.read(kept["store"], path)
            shown = parse_object(kept["shown"], path)
            told = shown.get("stack"), shown.get("channels_first")
            if not all(isinstance(one, bool) for one in told):
                raise ValueError(
                    f"{path}: expected to be told how observations are shown, got {shown}; read it "
                    f"by the option record=false"
                )
            self._rows = D3rlpyRows(record.spec, bool(told[0]), bool(told[1]))
        else:
            first = self._columns(0, room) if self._total else {}
            self._foreign = ForeignEpisodes(first, str(path))
            record = Record(self._foreign.spec, ())
        self.spec = record.spec
        self.sessions: Sequence[Mapping[str, object]] = record.sessions

    def _bytes(self, name: str, room: Room) -> bytes:
        """What Stepwell noted under a name.

        Raises:
            ValueError: It is not there.
        """
        node = self._file.get(name)
        if node is None or not hasattr(node, "shape") or node.dtype != np.uint8:
            raise ValueError(
                f"{self._path}: expected what Stepwell noted as {name}, got nothing: the file was "
                f"changed since it was exported; read it by the option record=false"
            )
        found: bytes = np.asarray(read_column(node, room)).tobytes()
        return found

    def _columns(self, number: int, room: Room) -> dict[str, Any]:
        """An episode as d3rlpy would load it.

        Raises:
            ValueError: Something of it is missing.
        """
        found: dict[str, Any] = {}
        for name in COLUMNS:
            key = f"{name}_{number}"
            if key in self._file:
                found[name] = read_column(self._file[key], room)
                continue
            parts: list[np.ndarray] = []
            while f"{key}_{len(parts)}" in self._file:
                parts.append(read_column(self._file[f"{key}_{len(parts)}"], room))
            if not parts:
                raise ValueError(f"{self._path}: expected {key}, got none; the file is damaged")
            found[name] = parts
        return found

    def _own(
        self, number: int, columns: Mapping[str, Any], rows: D3rlpyRows, room: Room
    ) -> Episode:
        """An episode as it was when Stepwell wrote it."""
        group = self._file.get(f"{RECORD}/{number}")
        if group is None:
            raise ValueError(
                f"{self._path}: expected what Stepwell noted about episode {number}, got nothing: "
                f"the file was changed since it was exported; read it by the option record=false"
            )
        kept: dict[str, np.ndarray] = {}
        group.visititems(lambda name, node: kept.update(_read(name, node, room)))
        facts = checked_facts(kept["facts"].tobytes(), f"{self._path}: episode {number}")
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


def _read(name: str, node: Any, room: Room) -> dict[str, np.ndarray]:
    """A dataset by its name; nothing of a group."""
    return {name: read_column(node, room)} if hasattr(node, "shape") else {}


def _others(spec: Spec) -> list[str]:
    """Fields that d3rlpy has no place for."""
    return [name for name in spec.names if name.startswith(("info/", "extra/"))]


def _text(value: Any) -> str:
    found = value.item() if hasattr(value, "item") and value.shape == () else value
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
