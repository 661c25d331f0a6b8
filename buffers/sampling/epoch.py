"""Epochs of offline learning: all stored items once, in batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, cast

import numpy as np

from ..base.errors import not_copied
from ..base.number_checks import check_whole, is_whole
from ..base.untrusted_json import whole
from .requests import BatchRequest, BatchT, Episodes, Request, require_request
from .sampler import Sampler


def check_shard(shard: Any) -> None:
    """Refuse what is not the number of a share and the number of shares."""
    is_pair = isinstance(shard, Sequence) and len(shard) == 2 and all(map(is_whole, shard))
    if not (is_pair and 0 <= shard[0] < shard[1]):
        raise ValueError(
            f"shard: expected the number of a share, from 0 on, and the number of shares, got "
            f"{shard}"
        )


class Epoch(Generic[BatchT]):
    """Iterates over every sequence, transition or episode once per pass.

    A pass covers the rows stored when it begins, whatever is added meanwhile. Each `for` loop
    continues where the previous one stopped; when a pass is complete, the next loop begins another
    one in a new order.

    Args:
        sampler: Makes the batches.
        request: The items; its ``draw`` and ``beta`` are ignored.
        stride: Take only sequences that begin at every ``stride``-th row of their episode.
        shuffle: Random order, determined by ``seed`` and the number of the pass; else oldest first.
        seed: Seed of the orders, and of relabelled goals.
        shard: Index of this share and number of shares: readers with different indices get disjoint
            items, the same in every pass.
        drop_last: Leave out the last batch of a pass where it is smaller.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> epoch = replay.epoch(sw.Transitions(32), seed=0)
        >>> len(epoch), sum(len(batch.ids) for batch in epoch) == len(replay)
        (4, True)
    """

    def __reduce__(self) -> NoReturn:
        not_copied(
            "an epoch", "make one with replay.epoch(...), and give it the other's state_dict()"
        )

    def __init__(
        self,
        sampler: Sampler,
        request: BatchRequest[BatchT],
        *,
        stride: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ) -> None:
        require_request(request)
        check_shard(shard)
        check_whole("stride", stride, 1)
        check_whole("seed", seed, 0)
        if stride > 1 and isinstance(request, Episodes):
            raise ValueError(f"stride: expected 1 for whole episodes, got {stride}; leave it out")
        self._process = os.getpid()
        self._sampler = sampler
        self._request = request
        self._batch_size = cast("Request", request).batch_size
        self._stride = stride
        self._shuffle = shuffle
        self._seed = seed
        self._shard = shard
        self._drop_last = drop_last
        self._pass = 0
        self._done = 0
        self._snapshot = sampler.snapshot(request, stride)

    def __repr__(self) -> str:
        return (
            f"Epoch({type(self._request).__name__}, batch_size={self._batch_size}, "
            f"items={self.items}, batches={len(self)}, number={self.number})"
        )

    @property
    def number(self) -> int:
        """Index of the current pass, from 0 on."""
        return self._pass

    @property
    def _total(self) -> int:
        """Items of all shares."""
        return self._snapshot.items.total

    @property
    def items(self) -> int:
        """Number of sequences, transitions or episodes of this share in the pass."""
        number, shares = self._shard
        return len(range(number, self._total, shares))

    def __len__(self) -> int:
        """Batches of a whole pass."""
        size = self._batch_size
        return self.items // size if self._drop_last else -(-self.items // size)

    def __iter__(self) -> Iterator[BatchT]:
        """The remaining batches of the pass.

        Raises:
            NotEnoughData: An item was evicted or lost since the pass began, or an episode of a
                pass over whole episodes was continued.
            RuntimeError: This process was forked from the one that made the epoch.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                f"the epoch was made in process {self._process}, which was forked: expected to be "
                f"read there, got process {os.getpid()}, which would get the same items; make an "
                f"epoch in each process, with shard=(number of the process, processes)"
            )
        self._begin()
        order, size = self._order(), self._batch_size
        while self._done < len(self) * size:
            numbers = order[self._done : self._done + size]
            seed = self._seed, self._pass, self._shard[0], self._done
            batch = self._sampler.take(self._request, self._snapshot, numbers, seed)
            self._done += size
            yield batch
        self._pass, self._done = self._pass + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch between two batches, JSON-able."""
        return {
            "pass": self._pass,
            "done": self._done,
            "total": self._total,
            "seed": self._seed,
            "shard": list(self._shard),
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the epoch of `state_dict` would have.

        Raises:
            ValueError: The state is that of other data, another share or another order.
        """
        mine = self.state_dict()
        told = {"shuffle": self._shuffle, **state}  # earlier versions do not tell it
        for name in ("total", "seed", "shard", "shuffle"):
            if told.get(name) != mine[name]:
                raise ValueError(
                    f"state: expected {name} {mine[name]}, got {told.get(name)}; load it into an "
                    f"epoch of the same data with the same arguments"
                )
        self._pass, self._done = (whole(told.get(name), name) for name in ("pass", "done"))

    def _begin(self) -> None:
        """Take a snapshot of the stored items where a pass begins."""
        if self._done >= len(self) * self._batch_size:
            self._pass, self._done = self._pass + (self._done > 0), 0
        if self._done == 0:
            self._snapshot = self._sampler.snapshot(self._request, self._stride)

    def _order(self) -> np.ndarray:
        """The numbers of this share's items, in the order of the pass."""
        # A share has the same items in every pass, so shares stay disjoint in different passes.
        number, shares = self._shard
        order = np.arange(number, self._total, shares)
        if self._shuffle:
            np.random.default_rng([self._seed, self._pass, number]).shuffle(order)
        return order
