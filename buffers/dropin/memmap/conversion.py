"""Makes folders of Stepwell out of folders of memmap-replay-buffer."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.buffers.dropin.memmap.original import OriginalEpisode, OriginalFolder
from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer
from stepwell.buffers.dropin.memmap.transition_rows import RowNames, TransitionRows
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.storage.disk.publish import disk_bytes, publish

__all__ = ["ConversionReport", "convert", "convert_to_rows"]

_BATCH_BYTES: Final = 32 << 20
_BATCH_EPISODES: Final = 256

_Batch = list[OriginalEpisode]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """What a conversion did, or has done so far.

    Args:
        episodes: Episodes written; where flags end episodes within a stored one, as many more.
        steps: Env steps written.
        source_episodes: Whole episodes of the original.
        source_steps: Env steps of them.
        source_bytes: Bytes of the original's files.
        source_disk_bytes: Bytes of the disk that they take.
        disk_bytes: Bytes of the disk that the new files take; 0 before the end.
        seconds: Wall time.
        left_out: What was left out, or is doubtful, and why; one clause each.
        store: The folder of the store of rows, for `stepwell info` and SequenceReplayBuffer.open.
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


Progress = Callable[[ConversionReport], None]


def convert(
    original: OriginalFolder,
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> ConversionReport:
    """Store the episodes in a new folder for `memmap.ReplayBuffer`, made as the old one was.

    The folder appears when all is stored for good; until then it is in ``<target>.part``. After an
    error or Ctrl-C neither is there.

    Args:
        original: What to read.
        target: Where it goes: a new or an empty folder.
        progress: Called after every write with the report so far.

    Raises:
        ValueError: The target is in use, or the buffer does not take an episode.
        OSError: Something cannot be written.
    """
    config = original.config
    tally = _Tally(original, Path(target), progress)
    with publish(tally.target, "a conversion", outside=original.path) as part:
        buffer = ReplayBuffer(
            part,
            max_episodes=config.max_episodes,
            max_timesteps=config.max_timesteps,
            fields={field.name: field.info for field in config.fields},
            meta_fields={field.name: field.info for field in config.meta_fields},
            circular=config.circular,
        )
        with contextlib.closing(buffer):
            for batch in _batches(original):
                buffer.store_episodes([{**e.fields, **e.metadata} for e in batch])
                tally.add(len(batch), sum(episode.steps for episode in batch))
            rows = buffer.replay.path
            assert rows is not None
            inner = rows.relative_to(part.resolve())
    return tally.finish(tally.target / inner)


def convert_to_rows(
    original: OriginalFolder,
    target: str | os.PathLike[str],
    names: RowNames,
    *,
    facts: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Store the episodes as rows of transitions: a store like one that a Collector wrote.

    Args:
        original: What to read.
        target: Where it goes, as in `convert`.
        names: What its fields are.
        facts: JSON-able facts to note with the rows.
        progress: Called after every write with the report so far.

    Raises:
        ValueError: The target is in use, or a field is not what it is to be.
        OSError: Something cannot be written.
    """
    rows = TransitionRows(original.config, names)
    tally = _Tally(original, Path(target), progress)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    origin = {"path": str(original.path), "episodes": len(original), "steps": original.steps}
    session: dict[str, object] = {
        **(facts or {}),
        "recipe": {"source": "memmap-replay-buffer"},
        "copied_from": [origin],
        "began": began,
    }
    with (
        publish(tally.target, "a conversion", outside=original.path) as part,
        SequenceReplayBuffer(part) as replay,
    ):
        replay.bind(rows.spec, session)
        for batch in _batches(original):
            chunks: list[Any] = []
            for episode in batch:
                first = replay.storage.table.next_episode + len(chunks)
                chunks += rows.chunks(episode, first)
            replay.add(chunks)
            tally.add(len(chunks), sum(episode.steps for episode in batch))
    return tally.finish(tally.target)


class _Tally:
    """Keeps count and tells."""

    def __init__(self, original: OriginalFolder, target: Path, progress: Progress | None) -> None:
        self.target = target
        self._progress = progress
        self._began = time.perf_counter()
        self._episodes = self._steps = 0
        self._known: dict[str, Any] = {
            "source_episodes": len(original),
            "source_steps": original.steps,
            "source_bytes": original.nbytes,
            "source_disk_bytes": original.disk_bytes,
            "left_out": original.left_out,
        }

    def add(self, episodes: int, steps: int) -> None:
        self._episodes += episodes
        self._steps += steps
        if self._progress is not None:
            self._progress(self._report(self.target))

    def finish(self, store: Path) -> ConversionReport:
        return self._report(store, disk_bytes=disk_bytes(self.target))

    def _report(self, store: Path, disk_bytes: int = 0) -> ConversionReport:
        return ConversionReport(
            episodes=self._episodes,
            steps=self._steps,
            seconds=time.perf_counter() - self._began,
            disk_bytes=disk_bytes,
            store=store,
            **self._known,
        )


def _batches(original: OriginalFolder) -> Iterator[_Batch]:
    """Episodes that are stored together."""
    batch: _Batch = []
    nbytes = 0
    for episode in original:
        batch.append(episode)
        nbytes += sum(array.nbytes for array in episode.fields.values())
        if nbytes >= _BATCH_BYTES or len(batch) >= _BATCH_EPISODES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
