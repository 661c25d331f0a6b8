"""Curves of a run while it goes on: for TensorBoard, Weights & Biases, or another writer."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from ...buffers.base.optional_libraries import load_library
from .report import EpisodeReport

if TYPE_CHECKING:
    from ...buffers import SequenceReplayBuffer

_SECONDS = 0.25  # between two writes
_MOST_POINTS = 100  # of episodes in a write
_TIMES_THE_COST = 100  # a write waits longer where the one before took long
_FILES = itertools.count()
_Put: TypeAlias = Callable[[int, Mapping[str, float]], object]  # x and values of a point


class Curves:
    """Writes points of the episodes that end, of the speed, and of the draws from the replay."""

    # ``log`` is that of `Collector`; with None nothing is written.

    def __init__(self, log: object, replay: SequenceReplayBuffer | None) -> None:
        self._replay = replay
        self._waiting: list[EpisodeReport] = []
        self._cost = 0.0
        self._ends = contextlib.ExitStack()
        self._flush: Callable[[], object] | None = None
        self._put: _Put | None = None if log is None else self._put_of(log)
        self.begin(0)

    def begin(self, steps: int) -> None:
        """Count on from so many steps; others that the replay has are those of an earlier run."""
        self._offset = 0 if self._replay is None else self._replay.steps - steps
        self._written, self._at, self._batches = 0.0, steps, self._drawn
        self._steps = steps

    def start(self) -> None:
        """The first step begins, if none has yet."""
        self._written = self._written or time.perf_counter()

    def counted(self, ended: Sequence[EpisodeReport], steps: int) -> None:
        """Note the episodes that have ended by a total of steps, and write what is due."""
        if self._put is None:
            return
        self._waiting += ended
        self._steps = steps
        self.start()
        if time.perf_counter() - self._written >= max(_SECONDS, _TIMES_THE_COST * self._cost):
            self._write()

    def flush(self) -> None:
        """Write at the end of a call, unless such calls follow each other at once."""
        if time.perf_counter() - self._written >= _TIMES_THE_COST * self._cost:
            self._write()

    def close(self) -> None:
        """Write the rest, and close what this object has opened."""
        try:
            self._write()
        finally:
            self._put = None
            with contextlib.suppress(OSError):  # of a file that could not be written before
                self._ends.close()

    @property
    def _drawn(self) -> int:
        return 0 if self._replay is None else self._replay.batches

    def _write(self) -> None:
        now, waiting, self._waiting = time.perf_counter(), self._waiting, []
        if self._put is None:
            return
        points = list(_points(waiting))
        at, drawn = self._steps, self._drawn
        if at > self._at:
            steps = at - self._at
            rates = {"time/steps_per_second": steps / (now - self._written)}
            if drawn:
                rates["replay/batches_per_step"] = (drawn - self._batches) / steps
                mean, largest = (
                    (0.0, 0.0) if self._replay is None else self._replay.priority_summary
                )
                if largest:
                    rates |= {"replay/mean_priority": mean, "replay/largest_priority": largest}
            points.append((at, rates))
        self._written, self._at, self._batches = now, at, drawn
        try:
            for at, values in points:
                self._put(at + self._offset, values)
            if points and self._flush is not None:
                self._flush()
        except OSError as error:
            self._put = None
            warnings.warn(
                f"log: the curves end here, as they could not be written: {error}; the run goes "
                f"on, and its rows are stored",
                RuntimeWarning,
                stacklevel=2,
            )
        self._cost = time.perf_counter() - now

    def _put_of(self, log: Any) -> _Put:
        """The function that writes a point."""
        if log == "wandb":
            wandb: Any = load_library("wandb", 'log="wandb"', install="wandb")
            if (log := wandb.run) is None:
                log = wandb.init()
                self._ends.callback(log.finish)
        if isinstance(log, str | os.PathLike) and log != "":
            return self._event_file(Path(log))
        if callable(add := getattr(log, "add_scalar", None)):
            self._flush = getattr(log, "flush", None)
            return lambda at, values: [add(tag, value, at) for tag, value in values.items()]
        # A logger of logging has a method of this name for messages.
        if callable(write := getattr(log, "log", None)) and not isinstance(log, logging.Logger):
            if define := getattr(log, "define_metric", None):  # W&B's own steps count its calls
                for tags in ("episode/*", "time/*", "replay/*"):
                    define(tags, step_metric="env_steps")
            return lambda at, values: write({**values, "env_steps": at})
        raise TypeError(
            f"log: expected a folder for TensorBoard, 'wandb', or an object with a method "
            f"add_scalar or log, got {log!r}; give one, as SummaryWriter or a run of W&B"
        )

    def _event_file(self, folder: Path) -> _Put:
        """A new file of TensorBoard, written without its thread, and without torch."""
        load = partial(load_library, wanted_for="log=", install="tensorboard")
        event = load("tensorboard.compat.proto.event_pb2").Event
        summary = load("tensorboard.compat.proto.summary_pb2").Summary
        writer = load("tensorboard.summary.writer.record_writer").RecordWriter
        owner = f"{os.uname().nodename}.{os.getpid()}.{next(_FILES)}"
        path = folder / f"events.out.tfevents.{int(time.time()):010}.{owner}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except OSError as error:
            raise ValueError(
                f"log: expected a folder for TensorBoard's files, got {str(folder)!r}: "
                f"{error.strerror}; name another"
            ) from error
        self._ends.callback(file.close)
        self._flush = file.flush
        records = writer(file)
        records.write(
            event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
        )
        file.flush()

        def put(at: int, values: Mapping[str, float]) -> None:
            scalars = [summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            point = event(wall_time=time.time(), step=at, summary=summary(value=scalars))
            records.write(point.SerializeToString())

        return put


def _points(ended: Sequence[EpisodeReport]) -> Iterator[tuple[int, dict[str, float]]]:
    """A point for the episodes that ended in one step, or in several where these are many."""
    steps = [list(group) for _, group in itertools.groupby(ended, lambda one: one.total_steps)]
    size = -(-len(steps) // _MOST_POINTS) or 1
    for i in range(0, len(steps), size):
        some = list(itertools.chain.from_iterable(steps[i : i + size]))
        returns = fmean(one.total_reward for one in some)
        lengths = fmean(one.steps for one in some)
        yield some[-1].total_steps, {"episode/return": returns, "episode/length": lengths}
