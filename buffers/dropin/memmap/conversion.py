"""Converts folders of memmap-replay-buffer into folders of Stepwell."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.curation.episode_writer import EpisodeWriter
from stepwell.buffers.dropin.memmap.config import Config, MemmapField, to_plain
from stepwell.buffers.dropin.memmap.original import OriginalEpisode, OriginalFolder
from stepwell.buffers.dropin.memmap.replay_buffer import ReplayBuffer
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Field, Spec, default_codec
from stepwell.buffers.storage.disk.publish import disk_bytes, publish

__all__ = ["ConversionReport", "RowFields", "convert_folder"]

_BATCH_BYTES: Final = 32 << 20
_BATCH_EPISODES: Final = 256
_SCALAR: Final = ((), (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFields:
    """The original's fields that become the fields of transitions.

    Args:
        observation: The observation that the action was chosen from.
        action: The action.
        reward: The reward that followed.
        terminated: 1 where the MDP ended with the step; None if there is no such field.
        truncated: 1 where a time limit ended the episode; None if there is no such field.
    """

    observation: str
    action: str
    reward: str
    terminated: str | None = None
    truncated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """The result of a conversion, or its progress.

    Args:
        episodes: Episodes written; more than were read if flags end episodes early.
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


def convert_folder(
    source: OriginalFolder | str | os.PathLike[str],
    target: str | os.PathLike[str],
    row_fields: RowFields | None = None,
    *,
    max_bytes: int | None = None,
    session: Mapping[str, object] | None = None,
    progress: Callable[[ConversionReport], None] | None = None,
) -> ConversionReport:
    """Convert a folder of memmap-replay-buffer. Nothing is unpickled, and the source never changes.

    Without ``row_fields`` the target is a folder for `memmap.ReplayBuffer` with the source's
    arguments. With them it is a store of transitions, like one that a Collector wrote: other fields
    of steps become ``extra/<name>`` and fields of episodes become the metadata. The source has no
    observation after an episode's last step, so the last row repeats the one before, and its
    ``info/observed`` is False. A step with a flag ends an episode; the steps after it start another.

    The target appears when it is complete and durable; until then it is ``<target>.part``. After
    an error or Ctrl-C neither exists.

    Args:
        source: The folder to read.
        target: A new or empty folder.
        row_fields: The fields of transitions; None for a folder like the source.
        max_bytes: Memory limit of one episode; None for half of the free memory.
        session: JSON-able facts to store with the rows; only with ``row_fields``.
        progress: Called after every write with the report so far.

    Raises:
        StoreNotFound: The source does not exist, or is of another kind.
        StoreCorrupt: The source is damaged.
        ValueError: The target is in use, or a field does not fit its purpose.
        OSError: Something cannot be written.
    """
    original = (
        source if isinstance(source, OriginalFolder) else OriginalFolder(source, max_bytes=max_bytes)
    )
    job = _Progress(original, Path(target), progress)
    if row_fields is None:
        with publish(job.target, "a conversion", outside=original.path) as part:
            store = job.target / _convert_to_buffer(original, part, job)
    else:
        rows = _TransitionRows(original.config, row_fields)
        facts = _session_of(original, session or {})
        with (
            publish(job.target, "a conversion", outside=original.path) as part,
            SequenceReplayBuffer(part) as replay,
        ):
            replay.bind(rows.spec, facts)
            rows.write(original, replay, job)
        store = job.target
    return job.report(store, disk_bytes=disk_bytes(job.target))


def _convert_to_buffer(original: OriginalFolder, part: Path, job: _Progress) -> Path:
    """Write a folder for `memmap.ReplayBuffer`; returns the path of the rows in it."""
    config = original.config
    buffer = ReplayBuffer(
        part,
        max_episodes=config.max_episodes,
        max_timesteps=config.max_timesteps,
        fields={name: field.info for name, field in config.fields.items()},
        meta_fields={name: field.info for name, field in config.meta_fields.items()},
        circular=config.circular,
    )
    episodes = steps = 0
    with contextlib.closing(buffer):
        for batch in _batches(original):
            buffer.store_episodes([{**e.fields, **e.metadata} for e in batch])
            episodes, steps = episodes + len(batch), steps + sum(e.steps for e in batch)
            job.update(episodes, steps)
        rows = buffer.replay.path
        assert rows is not None
        return rows.relative_to(part.resolve())


def _session_of(original: OriginalFolder, session: Mapping[str, object]) -> dict[str, object]:
    """The session of converted rows."""
    origin = {"path": str(original.path), "episodes": len(original), "steps": original.steps}
    return {
        **session,
        "recipe": {"source": "memmap-replay-buffer"},
        "copied_from": [origin],
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class _Progress:
    """Counts what was written, and reports it."""

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
        """Set what was written so far."""
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


class _TransitionRows:
    """Converts original episodes into rows of transitions.

    Args:
        config: The original's arguments.
        names: Its fields by purpose.

    Raises:
        ValueError: There is no such field, one has two purposes, or cannot have its own.
    """

    def __init__(self, config: Config, names: RowFields) -> None:
        fields = config.fields
        flags = {"terminated": names.terminated, "truncated": names.truncated}
        self._flags = {flag: name for flag, name in flags.items() if name is not None}
        main = {"observation": names.observation, "action": names.action, "reward": names.reward}
        _check_purposes(fields, main | self._flags)
        self._names = names
        used = {*main.values(), *self._flags.values()}
        self._extras = [name for name in fields if name not in used]
        self.spec = Spec(
            (
                _row_field("observation", fields[names.observation]),
                _row_field("action", fields[names.action]),
                Field("reward", "float64", (), "narrow"),
                Field("info/observed", "bool", (), "narrow"),
                *(_row_field(f"extra/{name}", fields[name]) for name in self._extras),
            ),
            "observation",
            "action",
        )

    def write(self, original: OriginalFolder, replay: SequenceReplayBuffer, job: _Progress) -> None:
        """Write all episodes.

        Args:
            original: The episodes.
            replay: The target, with the `spec`.
            job: Gets the progress.

        Raises:
            ValueError: A flag is neither 0 nor 1.
        """
        writer = EpisodeWriter(replay, lambda: job.update(writer.episodes, writer.steps))
        for episode in original:
            self._add(episode, writer)
        writer.flush()

    def _add(self, episode: OriginalEpisode, writer: EpisodeWriter) -> None:
        """Add an original episode: one episode, or more if flags end it before its last step."""
        flags = {flag: _flag(flag, name, episode) for flag, name in self._flags.items()}
        is_last = np.zeros(episode.steps, np.bool_)
        for values in flags.values():
            is_last |= values
        is_last[-1] = True
        metadata = {name: to_plain(value) for name, value in episode.metadata.items()}
        start = 0
        for last in np.flatnonzero(is_last).tolist():
            ends = {flag: bool(values[last]) for flag, values in flags.items()}
            writer.add_arrays(
                self._columns(episode.fields, slice(start, last + 1)),
                terminated=ends.get("terminated", False),
                truncated=ends.get("truncated", False),
                metadata=metadata,
            )
            start = last + 1

    def _columns(self, fields: Mapping[str, np.ndarray], steps: slice) -> dict[str, np.ndarray]:
        observation = fields[self._names.observation][steps]
        return {
            # One more than there are steps: the observation after the last action is unknown.
            "observation": np.concatenate([observation, observation[-1:]]),
            "info/observed": np.arange(len(observation) + 1) < len(observation),
            "action": fields[self._names.action][steps],
            "reward": fields[self._names.reward][steps].reshape(-1).astype(np.float64),
            **{f"extra/{name}": fields[name][steps] for name in self._extras},
        }


def _check_purposes(fields: Mapping[str, MemmapField], purposes: Mapping[str, str]) -> None:
    """Raise ValueError for an unknown field, one with two purposes, or one of a wrong shape."""
    used: dict[str, str] = {}
    for purpose, name in purposes.items():
        if name not in fields:
            raise ValueError(
                f"{purpose}: expected one of the fields {', '.join(fields)}, got {name!r}; name "
                f"another one"
            )
        if name in used:
            raise ValueError(
                f"{purpose}: expected another field than that of {used[name]}, got {name!r} for "
                f"both; name two"
            )
        used[name] = purpose
        if purpose not in ("observation", "action") and fields[name].shape not in _SCALAR:
            raise ValueError(
                f"{purpose}: expected a field of one number a step, got {name!r} of shape "
                f"{fields[name].shape}; name another one"
            )


def _row_field(name: str, field: MemmapField) -> Field:
    return Field(name, field.dtype.name, field.shape, default_codec(field.dtype, field.shape))


def _flag(purpose: str, name: str, episode: OriginalEpisode) -> np.ndarray:
    """A field [T] as bools."""
    values = episode.fields[name].reshape(-1)
    odd = values[(values != 0) & (values != 1)]
    if odd.size:
        raise ValueError(
            f"{purpose}: expected 0 or 1 in field {name!r} at every step, got {odd[0]} in slot "
            f"{episode.slot}; name a field that marks the ends"
        )
    flag: np.ndarray = values.astype(np.bool_)
    return flag


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
