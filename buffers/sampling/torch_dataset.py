"""A replay as a dataset for PyTorch's DataLoader, for any number of worker processes."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..base.number_checks import check_whole
from ..storage.protocol import Storage
from .epoch import Epoch, check_shard
from .requests import BatchRequest, BatchT, Episodes, Request, check_request, require_request
from .tensors import ToTensors, load_torch

_MAX_WORKERS = 1024
_SECONDS_BETWEEN_LOOKS = 1.0


class _Replay(Protocol):
    """The part of a `SequenceReplayBuffer` that workers use."""

    @property
    def storage(self) -> Storage: ...

    @property
    def steps(self) -> int: ...

    def __len__(self) -> int: ...

    def sample(self, request: BatchRequest[BatchT], *, rng: np.random.Generator) -> BatchT: ...

    def epoch(
        self, request: BatchRequest[BatchT], *, stride: int, seed: int, shard: tuple[int, int]
    ) -> Epoch[BatchT]: ...

    def refresh(self) -> bool: ...


_Reopen = Callable[[], AbstractContextManager[_Replay]]


def torch_dataset(
    replay: _Replay,
    request: Request,
    *,
    reopen: _Reopen | None,
    seed: int = 0,
    epoch: bool = False,
    shard: tuple[int, int] = (0, 1),
    stride: int = 1,
) -> Any:
    """The dataset of `SequenceReplayBuffer.torch_dataset`, which documents the arguments."""
    # Worker processes get the replay's folder, not its data: each opens the store read-only and,
    # unless ``epoch``, refreshes it once a second. A replay in RAM can only be forked; the workers
    # see the rows stored at that moment. Without workers the replay itself is used.
    # Every worker of every shard has its own generator, seeded with the seed and the numbers of
    # shard, worker and pass: passes differ, and a second run of the program draws the same batches.
    dataset_class = _dataset_class()
    require_request(request)
    check_request(request)
    draw = "episodes" if isinstance(request, Episodes) else request.draw
    if draw in ("newest", "priorities") and not epoch:
        raise ValueError(
            f"draw={draw!r}: expected a mode without state, which workers cannot share; use "
            f"replay.loader"
        )
    check_shard(shard)
    check_whole("stride", stride, 1)
    check_whole("seed", seed, 0)
    if stride != 1 and not epoch:
        raise ValueError(f"stride: expected 1 without epoch=True, got {stride}; leave it out")
    return dataset_class(_Draws(replay, reopen, request, seed, epoch, shard, stride))


@dataclass(eq=False)
class _Draws:
    """Makes the batches of a worker, in any process."""

    replay: _Replay | None
    reopen: _Reopen | None  # opens its folder in another process; None where it has none
    request: Request
    seed: int
    epoch: bool
    shard: tuple[int, int]
    stride: int

    def __post_init__(self) -> None:
        assert self.replay is not None
        self._process = os.getpid()
        self._counts = self.replay.steps, len(self.replay)  # when the dataset was made
        torch = load_torch("torch_dataset")
        # Workers start and end with each pass, so their counters are in shared memory.
        self._passes = torch.zeros(_MAX_WORKERS, dtype=torch.int64).share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        if self.reopen is None:
            # A TypeError would make DataLoader emit an unrelated warning first.
            raise ValueError(
                "a replay in RAM cannot be sent to another process: expected one with a folder; "
                "give SequenceReplayBuffer a path, or DataLoader multiprocessing_context='fork', "
                "or use replay.loader"
            )
        return {**self.__dict__, "replay": None, "_process": 0}

    def batches(self, worker: int, workers: int) -> Iterator[Any]:
        """Begin a pass of one of the workers."""
        slot = worker % _MAX_WORKERS
        number = int(self._passes[slot])
        self._passes[slot] += 1  # now: perhaps no batch is ever taken
        make = self._epoch if self.epoch else self._endless
        return make(worker, workers, number)

    def _endless(self, worker: int, workers: int, number: int) -> Iterator[Any]:
        to_tensors = ToTensors()
        rng = np.random.default_rng([self.seed, self.shard[0], worker, number])
        with self._opened() as replay:
            follows = replay is not self.replay
            looked = time.monotonic()
            while True:
                if follows and time.monotonic() - looked >= _SECONDS_BETWEEN_LOOKS:
                    replay.refresh()
                    looked = time.monotonic()
                yield to_tensors(replay.sample(self.request, rng=rng))

    def _epoch(self, worker: int, workers: int, number: int) -> Iterator[Any]:
        to_tensors = ToTensors()
        rank, ranks = self.shard
        with self._opened() as replay:
            self._check_unchanged(replay)
            epoch = replay.epoch(
                self.request,
                stride=self.stride,
                seed=self.seed,
                shard=(rank + ranks * worker, ranks * workers),
            )
            epoch.load_state_dict({**epoch.state_dict(), "pass": number})
            for batch in epoch:
                yield to_tensors(batch)

    def _opened(self) -> AbstractContextManager[_Replay]:
        """The replay in this process: the same object, reopened stores, or the forked copy."""
        if self.replay is not None and self._process == os.getpid():
            return nullcontext(self.replay)
        if self.reopen is not None:
            return self.reopen()
        assert self.replay is not None
        lock = self.replay.storage.lock
        if not lock.acquire(blocking=False):  # by a thread that is not in this process
            raise RuntimeError(
                "the replay was being used by another thread when this worker was forked: expected "
                "it to be unused; begin the pass while no thread writes or draws, or give the "
                "replay a folder"
            )
        lock.release()
        return nullcontext(self.replay)

    def _check_unchanged(self, replay: _Replay) -> None:
        """Refuse a replay that has changed: all workers must divide the same items."""
        there, then = (replay.steps, len(replay)), self._counts
        if there != then:
            raise ValueError(
                f"the replay has changed since the dataset was made: expected {then[1]:,} of "
                f"{then[0]:,} steps stored, got {there[1]:,} of {there[0]:,}; make a new "
                f"dataset when no process writes"
            )


@cache
def _dataset_class() -> Any:
    """The class of the datasets, made when PyTorch is first needed."""
    load_torch("torch_dataset")
    data = importlib.import_module("torch.utils.data")
    base: Any = data.IterableDataset

    class TorchDataset(base):
        """The dataset that `torch_dataset` returns."""

        def __init__(self, draws: _Draws) -> None:
            self._draws = draws

        def __iter__(self) -> Iterator[Any]:
            info = data.get_worker_info()
            return self._draws.batches(*((0, 1) if info is None else (info.id, info.num_workers)))

        def __reduce__(self) -> tuple[Any, tuple[_Draws]]:
            return _dataset, (self._draws,)

    return TorchDataset


def _dataset(draws: _Draws) -> Any:
    return _dataset_class()(draws)
