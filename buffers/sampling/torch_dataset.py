"""A replay as a dataset of PyTorch's DataLoader, right with any number of worker processes."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepwell.buffers.sampling.requests import Episodes, Request
from stepwell.buffers.sampling.tensors import ToTensors, load_torch
from stepwell.buffers.storage.disk.storage import DiskStorage, OnCorrupt
from stepwell.buffers.storage.joined import JoinedStorage
from stepwell.buffers.storage.protocol import Storage

if TYPE_CHECKING:  # which imports this module
    from stepwell.buffers.replay import SequenceReplayBuffer

__all__ = ["torch_dataset"]

_MAX_WORKERS = 1024
_SECONDS_BETWEEN_LOOKS = 1.0


def torch_dataset(
    replay: SequenceReplayBuffer,
    request: Request,
    *,
    seed: int = 0,
    epoch: bool = False,
    shard: tuple[int, int] = (0, 1),
    stride: int = 1,
) -> Any:
    """A `torch.utils.data.IterableDataset` of batches of tensors.

    Give it to a ``DataLoader`` with ``batch_size=None``: the batches are whole already, of the same
    types as `SequenceReplayBuffer.sample` gives, with tensors in place of the arrays.

    Worker processes get the replay's folder, not its data: each opens the store read-only, and,
    unless ``epoch``, takes up once a second what was stored since. A replay in RAM can only be
    forked, and shows what it held then. Without workers the replay itself is used.

    Every worker of every shard has a generator of its own, seeded with ``[seed, number of the
    shard, number of the worker, number of the pass]``, so that passes differ, and a program that is
    run again gets the same batches.

    Args:
        replay: Where the batches come from.
        request: What to draw.
        seed: Seed of all draws and orders, >= 0.
        epoch: Give everything that is stored once, over all workers and shards together, and then
            end; the next pass comes in another order. By default draws never end.
        shard: Number of this share, from 0 on, and number of shares: with several processes that
            learn together, the rank and how many there are.
        stride: With ``epoch``, sequences that begin at every ``stride``-th row of their episode.

    Returns:
        The dataset. It can be pickled if the replay has a folder.

    Raises:
        ImportError: PyTorch is not installed.
        NotEnoughData: The replay is empty.
        ValueError: An argument is out of range, or the request draws what needs a memory that the
            workers do not share: ``"newest"`` or ``"priorities"``.
    """
    dataset_class = _dataset_class()
    _check(request, seed, epoch, shard, stride)
    plan = _Plan(request, seed, epoch, shard, stride, replay.steps, len(replay))
    return dataset_class(_Draws(replay, plan))


class _Plan(NamedTuple):
    """What is drawn, and how much was stored when that was settled."""

    request: Request
    seed: int
    epoch: bool
    shard: tuple[int, int]
    stride: int
    steps: int
    stored_steps: int


class _Stores(NamedTuple):
    """What it takes to open the replay's folders in another process."""

    folders: list[str]
    weights: list[float] | None
    on_corrupt: OnCorrupt

    @classmethod
    def of(cls, storage: Storage) -> _Stores | None:
        """Those of a storage; None where some of it is in RAM."""
        parts = storage.storages if isinstance(storage, JoinedStorage) else (storage,)
        folders = [os.path.abspath(part.path) for part in parts if isinstance(part, DiskStorage)]
        if len(folders) < len(parts):
            return None
        shares = storage.table.shares
        weights = None if shares is None else shares.weights.tolist()
        return cls(folders, weights, "skip" if storage.skips_corrupt else "raise")

    def open(self) -> SequenceReplayBuffer:
        """Open them to read; one thread, as there are several workers."""
        from stepwell.buffers.replay import SequenceReplayBuffer

        if len(self.folders) == 1 and self.weights is None:
            return SequenceReplayBuffer.open(
                self.folders[0], read_only=True, on_corrupt=self.on_corrupt, threads=1
            )
        return SequenceReplayBuffer.open(
            self.folders, weights=self.weights, on_corrupt=self.on_corrupt, threads=1
        )


class _Draws:
    """Makes the batches of a worker, in whatever process that is.

    Args:
        replay: Where they come from.
        plan: What they are.
    """

    def __init__(self, replay: SequenceReplayBuffer, plan: _Plan) -> None:
        self._replay: SequenceReplayBuffer | None = replay
        self._process = os.getpid()
        self._stores = _Stores.of(replay.storage)
        self._plan = plan
        torch = load_torch("torch_dataset")
        # Workers come and go with each pass: what they count, they count in shared memory.
        self._passes = torch.zeros(_MAX_WORKERS, dtype=torch.int64).share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        if self._stores is None:
            # A TypeError would have DataLoader warn of something else first.
            raise ValueError(
                "a replay in RAM cannot be sent to another process: expected one with a folder; "
                "give SequenceReplayBuffer a path, or DataLoader multiprocessing_context='fork', "
                "or use replay.loader"
            )
        return {**self.__dict__, "_replay": None, "_process": 0}

    def batches(self, worker: int, workers: int) -> Iterator[Any]:
        """Begin a pass of one of the workers."""
        slot = worker % _MAX_WORKERS
        number = int(self._passes[slot])
        self._passes[slot] += 1  # now, not when the first batch is taken, if ever
        make = self._epoch if self._plan.epoch else self._endless
        return make(worker, workers, number)

    def _endless(self, worker: int, workers: int, number: int) -> Iterator[Any]:
        plan, to_tensors = self._plan, ToTensors()
        rng = np.random.default_rng([plan.seed, plan.shard[0], worker, number])
        with self._opened() as replay:
            follows = replay is not self._replay
            looked = time.monotonic()
            while True:
                if follows and time.monotonic() - looked >= _SECONDS_BETWEEN_LOOKS:
                    replay.refresh()
                    looked = time.monotonic()
                yield to_tensors(replay.sample(plan.request, rng=rng))

    def _epoch(self, worker: int, workers: int, number: int) -> Iterator[Any]:
        plan, to_tensors = self._plan, ToTensors()
        rank, ranks = plan.shard
        with self._opened() as replay:
            self._check_unchanged(replay)
            epoch = replay.epoch(
                plan.request,
                stride=plan.stride,
                seed=plan.seed,
                shard=(rank + ranks * worker, ranks * workers),
            )
            epoch.load_state_dict({**epoch.state_dict(), "pass": number})
            for batch in epoch:
                yield to_tensors(batch)

    def _opened(self) -> AbstractContextManager[SequenceReplayBuffer]:
        """The replay in this process: itself, or its stores opened anew, or what was forked."""
        if self._replay is not None and self._process == os.getpid():
            return nullcontext(self._replay)
        if self._stores is not None:
            return self._stores.open()
        assert self._replay is not None
        lock = self._replay.storage.lock
        if not lock.acquire(blocking=False):  # by a thread that is not in this process
            raise RuntimeError(
                "the replay was being used by another thread when this worker was forked: expected "
                "it to be at rest; begin the pass while nobody writes or draws, or give the replay "
                "a folder"
            )
        lock.release()
        return nullcontext(self._replay)

    def _check_unchanged(self, replay: SequenceReplayBuffer) -> None:
        """All workers must divide the same items.

        Raises:
            ValueError: The replay holds something else than when the dataset was made.
        """
        there, then = (replay.steps, len(replay)), (self._plan.steps, self._plan.stored_steps)
        if there != then:
            raise ValueError(
                f"the replay has changed since the dataset was made: expected {then[1]:,} of "
                f"{then[0]:,} steps stored, got {there[1]:,} of {there[0]:,}; make a new dataset "
                f"when nobody writes"
            )


def _check(request: Request, seed: int, epoch: bool, shard: tuple[int, int], stride: int) -> None:
    """Refuse arguments that make no sense.

    Raises:
        ValueError: One does not.
    """
    draw = "episodes" if isinstance(request, Episodes) else request.draw
    if draw in ("newest", "priorities") and not epoch:
        raise ValueError(
            f"draw={draw!r}: expected a way of drawing that needs no memory, as the workers share "
            f"none; use replay.loader"
        )
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(
            f"shard: expected the number of a share, from 0 on, and the number of shares, got "
            f"{shard}"
        )
    if stride != 1 and not epoch:
        raise ValueError(f"stride: expected 1 without epoch=True, got {stride}; leave it out")
    if seed < 0:
        raise ValueError(f"seed: expected a whole number >= 0, got {seed}")


@cache
def _dataset_class() -> Any:
    """The class of the datasets, made when PyTorch is first needed.

    Raises:
        ImportError: PyTorch is not installed.
    """
    load_torch("torch_dataset")
    data = importlib.import_module("torch.utils.data")
    base: Any = data.IterableDataset

    class TorchDataset(base):  # type: ignore[misc]
        """What `torch_dataset` gives."""

        def __init__(self, draws: _Draws) -> None:
            self._draws = draws

        def __iter__(self) -> Iterator[Any]:
            info = data.get_worker_info()
            return self._draws.batches(*((0, 1) if info is None else (info.id, info.num_workers)))

        def __reduce__(self) -> tuple[Any, tuple[_Draws]]:
            return _dataset, (self._draws,)

    return TorchDataset


def _dataset(draws: _Draws) -> Any:
    """A dataset out of what was pickled of it."""
    return _dataset_class()(draws)
