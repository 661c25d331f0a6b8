"""Minari's files, hdf5 and arrow: the episodes of a data set, written one after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from stepwell.buffers.bridges.formats.hdf5_columns import NewHdf5, put_column
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.spec import Tree

__all__ = [
    "HDF5_NAME",
    "INSTALL",
    "RECORD_NAME",
    "ArrowFiles",
    "EpisodeColumns",
    "Hdf5File",
    "MinariFiles",
]

INSTALL: Final = "'stepwell[minari]'"
HDF5_NAME: Final = "main_data.hdf5"
RECORD_NAME: Final = "_stepwell.json"  # Arrow passes over names that begin with _
_ATTRIBUTE_TEXT: Final = 8 << 10  # characters of an attribute, which may have 64 KiB at most
_ARROW_ROWS: Final = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeColumns:
    """An episode of T steps as Minari has it.

    Args:
        observations: [T + 1, ...], nested as the space is; stacks may be views.
        actions: [T, ...], nested as the space is.
        rewards: [T] float64.
        terminations: [T] bool.
        truncations: [T] bool.
        infos: [T + 1, ...] by name, with ``/`` between the parts of nested ones.
        facts: JSON-able: what Minari shows as the episode's metadata.
        record: JSON-able: what Stepwell notes for the way back.
    """

    observations: Tree
    actions: Tree
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    record: Mapping[str, Any]


class MinariFiles(Protocol):
    """Writes episodes into a data set's folder ``data``."""

    def begin(self, folder: Path) -> None:
        """Make what holds the episodes."""
        ...

    def put(self, number: int, episode: EpisodeColumns) -> None:
        """Write an episode of one step or more.

        Raises:
            ValueError: Minari could not read it.
        """
        ...

    def close(self) -> None:
        """All is written; twice does no harm."""
        ...


class Hdf5File:
    """``main_data.hdf5``: a group for each episode.

    Args:
        compress: Deflate columns, which HDF5 undoes by itself when they are read.
    """

    def __init__(self, compress: bool) -> None:
        self._h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        self._compress = compress
        self._new: NewHdf5 | None = None
        self._file: Any = None

    def begin(self, folder: Path) -> None:
        """Make the file."""
        self._new = NewHdf5(self._h5py, folder / HDF5_NAME, track_order=True)
        self._file = self._new.file

    def put(self, number: int, episode: EpisodeColumns) -> None:
        """Write a group."""
        group = self._file.create_group(f"episode_{number}")
        facts = {"id": number, "total_steps": len(episode.rewards)}
        group.attrs.update({**_attributes(episode.facts), **facts})
        self._tree(group, "observations", episode.observations)
        self._tree(group, "actions", episode.actions)
        for name in ("rewards", "terminations", "truncations"):
            put_column(group, name, getattr(episode, name), self._compress)
        infos = group.create_group("infos")
        for name, rows in episode.infos.items():
            put_column(infos, name, rows, self._compress)
        text = json.dumps(episode.record).encode()
        group.create_dataset("stepwell", data=np.frombuffer(text, np.uint8))
        if self._new is not None:
            self._new.check()

    def close(self) -> None:
        """Close the file."""
        if self._new is not None:
            self._new.close()

    def _tree(self, group: Any, name: str, tree: Tree) -> None:
        if isinstance(tree, np.ndarray):
            put_column(group, name, tree, self._compress)
            return
        inner = group.create_group(name)
        named = (
            tree.items()
            if isinstance(tree, Mapping)
            else ((f"_index_{place}", part) for place, part in enumerate(tree))
        )
        for key, part in named:
            self._tree(inner, key, part)


class ArrowFiles:
    """A folder for each episode, with one file of one batch of T + 1 rows, and ``metadata.json``.

    Args:
        compress: Compress the batches by zstd, which Arrow undoes by itself when they are read.
    """

    def __init__(self, compress: bool) -> None:
        self._pa = load_library("pyarrow", "Minari's format arrow", install=INSTALL)
        self._ipc = load_library("pyarrow.ipc", "Minari's format arrow", install=INSTALL)
        self._options = self._ipc.IpcWriteOptions(compression="zstd" if compress else None)
        self._folder = Path()

    def begin(self, folder: Path) -> None:
        """Remember the folder."""
        self._folder = folder

    def put(self, number: int, episode: EpisodeColumns) -> None:
        """Write a folder."""
        steps = len(episode.rewards)
        if steps >= _ARROW_ROWS:
            raise ValueError(
                f"an episode has {steps:,} steps, expected {_ARROW_ROWS - 1:,} at most, since "
                f"Minari reads longer ones of its format arrow in parts: choose data_format=hdf5"
            )
        # A batch is as long as its observations; Minari leaves the last row of all else out.
        columns = {
            "observations": self._tree(episode.observations, 0),
            "actions": self._tree(episode.actions, 1),
            "rewards": self._tree(episode.rewards, 1),
            "terminations": self._tree(episode.terminations, 1),
            "truncations": self._tree(episode.truncations, 1),
        }
        if episode.infos:
            columns["infos"] = self._infos(episode.infos)
        batch = self._pa.RecordBatch.from_pydict(columns)
        folder = self._folder / str(number)
        folder.mkdir()
        with self._ipc.new_file(
            str(folder / "part-0.arrow"), batch.schema, options=self._options
        ) as file:
            file.write_batch(batch)
        facts = {**episode.facts, "id": number, "total_steps": steps}
        (folder / "metadata.json").write_text(json.dumps(facts), encoding="utf-8")
        (folder / RECORD_NAME).write_text(json.dumps(episode.record), encoding="utf-8")

    def close(self) -> None:
        """Each file is closed already."""

    def _tree(self, tree: Tree, pad: int) -> Any:
        if isinstance(tree, np.ndarray):
            return self._column(tree, pad)
        named = (
            dict(tree)
            if isinstance(tree, Mapping)
            else {str(place): part for place, part in enumerate(tree)}
        )
        arrays = [self._tree(part, pad) for part in named.values()]
        return self._pa.StructArray.from_arrays(arrays, names=list(named))

    def _column(self, rows: np.ndarray, pad: int) -> Any:
        if pad:
            rows = np.concatenate([rows, np.zeros((pad, *rows.shape[1:]), rows.dtype)])
        flat = self._pa.array(np.ascontiguousarray(rows).reshape(-1))
        if rows.ndim == 1:
            return flat
        return self._pa.FixedSizeListArray.from_arrays(flat, rows[0].size)

    def _infos(self, infos: Mapping[str, np.ndarray]) -> Any:
        arrays = [self._column(rows, 0) for rows in infos.values()]
        fields = [
            self._pa.field(
                name,
                array.type,
                metadata={"shape": ",".join(map(str, rows.shape[1:]))} if rows.ndim > 1 else None,
            )
            for (name, rows), array in zip(infos.items(), arrays, strict=True)
        ]
        return self._pa.StructArray.from_arrays(arrays, fields=fields)


def _attributes(facts: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Facts as attributes of HDF5: nested ones by path, lists as JSON, nothing for None."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _attributes(value, f"{parent}{key}/")
        elif isinstance(value, list):
            found[f"{parent}{key}"] = json.dumps(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            found[f"{parent}{key}"] = str(value)
        elif value is not None:
            found[f"{parent}{key}"] = value
    return {key: value for key, value in found.items() if not _is_too_much(value)}


def _is_too_much(value: object) -> bool:
    """Whether it is a text that HDF5 cannot hold as an attribute; the record has it anyway."""
    return isinstance(value, str) and (len(value) > _ATTRIBUTE_TEXT or "\0" in value)
