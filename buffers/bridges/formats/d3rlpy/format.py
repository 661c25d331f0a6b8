"""d3rlpy's own file, as ``ReplayBuffer.load`` reads it, written and read with h5py alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stepwell.buffers.bridges.formats.d3rlpy.columns import D3rlpyRows
from stepwell.buffers.bridges.formats.d3rlpy.reader import (
    COLUMNS,
    INSTALL,
    RECORD,
    VERSION,
    D3rlpyReader,
    quoted,
)
from stepwell.buffers.bridges.formats.format import Format, Reader, Source, Writer
from stepwell.buffers.bridges.formats.hdf5_columns import NewHdf5, put_column
from stepwell.buffers.bridges.formats.record import episode_facts, record_of
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.curation.step_columns import split
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["D3rlpyExport", "D3rlpyFormat", "D3rlpyImport"]


@dataclass(frozen=True, slots=True)
class D3rlpyExport:
    """Options for writing a d3rlpy file.

    Args:
        compress: Deflate the columns, which HDF5 undoes by itself.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames,
            of which d3rlpy's FrameStackTransitionPicker makes stacks.
        channels_first: Write images (H, W, C) of bytes as (C, H, W), as d3rlpy's networks want.
    """

    compress: bool = True
    stack: bool = False
    channels_first: bool = True


@dataclass(frozen=True, slots=True)
class D3rlpyImport:
    """Options for reading a d3rlpy file.

    Args:
        record: Make use of what Stepwell noted when it wrote the file; else read it as if somebody
            else had.
    """

    record: bool = True


class D3rlpyFormat(Format):
    """An HDF5 file of version 2.1: ``observations_0``, ``actions_0``, ``rewards_0``, ...

    What d3rlpy has no place for stands in the group ``stepwell``, which it passes over: the last
    observations of terminated episodes, infos, extras, streams, metadata, and the rewards that
    float32 rounds.
    """

    name: ClassVar[str] = "d3rlpy"
    about: ClassVar[str] = "a file that d3rlpy's ReplayBuffer.load reads, for offline learning"
    install: ClassVar[str | None] = INSTALL
    kind: ClassVar[Kind] = "file"
    export_options: ClassVar[type[Any]] = D3rlpyExport
    import_options: ClassVar[type[Any]] = D3rlpyImport

    def writer(self, source: Source, options: D3rlpyExport) -> Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: D3rlpyImport) -> Reader:
        """Open a file."""
        return D3rlpyReader(files, options.record)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it where d3rlpy is."""
        return (
            f"import d3rlpy\n"
            f'with open("{path}", "rb") as file:\n'
            f"    dataset = d3rlpy.dataset.ReplayBuffer.load(file, "
            f"d3rlpy.dataset.InfiniteBuffer())"
        )


class _Writer:
    def __init__(self, source: Source, options: D3rlpyExport) -> None:
        self._h5py = load_library("h5py", "format d3rlpy", install=INSTALL)
        self._source = source
        self._options = options
        self._rows = D3rlpyRows(source.spec, options.stack, options.channels_first)
        self._new: NewHdf5 | None = None
        self._file: Any = None
        self._number = 0
        self._rounded, self._largest = 0, 0.0
        self._lost = 0

    @property
    def notes(self) -> Sequence[str]:
        found = self._rows.notes()
        if self._rounded:
            found.append(
                f"rewards rounded to float32: {self._rounded:,}, by {self._largest:.3g} at most; "
                f"the file's record has them exactly"
            )
        if self._lost:
            found.append(
                f"last observations of terminated episodes are left out, {self._lost:,} in all, as "
                f"d3rlpy has no place for them: the file's record has them"
            )
        return found

    def begin(self, path: Path) -> None:
        self._new = NewHdf5(self._h5py, path)
        self._file = self._new.file
        self._file["columns"] = list(COLUMNS)
        self._file["version"] = VERSION
        self._file[f"{RECORD}/store"] = np.frombuffer(record_of(self._source).encode(), np.uint8)
        shown = {"stack": self._options.stack, "channels_first": self._options.channels_first}
        self._file[f"{RECORD}/shown"] = np.frombuffer(json.dumps(shown).encode(), np.uint8)

    def write(self, episode: Episode) -> None:
        columns = self._rows.columns(episode)
        number = self._number
        if isinstance(columns.observations, list):
            for place, part in enumerate(columns.observations):
                self._put(f"observations_{number}_{place}", part)
        else:
            self._put(f"observations_{number}", columns.observations)
        self._put(f"actions_{number}", columns.actions)
        self._put(f"rewards_{number}", columns.rewards)
        self._file[f"terminated_{number}"] = columns.terminated
        self._lost += columns.terminated
        for name, rows in self._beside(episode, columns.terminated).items():
            self._put(f"{RECORD}/{number}/{name}", rows)
        self._number += 1
        if self._new is not None:
            self._new.check()

    def finish(self) -> None:
        self._file["num_episodes"] = self._number
        self.close()

    def close(self) -> None:
        if self._new is not None:
            self._new.close()

    def _put(self, name: str, rows: np.ndarray) -> None:
        put_column(self._file, name, rows, self._options.compress)

    def _beside(self, episode: Episode, terminated: bool) -> dict[str, np.ndarray]:
        """What d3rlpy has no place for, by the names of datasets."""
        steps = split(episode)
        found = {"facts": np.frombuffer(json.dumps(episode_facts(episode)).encode(), np.uint8)}
        for name in (*steps.info, *steps.extra):
            found[f"rows/{quoted(name)}"] = episode.fields[name]
        for name in ("reward", *steps.action):
            if name in steps.edges:
                found[f"edges/{quoted(name)}"] = steps.edges[name]
        if terminated:
            for name, rows in steps.observation.items():
                found[f"last/{quoted(name)}"] = rows[-1:]
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = steps.reward.astype(np.float32).astype(np.float64)
            differs = rounded.view(np.uint64) != steps.reward.view(np.uint64)
            if differs.any():
                found["rewards"] = steps.reward
                self._rounded += int(differs.sum())
                largest = np.abs(rounded - steps.reward)[differs].max()
                self._largest = max(self._largest, float(largest))
        return found
