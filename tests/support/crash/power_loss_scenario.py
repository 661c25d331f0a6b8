"""Stores whose writers are killed, or fail at a call, on a medium that loses power at any moment.

And again while they recover from that.
"""

from __future__ import annotations

import errno
import random
import shutil
from itertools import count
from pathlib import Path
from typing import NamedTuple

from stepwell.buffers import DiskStorage, StoreCorrupt, StoreFailed
from support.crash.crash_truth import (
    SHAPES,
    Plan,
    Shape,
    Truth,
    Wrong,
    must_succeed,
    require,
    store_flush,
    watched_commits,
)
from support.crash.disk_faults import Killed, NoSyncFiles
from support.crash.medium import Failure, Image, Medium, MediumFiles, restore

MEAN_CALLS = 60
"""System calls that a process makes before it is killed, on average."""
_IMAGE_CHANCE = 0.02
_MAX_DEPTH, _CHAIN_CHANCE = 3, 0.1
_FAILURES = (
    Failure(errno.ENOSPC),
    Failure(errno.ENOSPC, is_lasting=True),
    Failure(errno.ENOSPC, is_short=True),
    Failure(errno.EFBIG),
    Failure(errno.EIO),
    Failure(errno.EMFILE),
)


class Yield(NamedTuple):
    """Counts of what the images covered."""

    images: int = 0  # how many there were
    chunks: int = 0  # chunks that were stored before, summed over all images
    inside: int = 0  # losses that came inside of `add`
    extra: int = 0  # flushes under way that were found stored, all of them or a part
    recovered: int = 0  # stores that were found with something to drop or to heal
    # Losses of power in a store that had recovered from one before, or was recovering.
    again: int = 0
    kills: int = 0  # writers that were killed
    failures: int = 0  # writers of which a call failed

    def plus(self, other: Yield) -> Yield:
        return Yield(*(a + b for a, b in zip(self, other, strict=True)))


class Moment(NamedTuple):
    """A loss of power."""

    image: Image  # what it left
    truth: Truth  # what the store must hold
    is_made: bool  # `create` had returned
    is_clean: bool  # `close` had returned, and the store was not opened since
    depth: int  # losses of power before this one


def lose_power(seed: int, images: int, folder: Path) -> Yield:
    """Look at what losses of power leave of stores of all shapes."""
    # With the same seed and number of images it makes the very same run again. The message of a
    # `Wrong` has the seed of the store.
    total = Yield()
    for life in count():
        if total.images >= images:
            return total
        name, shape = f"{seed}-{life}", SHAPES[life % len(SHAPES)]
        try:
            total = total.plus(_life(name, shape, folder, images - total.images))
        except Wrong as error:
            raise Wrong(f"store {name}, {shape}: {error}") from error
    raise AssertionError


def _life(seed: str, shape: Shape, folder: Path, most: int) -> Yield:
    """A store, every loss of power that it suffers, and what follows from these."""
    rng = random.Random(seed)
    world = _World(folder / "world", rng, Moment({}, Truth(shape), False, False, -1))
    moments, total = world.run(), world.seen
    while moments and total.images < most:
        moment = moments.pop()
        try:
            total = total.plus(_look(moment, folder / "image"))
        except Wrong as error:
            raise Wrong(f"image {total.images} (of depth {moment.depth}): {error}") from error
        if moment.depth < _MAX_DEPTH and rng.random() < _CHAIN_CHANCE:
            world = _World(folder / "world", rng, moment)
            moments += world.run()
            total = total.plus(world.seen)
    return total


class _World:
    """One store from an image on: checks, more rows, and more losses of power."""

    def __init__(self, root: Path, rng: random.Random, start: Moment) -> None:
        restore(start.image, root)
        self._path = root / "store"
        self._medium = Medium(root)
        self._rng = rng
        self._truth = start.truth.copy()
        self._is_made, self._is_clean = start.is_made, start.is_clean
        self._depth = start.depth + 1
        self._may_lack_copies = False  # a failed sync takes copies with it that are no longer seen
        self._moments: list[Moment] = []
        self.seen = Yield()

    def run(self) -> list[Moment]:
        """Let some writers work, one after the other; the losses of power."""
        for session in range(self._rng.randint(1, 3)):
            # A third of the writers is not killed.
            mean = self._rng.choice((None, MEAN_CALLS, MEAN_CALLS))
            fatal_call = mean and int(self._rng.expovariate(1 / mean))
            faults: list[tuple[int | None, int | None, Failure | None]] = [
                (None, None, None),
                (self._rng.randrange(8), None, None),
                (None, int(self._rng.expovariate(1 / MEAN_CALLS)), self._rng.choice(_FAILURES)),
            ]
            fault = self._rng.choice(faults)
            files = MediumFiles(self._medium, self._watch, self._rng, fatal_call, *fault)
            try:
                self._write(session, files)
                require(not files.failed or files.is_retried, f"{files.failed} failed, unnoticed")
            except Killed:
                self.seen = self.seen.plus(Yield(kills=1))
            except StoreCorrupt as error:
                raise Wrong(f"session {session}: {error}") from error
            except (StoreFailed, OSError) as error:
                require(bool(files.failed), f"the writer failed: {error!r}")
                self.seen = self.seen.plus(Yield(failures=1))
                self._may_lack_copies |= files.failed == "fdatasync"
            finally:
                files.close_all()
            self._compare_what_is_left()
        self._note()
        return self._moments

    def _watch(self) -> None:
        if self._rng.random() < _IMAGE_CHANCE:
            self._note()
        self._is_clean = False

    def _note(self) -> None:
        image = self._medium.image(self._rng)
        truth = self._truth.copy()
        self._moments.append(Moment(image, truth, self._is_made, self._is_clean, self._depth))

    def _write(self, session: int, files: MediumFiles) -> None:
        truth = self._truth
        if DiskStorage.exists(self._path):
            storage = DiskStorage.open(self._path, files=files)
        else:
            storage = truth.shape.create(self._path, files)
        self._is_made = True
        truth.settle(storage)
        plan = Plan((self._rng.random(), session), storage.index.next_episode)
        try:
            for _ in range(1 + int(self._rng.expovariate(1 / 5))):
                truth.begin(flush := plan.flush())
                with watched_commits(truth.parts):
                    store_flush(storage, flush)
                truth.end()
                if self._rng.random() < 0.1:
                    storage.append_session({"note": "of a length that the next one may lack"})
        except OSError as error:
            raise Wrong(f"expected StoreFailed, got {error!r}") from error
        except StoreFailed:
            files.cure()
            self._look_at_poisoned(storage, plan)
            raise
        if self._rng.random() < 0.7:
            storage.close()
            self._is_clean = not self._may_lack_copies

    def _look_at_poisoned(self, storage: DiskStorage, plan: Plan) -> None:
        """It still gives out what is stored, and takes nothing more."""
        with must_succeed("reading after the failure"):
            self._truth.compare(storage)
        for _ in range(2):
            try:
                storage.add(Plan("other", plan.next_episode).flush())
            except StoreFailed as error:
                require("then open the store again" in str(error), error)
            else:
                raise Wrong("the writer goes on after a failure")

    def _compare_what_is_left(self) -> None:
        """A reader finds in the folder what a process that ended has left there."""
        if not DiskStorage.exists(self._path):
            require(not self._is_made, "the manifest is gone")
            return
        with must_succeed("reading"):
            with DiskStorage.open(self._path, read_only=True, files=NoSyncFiles()) as reader:
                self._truth.compare(reader)


def _look(moment: Moment, root: Path) -> Yield:
    """Open an image as a reader and as a writer, add an episode, open it again."""
    restore(moment.image, root)
    path, truth, files = root / "store", moment.truth.copy(), NoSyncFiles()
    seen = Yield(1, len(truth.stored), bool(truth.parts), 0, 0, moment.depth > 0)
    before = len(truth.stored)
    if DiskStorage.exists(path):
        with must_succeed("reading"), DiskStorage.open(path, read_only=True, files=files) as reader:
            truth.compare(reader)
            recovery = reader.recovery
            require(not (moment.is_clean and any(recovery)), f"closed, but left {recovery}")
        with must_succeed("opening to write"), DiskStorage.open(path, files=files) as storage:
            require(storage.recovery == recovery, f"{storage.recovery}, a reader saw {recovery}")
            truth.settle(storage)
            seen = seen._replace(recovered=any(recovery), extra=len(truth.stored) > before)
            path = _add_one(truth, storage)
    else:
        require(not moment.is_made, "the manifest is gone")
        with must_succeed("making it anew"), truth.shape.create(path, files) as storage:
            path = _add_one(truth, storage)
    is_closed = path.name == "store"
    with (
        must_succeed("opening again"),
        DiskStorage.open(path, read_only=True, files=files) as reader,
    ):
        truth.compare(reader)
        require(not (is_closed and any(reader.recovery)), f"closed, but left {reader.recovery}")
    shutil.rmtree(root)
    return seen


def _add_one(truth: Truth, storage: DiskStorage) -> Path:
    """The store is of use again; the folder to open next."""
    # Half the time that is a copy as kill -9 would leave it.
    truth.begin(flush := Plan("new", storage.index.next_episode).flush())
    store_flush(storage, flush)
    truth.end()
    if len(truth.stored) % 2:
        return storage.path
    return Path(shutil.copytree(storage.path, storage.path.with_name("killed")))
