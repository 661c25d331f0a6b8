"""Chooses items for a batch by the modes of `Draw`."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ..base import untrusted_json
from ..base.errors import NotEnoughData
from ..storage.chunk_index import ChunkIndex
from ..storage.episode_filter import EpisodeFilter
from ..storage.item_counts import EpisodeTails, ItemCounts, ItemKind, Shares, WholeEpisodes, Windows

_TRIES = 8
CountedDraw: TypeAlias = Literal["steps", "distinct", "episodes", "ends", "recent", "wholes"]


class ItemKinds(NamedTuple):
    """The kinds of items that a request can draw."""

    rows: int  # stored rows that an item needs
    every: Windows  # all items
    # items that reach an episode's end; None where the mode is not supported
    ends: EpisodeTails | None
    wholes: WholeEpisodes | None  # episodes that have an item; None where the mode is not supported
    # items that are returned once each; None where the mode is not supported
    newest: Windows | None


class Drawn(NamedTuple):
    """Chosen items."""

    # [B] index of a chunk that holds a row of the item, or of a later one of its episode
    chunk: np.ndarray
    start: np.ndarray  # [B] first row, counted in its episode or, across episodes, in its stream
    is_exact: bool = False  # the chunks hold the last of the rows that each item needs


class NewestQueue:
    """Remembers which of the newest items were returned."""

    def __init__(self) -> None:
        self._cursors: dict[Windows, tuple[int, int]] = {}

    def next(self, chunk_index: ChunkIndex, kinds: ItemKinds, count: int) -> Drawn:
        """At most ``count`` items that were not returned yet, the oldest first."""
        kind = kinds.newest
        assert kind is not None
        items, records = chunk_index.items(kind), chunk_index.records
        row_id, row = self._cursors.get(kind, (0, 0))
        index = int(np.searchsorted(records["row_id"], row_id))
        is_there = index < len(records) and records["row_id"][index] == row_id
        first = items.number_of(index, row) if is_there else items.before(index)
        return Drawn(*items.locate(np.arange(first, min(first + count, items.total))), True)

    def advance(self, index: ChunkIndex, kinds: ItemKinds, chosen: Drawn) -> None:
        """Record that the items of `next` were returned."""
        kind = kinds.newest
        assert kind is not None
        if len(chosen.start):
            last = int(index.records["row_id"][chosen.chunk[-1]])
            self._cursors[kind] = (last, int(chosen.start[-1]) + 1)

    def state(self) -> list[list[object]]:
        """The position in each kind of item, JSON-able."""
        return [[kind.to_json(), *cursor] for kind, cursor in self._cursors.items()]

    def restore(self, state: object) -> None:
        """Continue as the queue of `state` would have; an invalid state changes nothing."""
        entries = [
            untrusted_json.items(entry, "newest", 3)
            for entry in untrusted_json.items(state, "newest")
        ]
        self._cursors = {
            Windows.from_json(kind): (
                untrusted_json.whole(row_id, "newest: row id"),
                untrusted_json.whole(row, "newest: row"),
            )
            for kind, row_id, row in entries
        }


def draw_items(
    index: ChunkIndex,
    kinds: ItemKinds,
    draw: CountedDraw,
    count: int,
    chosen: EpisodeFilter | None,
    rng: np.random.Generator,
) -> Drawn:
    """Draw items by one of the stateless modes."""
    # The kind of items of which each, or with "recent" each pair, is equally likely.
    kind: ItemKind | None = kinds.every
    if draw == "ends":
        kind = kinds.ends
    elif draw in ("episodes", "wholes"):
        kind = kinds.wholes
    assert kind is not None, "a request across episodes cannot be drawn so"
    items = index.items(kind, chosen)
    total = items.total
    if total == 0:
        raise NotEnoughData(_shortage(index, kinds, draw, chosen))
    numbers: np.ndarray | None = None  # each is equally likely
    if draw == "distinct":
        numbers = _without_repeats(index, items, count, rng)
    elif index.shares is not None:
        _check_each(index.shares, items, kinds.rows, chosen)
        numbers = _draw_by(index.shares, items, draw == "recent", count, rng)
    elif draw == "recent":
        numbers = np.maximum(_uniform(rng, total, count), _uniform(rng, total, count))
    chunk, start = items.drawn(rng.random(count)) if numbers is None else items.locate(numbers)
    if draw == "episodes":
        records = index.at(chunk)
        stop = records["first_row"] + records["rows"] - kinds.every.length
        return Drawn(chunk, rng.integers(start, stop + 1))
    return Drawn(chunk, start, kind is kinds.every)


def _uniform(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    """Draw numbers below ``total``, uniform up to total / 2^53; takes a quarter of the time."""
    numbers: np.ndarray = (rng.random(count) * total).astype(np.int64)
    return numbers


def _without_repeats(
    index: ChunkIndex, items: ItemCounts, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw different items with equal probabilities."""
    if index.shares is not None:
        raise ValueError(
            'draw="distinct": expected one store, or several without weights, got weights; leave '
            "one of the two out"
        )
    if items.total < count:
        raise NotEnoughData(
            f'draw="distinct": expected at least {count} items to draw from, got {items.total}; '
            f"collect more, or lower batch_size"
        )
    # Where repeats are rare, drawing again until there are none takes a fifth of the time.
    for _ in range(_TRIES if count**2 < items.total else 0):
        numbers = _uniform(rng, items.total, count)
        if len(set(numbers.tolist())) == count:
            return numbers
    return rng.choice(items.total, count, replace=False)


def _draw_by(
    shares: Shares, items: ItemCounts, is_recent: bool, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose a store for each item by its weight, then one of its items."""
    low, high = items.limits(shares)
    stores = rng.choice(len(low), size=count, p=shares.weights / shares.weights.sum())
    numbers = rng.integers(low[stores], high[stores])
    if is_recent:
        numbers = np.maximum(numbers, rng.integers(low[stores], high[stores]))
    return numbers


def _check_each(shares: Shares, items: ItemCounts, rows: int, chosen: EpisodeFilter | None) -> None:
    """Refuse to draw from a store that has no item."""
    low, high = items.limits(shares)
    empty = np.flatnonzero((high == low) & (shares.weights > 0))
    if len(empty):
        raise NotEnoughData(
            f"store {empty[0]} of those that are drawn from by weights has no "
            f"{_episode_of(chosen)} of {rows} rows: expected one in each; give it weight 0, or "
            f"request a shorter length"
        )


def _shortage(
    index: ChunkIndex, kinds: ItemKinds, draw: CountedDraw, chosen: EpisodeFilter | None
) -> str:
    is_tail = index.records["is_tail"] == 1
    if chosen is not None:
        is_tail &= chosen.verdicts(index.base, len(index))
    tails = index.records[is_tail]
    rows = tails["first_row"] + tails["rows"] - tails["head"]
    longest = int(rows.max()) if len(rows) else 0
    ended = " that its env has ended" if draw == "ends" else ""
    return (
        f"no stored {_episode_of(chosen)}{ended} has {kinds.rows} rows: expected at least one, the "
        f"longest of {len(tails)} has {longest}; collect more, or request a shorter length"
    )


def _episode_of(chosen: EpisodeFilter | None) -> str:
    return "episode" if chosen is None else f"episode with {chosen}"
