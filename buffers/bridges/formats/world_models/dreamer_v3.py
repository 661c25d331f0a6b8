"""The replay of DreamerV3 (Hafner et al., 2023): chains of npz files, one chain for each env."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stepwell.buffers.bridges.formats.format import Format, Reader, Source
from stepwell.buffers.bridges.formats.record import Beside, record_of
from stepwell.buffers.bridges.formats.world_models.dreamer_v3_chunks import Chains
from stepwell.buffers.bridges.formats.world_models.dreamer_v3_keys import Keys
from stepwell.buffers.bridges.formats.world_models.dreamer_v3_reading import (
    KEYS_FILE,
    ExportedChunks,
    ForeignChunks,
)
from stepwell.buffers.bridges.formats.world_models.pixel_episodes import Channels
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["DreamerV3Export", "DreamerV3Format", "DreamerV3Import"]


@dataclass(frozen=True, slots=True)
class DreamerV3Export:
    """Options for writing DreamerV3's chunks.

    Args:
        chunk: Rows of a file; what is not written yet of each stream waits in RAM.
        observation: Name of the array, where the observation is no Dict; none: image for
            pictures, vector for all else.
        channels: Where the channels of pictures are; none goes by the shape.
    """

    chunk: int = 1024
    observation: str | None = None
    channels: Channels | None = None


@dataclass(frozen=True, slots=True)
class DreamerV3Import:
    """Options for reading DreamerV3's chunks; a data set that Stepwell wrote needs none.

    Args:
        actions: Names of the arrays that are actions, with commas between them.
    """

    actions: str = "action"


class DreamerV3Format(Format):
    """``<time>-<chunk>-<next chunk>-<rows>.npz``: what came with each observation stands beside it.

    Each row has ``image`` (or ``vector``, or the keys of a Dict), ``reward`` float32, ``is_first``,
    ``is_last``, ``is_terminal``, ``stepid`` uint8 [20], and the ``action`` that was chosen from it;
    the last observation of an episode has a row, too. Each stream is a chain of files.
    """

    name: ClassVar[str] = "dreamerv3"
    about: ClassVar[str] = "what DreamerV3 loads as its replay; needs nothing but numpy"
    install: ClassVar[str | None] = None
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any]] = DreamerV3Export
    import_options: ClassVar[type[Any]] = DreamerV3Import

    def writer(self, source: Source, options: DreamerV3Export) -> _Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: DreamerV3Import) -> Reader:
        """Open a folder of chunks."""
        if not files.path.is_dir():
            raise FileNotFoundError(
                f"{files.path}: expected a folder of DreamerV3's, got no folder"
            )
        beside = Beside.found(files)
        if beside is None:
            return ForeignChunks(files, options.actions)
        return ExportedChunks(files, beside)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it among DreamerV3's sources."""
        return (
            "from embodied.core.replay import Replay  # in DreamerV3's folder\n"
            f'replay = Replay(length=64, directory="{path}")\n'
            "replay.load()"
        )


class _Writer:
    def __init__(self, source: Source, options: DreamerV3Export) -> None:
        if options.chunk < 1:
            raise ValueError(
                f"option chunk: expected a whole number of rows >= 1, got {options.chunk}"
            )
        self._source = source
        self._options = options
        self._keys = Keys(source.spec, options.observation, options.channels)
        self._chains = Chains(Path(), options.chunk, "")
        self._beside = Beside(Path())
        self._number = self._beheaded = 0

    @property
    def notes(self) -> Sequence[str]:
        found = [
            "there are no latents of DreamerV3's in it: run it with replay_context 0",
            *self._keys.notes,
        ]
        if self._beheaded:
            found.append(
                f"{self._beheaded:,} episodes lost their first rows: the first that is left has "
                f"is_first set"
            )
        return found

    def begin(self, path: Path) -> None:
        self._chains = Chains(path, self._options.chunk, record_of(self._source))
        self._beside = Beside(path / Beside.NAME)
        self._beside.begin(self._source)
        told = {"observation": self._options.observation, "channels": self._options.channels}
        (self._beside.folder / KEYS_FILE).write_text(json.dumps(told), encoding="utf-8")

    def write(self, episode: Episode) -> None:
        rows, beside = self._keys.rows_of(episode)
        self._chains.append(episode.stream, rows)
        self._beside.put(self._number, episode, beside)
        self._number += 1
        self._beheaded += episode.first_row > 0

    def finish(self) -> None:
        self._chains.finish()

    def close(self) -> None:
        pass
