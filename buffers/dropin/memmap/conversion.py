"""Converts folders of memmap-replay-buffer into folders for its drop-in."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.buffers.dropin.memmap.original import OriginalEpisode, OriginalFolder
from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer
from stepwell.buffers.progress import Progress, Status, episodes_status, progress_function
from stepwell.buffers.storage.disk.publish import disk_bytes, publish

__all__ = ["ConversionReport", "conversion_status", "convert"]

_BATCH_BYTES: Final = 32 << 20
_BATCH_EPISODES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """The result of a conversion, or its progress.

    Args:
        episodes: Episodes written.
        steps: Env steps written.
        source_episodes: Finished episodes of the original.
        source_steps: Env steps of them.
        source_bytes: Bytes of the original's files.
        source_disk_bytes: Bytes of disk that they take.
        disk_bytes: Bytes of disk that the new files take; 0 before the end.
        seconds: Wall time.
        left_out: Episodes that were left out or are doubtful, and why; one clause each.
        store: The folder of the rows, for `stepwell info` and `SequenceReplayBuffer.open`.
    """

    episodes: int = 0
    steps: int = 0
    source_episodes: int
    source_steps: int
    source_bytes: int
    source_disk_bytes: int
    disk_bytes: int = 0
    seconds: float = 0.0
    left_out: tuple[str, ...]
    store: Path

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "left_out": list(self.left_out), "store": str(self.store)}


def convert(
    original: OriginalFolder,
    target: str | os.PathLike[str],
    *,
    progress: Progress[ConversionReport] = None,
) -> ConversionReport:
    """Store the episodes in a new folder for `memmap.ReplayBuffer`, with the same arguments.

    Nothing is unpickled, and the original does not change. The target appears when it is complete
    and durable; until then it is ``<target>.part``. After an error or Ctrl-C neither exists.

    Args:
        original: The folder to read.
        target: A new or empty folder.
        progress: True shows a line in a terminal, a bar in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called after every write with the
            report so far.

    Raises:
        ValueError: The target is in use, or the buffer refuses an episode.
        StoreCorrupt: The original is damaged.
        OSError: Something cannot be written.
        TypeError: ``progress`` is neither True nor a function.
    """
    with progress_function(progress, conversion_status) as function:
        return _convert(original, _Counter(original, Path(target), function))


def conversion_status(report: ConversionReport) -> Status:
    """The progress of a conversion."""
    total = report.source_steps, report.source_episodes
    return episodes_status(report.steps, report.episodes, total, report.seconds)


def _convert(original: OriginalFolder, counter: _Counter) -> ConversionReport:
    config = original.config
    episodes = steps = 0
    with publish(counter.target, "a conversion", outside=original.path) as part:
        buffer = ReplayBuffer(
            part,
            max_episodes=config.max_episodes,
            max_timesteps=config.max_timesteps,
            fields={name: field.info for name, field in config.fields.items()},
            meta_fields={name: field.info for name, field in config.meta_fields.items()},
            circular=config.circular,
        )
        with contextlib.closing(buffer):
            for batch in _batches(original):
                buffer.store_episodes([{**e.fields, **e.metadata} for e in batch])
                episodes, steps = episodes + len(batch), steps + sum(e.steps for e in batch)
                counter.update(episodes, steps)
            rows = buffer.replay.path
            assert rows is not None
            store = counter.target / rows.relative_to(part.resolve())
    return counter.report(store, disk_bytes=disk_bytes(counter.target))


class _Counter:
    """Reports the progress.

    Args:
        original: The folder that is read.
        target: The new folder.
        progress: Called with each report, if given.
    """

    def __init__(
        self,
        original: OriginalFolder,
        target: Path,
        progress: Callable[[ConversionReport], None] | None,
    ) -> None:
        self.target = target
        self._progress = progress
        self._began = time.perf_counter()
        self._episodes = self._steps = 0
        self._source: dict[str, Any] = {
            "source_episodes": len(original),
            "source_steps": original.steps,
            "source_bytes": original.nbytes,
            "source_disk_bytes": original.disk_bytes,
            "left_out": original.left_out,
        }

    def update(self, episodes: int, steps: int) -> None:
        """Set the episodes and steps written so far."""
        self._episodes, self._steps = episodes, steps
        if self._progress is not None:
            self._progress(self.report(self.target))

    def report(self, store: Path, disk_bytes: int = 0) -> ConversionReport:
        """The report so far."""
        return ConversionReport(
            episodes=self._episodes,
            steps=self._steps,
            seconds=time.perf_counter() - self._began,
            disk_bytes=disk_bytes,
            store=store,
            **self._source,
        )


def _batches(original: OriginalFolder) -> Iterator[list[OriginalEpisode]]:
    """Episodes that are stored together."""
    batch: list[OriginalEpisode] = []
    nbytes = 0
    for episode in original:
        batch.append(episode)
        nbytes += sum(array.nbytes for array in episode.fields.values())
        if nbytes >= _BATCH_BYTES or len(batch) >= _BATCH_EPISODES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
