"""Writes chosen episodes of a store to a new store, and clips to temporary files."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np

from ...base.errors import StepwellError, StoreNotFound
from ...curation.copy import CopyReport, copy_episodes
from ...curation.selection import EpisodeSelection
from ...curation.stored_episode import StoredEpisode
from ...replay.replay import SequenceReplayBuffer
from ...storage.disk.storage import DiskStorage
from ..render import RenderReport
from .query import BadRequest
from .stores import OpenStore, ServedStore

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNFINISHED = ".part"  # the ending of a store that is being made
_MOST_WAITING, _MOST_JOBS = 8, 100
_STOP_SECONDS = 10.0


class _Stopped(Exception):
    """The server ends."""


@dataclass(slots=True)
class _Job:
    """One export."""

    id: int
    name: str
    target: Path
    store: ServedStore
    source_id: str  # of the store that is there now
    chosen: frozenset[tuple[int, int]]
    facts: dict[str, object]
    state: str = "waiting"
    error: str | None = None
    report: CopyReport = field(default_factory=CopyReport)

    def to_json(self) -> dict[str, object]:
        """The job as plain data."""
        return {
            "id": self.id,
            "name": self.name,
            "store": self.store.index,
            "path": str(self.target),
            "state": self.state,
            "error": self.error,
            "episodes": self.report.episodes,
            "chosen_episodes": len(self.chosen),
            "steps": self.report.steps,
            "chosen_steps": self.report.chosen_steps,
            "seconds": round(self.report.seconds, 3),
        }


class Exports:
    """Writes stores below one folder, one at a time; it never overwrites anything."""

    # The folder is made when it is first needed; None refuses all exports.

    def __init__(self, folder: Path | None, on_bug: Callable[[Exception], None]) -> None:
        self._on_bug = on_bug
        self.folder = None if folder is None else folder.absolute()
        self._jobs: deque[_Job] = deque(maxlen=_MOST_JOBS)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon, as a copy may hang for long: on a disk that does not answer, for instance.
        self._thread = threading.Thread(target=self._work, name="stepwell-view-export", daemon=True)
        self._made = 0

    def jobs(self) -> list[dict[str, object]]:
        """All exports, the newest first."""
        with self._lock:
            return [job.to_json() for job in reversed(self._jobs)]

    def begin(
        self,
        wanted: object,  # the name of the new store, unchecked
        store: ServedStore,
        opened: OpenStore,
        places: np.ndarray,  # in its table
        selection: EpisodeSelection,  # that chose them, noted in the new store
    ) -> dict[str, object]:
        """Begin an export, or let it wait for the one before."""
        name, target = self._target(wanted)
        if not len(places):
            raise BadRequest("filter: expected at least one episode, got none: choose others")
        # Places change when the table follows the writer, and the copy may have to wait: it knows
        # its episodes by their ids and first rows.
        ids, first_rows = opened.table.ids[places], opened.table.first_rows[places]
        chosen = frozenset(zip(ids.tolist(), first_rows.tolist(), strict=True))
        facts: dict[str, object] = {"command": "filter"}
        if conditions := selection.to_json():
            facts["conditions"] = conditions
        with self._lock:
            waiting = sum(job.state == "waiting" for job in self._jobs)
            if waiting >= _MOST_WAITING or self._is_stopping:
                raise BadRequest(f"expected at most {_MOST_WAITING} exports to wait: try it later")
            if any(job.name == name and job.state in ("waiting", "running") for job in self._jobs):
                raise BadRequest(f"name: {name} is being written already; choose another name")
            self._made += 1
            job = _Job(self._made, name, target, store, opened.id, chosen, facts)
            self._jobs.append(job)
            self._waiting.put(job)
            if self._thread.ident is None:
                self._thread.start()
            return job.to_json()

    def close(self) -> None:
        """Stop the export that runs, which leaves nothing, and those that wait."""
        with self._lock:
            self._is_stopping = True
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _target(self, name: object) -> tuple[str, Path]:
        """The checked name and the path of a new store."""
        if self.folder is None:
            raise BadRequest(
                "stepwell view was started without a folder for exports: --exports DIR"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadRequest(
                "name: expected up to 64 letters, digits, '.', '_' and '-', of which the first is "
                "a letter or a digit, got another name"
            )
        if name.endswith(_UNFINISHED):
            raise BadRequest(
                f"name: expected another ending than {_UNFINISHED}; choose another name"
            )
        target = self.folder / name
        if os.path.lexists(target):
            raise BadRequest(f"name: {target} is there already; choose another name")
        return name, target

    def _work(self) -> None:
        for job in iter(self._waiting.get, None):
            self._run(job)

    def _run(self, job: _Job) -> None:
        try:
            self._check()
            job.state = "running"
            self._copy(job)
        except _Stopped:
            job.state = "cancelled"
        except (StepwellError, OSError, ValueError, MemoryError) as error:
            job.state, job.error = "failed", " ".join(str(error).split())
        except Exception as error:
            job.state, job.error = "failed", "a bug in stepwell view: its terminal shows the error"
            self._on_bug(error)
        else:
            job.state = "done"

    def _copy(self, job: _Job) -> None:
        """Copy the episodes; if the server ends meanwhile nothing is left of the copy."""

        def is_chosen(episode: StoredEpisode) -> bool:
            self._check()
            return (episode.id, episode.first_row) in job.chosen

        def progress(report: CopyReport) -> None:
            job.report = report
            self._check()

        path = job.store.path
        # Opened again: what is shown grows meanwhile.
        with SequenceReplayBuffer.open(path, read_only=True, on_corrupt="skip") as source:
            storage = source.storage
            if not isinstance(storage, DiskStorage) or storage.store != job.source_id:
                raise StoreNotFound(f"{path} holds another store by now: look at it again")
            self._target(job.name)  # again: others may have made it
            with SequenceReplayBuffer(job.target) as target:
                job.report = copy_episodes(
                    source, target, keep=is_chosen, facts=job.facts, progress=progress
                )

    def _check(self) -> None:
        if self._is_stopping:
            raise _Stopped


_MOST_WAITING_CLIPS = 4
ClipMaker: TypeAlias = Callable[..., RenderReport]  # `render`, without the file and its progress


class Clips:
    """Writes clips to a folder of temporary files, one after the other."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stepwell-view-")
        self._pool = ThreadPoolExecutor(1, "stepwell-view-clip")
        self._waiting: set[Future[Path]] = set()
        self._is_closing = False

    def begin(self, make: ClipMaker, kind: str, is_gone: threading.Event) -> Future[Path]:
        """Begin to write a clip of that file ending; the caller removes the file."""
        # `is_gone` is set when nobody waits for it any more. If the clip cannot be made, the future
        # raises BadRequest.
        self._waiting = {each for each in self._waiting if not each.done()}
        if len(self._waiting) >= _MOST_WAITING_CLIPS or self._is_closing:
            raise BadRequest("other clips are being made: try again when they are done")
        work = self._pool.submit(self._write, make, kind, is_gone)
        self._waiting.add(work)
        return work

    def close(self) -> None:
        """Stop the one that is being made, and remove all files."""
        self._is_closing = True
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def _write(self, make: ClipMaker, kind: str, is_gone: threading.Event) -> Path:
        def check(done: int, total: int) -> None:
            if is_gone.is_set() or self._is_closing:
                raise BadRequest("nobody waits for this clip any more")

        check(0, 0)
        path = Path(self._folder.name) / f"{secrets.token_hex(8)}.{kind}"
        try:
            make(path, progress=check)
        except BadRequest:
            raise
        except (ValueError, ImportError) as error:
            raise BadRequest(str(error)) from error
        return path
