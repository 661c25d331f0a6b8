"""What exports to IRIS and to DIAMOND have in common, and reading them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.bridges.formats.record import Beside
from stepwell.buffers.bridges.formats.world_models.pixel_episodes import (
    Channels,
    PixelColumns,
    PixelSteps,
)
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles

__all__ = ["ExportedPixels", "PixelSink", "PixelWriter"]

_PICTURE: Final = "picture.json"


class PixelSink(Protocol):
    """Where the steps of episodes are written to."""

    @property
    def notes(self) -> Sequence[str]:
        """What the new data set's user should know, a clause each."""
        ...

    def begin(self, path: Path) -> None:
        """Get ready in an empty folder."""
        ...

    def save(self, number: int, steps: PixelSteps, end: End) -> None:
        """Write an episode of one step or more.

        Args:
            number: It counts these episodes.
            steps: What was played.
            end: How it ended.
        """
        ...

    def finish(self) -> None:
        """Write what is left."""
        ...


class PixelWriter:
    """Writes episodes to a sink, and beside it what that has no place for.

    Args:
        source: What is written.
        whose: Whose format it is.
        observation: Which part of the observation is the picture; None where there is one.
        channels: Where the channels of its pictures are; None goes by the shape.
        usual: (C, H, W) that the format's own settings expect.
        sink: Where episodes go.

    Raises:
        ValueError: The rows cannot be written.
    """

    def __init__(
        self,
        source: Source,
        whose: str,
        observation: str | None,
        channels: Channels | None,
        usual: tuple[int, int, int],
        sink: PixelSink,
    ) -> None:
        self._source = source
        self._columns = PixelColumns(source.spec, whose, observation, channels)
        self._usual = usual
        self._sink = sink
        self._number = self._saved = 0
        self._beside = Beside(Path())

    @property
    def notes(self) -> Sequence[str]:
        """What the new data set's user should know, a clause each."""
        found = [*self._sink.notes, *self._columns.notes(self._usual)]
        if self._number > self._saved:
            found.append(f"{self._number - self._saved:,} episodes without a step are kept beside")
        return found

    def begin(self, path: Path) -> None:
        """Make the folders."""
        self._beside = Beside(path / Beside.NAME)
        self._beside.begin(self._source)
        columns = self._columns
        told = {"observation": columns.picture.name, "channels": columns.channels}
        (self._beside.folder / _PICTURE).write_text(json.dumps(told), encoding="utf-8")
        self._sink.begin(path)

    def write(self, episode: Episode) -> None:
        """Write an episode."""
        steps, beside = self._columns.steps_of(episode)
        if len(steps.actions):
            self._sink.save(self._saved, steps, episode.end)
            self._saved += 1
        self._beside.put(self._number, episode, beside)
        self._number += 1

    def finish(self) -> None:
        """Write what is left."""
        self._sink.finish()

    def close(self) -> None:
        """Nothing is open between two episodes."""


class ExportedPixels:
    """Reads what a `PixelWriter` wrote.

    Args:
        given: The data set.
        beside: What was kept beside.
        whose: Whose format it is.
        files: How many episodes are in its files.
        load: The steps of one of them, by its number.

    Raises:
        ValueError: What was kept beside is damaged.
    """

    def __init__(
        self,
        given: GivenFiles,
        beside: Beside,
        whose: str,
        files: int,
        load: Callable[[int], PixelSteps],
    ) -> None:
        self._given = given
        self._beside = beside
        self._files = files
        self._load = load
        record = beside.record()
        told = beside.told(_PICTURE)
        observation, channels = told.get("observation"), told.get("channels")
        if not isinstance(observation, str) or channels not in (None, "first", "last"):
            raise ValueError(
                f"{beside.folder / _PICTURE}: expected what Stepwell noted about the pictures, got "
                f"{str(told)[:200]}: remove {beside.folder} to read what is there"
            )
        self._columns = PixelColumns(record.spec, whose, observation, channels)
        self.spec = record.spec
        self.sessions = record.sessions
        self.notes: Sequence[str] = ()
        self.episodes = record.episodes
        self.steps = record.steps

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in their order."""
        written = 0
        for number in range(self.episodes or 0):
            room = self._given.room(f"{self._beside.folder.parent}: episode {number}")
            facts, arrays = self._beside.take(number, room)
            steps = None
            if facts["rows"] > 1:
                if written == self._files:
                    raise self._changed(f"more than {written:,}")
                steps = self._load(written)
                written += 1
            yield self._columns.episode(number, steps, facts, arrays)
        if written != self._files:
            raise self._changed(f"{written:,}")

    def close(self) -> None:
        """Nothing is open between two episodes."""

    def _changed(self, expected: str) -> ValueError:
        return ValueError(
            f"{self._beside.folder.parent}: expected {expected} episodes in files, as exported, "
            f"got {self._files:,}: the data set was changed since; remove {self._beside.folder} to "
            f"read what is there"
        )
