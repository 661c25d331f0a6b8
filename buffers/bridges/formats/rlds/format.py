"""RLDS data sets, as TensorFlow Datasets (TFDS) read them, written and read without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

from stepwell.buffers.bridges.formats.format import Format, Reader, Source, Writer
from stepwell.buffers.bridges.formats.record import Beside
from stepwell.buffers.bridges.formats.rlds.example import encoded
from stepwell.buffers.bridges.formats.rlds.features import features_json
from stepwell.buffers.bridges.formats.rlds.reader import (
    EpisodeFeatures,
    ForeignRlds,
    OwnRlds,
    RldsImport,
    dataset_info,
)
from stepwell.buffers.bridges.formats.rlds.records import write_record
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["RldsExport", "RldsFormat", "RldsImport"]

_SPLIT: Final = "train"


@dataclass(frozen=True, slots=True)
class RldsExport:
    """Options for writing an RLDS data set.

    Args:
        name: What TFDS calls the data set: letters, digits and _.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        file_mb: Begin a new file when one has about so many megabytes.
    """

    name: str = "episodes"
    stack: bool = False
    file_mb: int = 256


class RldsFormat(Format):
    """TFRecord files, ``features.json`` and ``dataset_info.json``: an example for each episode.

    An episode of T env steps has T + 1 ``steps``: ``observation``, the ``action`` chosen from it,
    the ``reward`` and ``discount`` that this action brought, ``is_first``, ``is_last`` and
    ``is_terminal``; ``info/name`` came with the observation, ``extra/name`` with the action. The
    last step holds the *final* observation; its action, reward and discount say nothing and are 0.
    ``episode_metadata`` tells the stream, how the episode ended, and its metadata as JSON.
    """

    name: ClassVar[str] = "rlds"
    about: ClassVar[str] = "RLDS episodes of steps as TFDS reads them; needs no TensorFlow"
    install: ClassVar[str | None] = None
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any]] = RldsExport
    import_options: ClassVar[type[Any]] = RldsImport

    def writer(self, source: Source, options: RldsExport) -> Writer:
        """Get ready to write."""
        return _Writer(source, options)

    def reader(self, files: GivenFiles, options: RldsImport) -> Reader:
        """Open a folder of Stepwell's, or of anybody's."""
        info = dataset_info(files)
        beside = Beside.found(files)
        if beside is not None:
            return OwnRlds(files, info, beside)
        return ForeignRlds(files, info, options)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it."""
        return (
            "import tensorflow_datasets as tfds\n"
            f'episodes = tfds.builder_from_directory("{path}").as_dataset(split="{_SPLIT}")'
        )


class _Writer:
    def __init__(self, source: Source, options: RldsExport) -> None:
        if not options.name.isidentifier() or not options.name.isascii() or options.file_mb < 1:
            raise ValueError(
                f"options of format rlds: expected a name of letters, digits and _, and file_mb of "
                f"1 or more, got {options.name!r} and {options.file_mb}; give others"
            )
        self._source = source
        self._options = options
        self._features = EpisodeFeatures(source.spec, stack=options.stack)
        self._folder = Path()
        self._file: BinaryIO | None = None
        self._lengths: list[int] = []
        self._bytes = 0

    @property
    def notes(self) -> Sequence[str]:
        """What an RLDS user should know."""
        stacked = [f for f in self._source.spec.fields if f.stack > 1 and not self._options.stack]
        return (
            "the last step of an episode holds the final observation; its action, reward and "
            "discount say nothing",
            "an episode without is_terminal was truncated or cut: episode_metadata tells",
            *(
                f"{field.name} is one frame a step, of the env's stack of {field.stack}; option "
                f"stack=true writes stacks"
                for field in stacked
            ),
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        Beside(path / Beside.NAME).begin(self._source)
        tree = features_json(self._features.all)
        self._put("features.json", tree)
        self._open()

    def write(self, episode: Episode) -> None:
        record = encoded(self._features.values(episode))
        if self._file is not None and self._file.tell() >= self._options.file_mb * 1_000_000:
            self._open()
        assert self._file is not None
        write_record(self._file, record)
        self._lengths[-1] += 1
        self._bytes += len(record)

    def finish(self) -> None:
        self.close()
        count = len(self._lengths)
        for number in range(count):  # how many there are is part of their names
            self._part(number).rename(
                self._folder / f"{self._options.name}-{_SPLIT}.tfrecord-{number:05d}-of-{count:05d}"
            )
        split = {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": _SPLIT,
            "numBytes": str(self._bytes),
            "shardLengths": [str(length) for length in self._lengths],
        }
        info = {
            "description": "Episodes of steps, as RLDS has them, written by Stepwell.",
            "fileFormat": "tfrecord",
            "name": self._options.name,
            "splits": [split],
            "version": "1.0.0",
        }
        self._put("dataset_info.json", info)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> None:
        self.close()
        self._file = self._part(len(self._lengths)).open("xb")
        self._lengths.append(0)

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:05d}.part"

    def _put(self, name: str, data: dict[str, Any]) -> None:
        text = json.dumps(data, indent=4, sort_keys=True)
        (self._folder / name).write_text(text, encoding="utf-8")
