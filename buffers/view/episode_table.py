"""The episodes of a storage as columns, to be sorted, selected and counted."""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from ..base.errors import NotEnoughData
from ..base.untrusted_json import MOST
from ..curation.selection import SORT_NAMES, Choice, EpisodeSelection, number_of
from ..curation.stored_episode import StoredEpisode
from ..rows.episode import End
from ..storage.chunk_codec import ChunkDecoder
from ..storage.episode_filter import Where, chooses
from ..storage.field_locator import DamagedChunk, RowCopier, read_chunks
from ..storage.protocol import Storage

_SLICE_ROWS, _SLICE_EPISODES = 1 << 18, 4_096  # read at once, while others wait for the lock
_SLICE_METADATA = 1_024
_REWARD_ROWS = 1 << 16  # as in `StoredEpisode.total_reward`, which adds up longer episodes itself
_MOST_EXACT = 2**53
_MOST_CACHED = 8  # columns of metadata
_MOST_KEYS, _MOST_KEY_CHARS, _SAMPLED_EPISODES = 256, 64, 64
_SORTED_CHARS = 256
_FINAL = int(End.TERMINATED | End.TRUNCATED)
_HAS_NO_ACTION = _FINAL | int(End.PENDING)  # in its last row
_MOST_PARTS = 16  # named in a message
_SHOWN_CHARS, _SHOWN_ITEMS = 200, 32
RANKS = ("best", "worst", "longest", "shortest", "first", "last")
_END_WORDS = ("cut", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Selected:
    """Episodes that a selection chose."""

    places: np.ndarray  # [n] in the table, in rising order
    sentence: str  # which were not ranked, and how to rank them; empty if all were


class EpisodeTable:
    """The episodes of a storage as columns [n], in the order of their ids."""

    # Each run of rows without a gap is an entry: an episode with a lost chunk in its middle is two.
    # An entry is known by its *place*, its index in every column. Places stay the same until
    # `refresh`, or `select` where it finds that chunks are gone.
    #
    # Returns need the rewards, so they are NaN until `read_returns` has read them; `select` and
    # `order` read those that they need. Every method holds the storage's lock; hold `lock` yourself
    # where several calls must see the same table, and while rows of an `episode` are read.

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lock = storage.lock
        self._copier = RowCopier(storage)
        self._decoder = ChunkDecoder(storage.spec)
        self._index = storage.index
        self._extent = (-1, 0, 0, 0)
        self._tails = self._firsts = np.zeros(0, np.int64)  # positions of last and first chunks
        self._is_known = np.zeros(0, np.bool_)
        # `first_rows` are 0, or the number of leading rows that are no longer stored; `rows` are
        # the stored ones, and a reset's row is no env step.
        self.ids = self.streams = self.first_rows = self.rows = self.steps = self._tails
        self.ends = self._tails  # `End` flags of the last rows, as int64
        self.returns = np.zeros(0)  # float64 sums of rewards; NaN while they are not known
        # The newest rows of their env, so that they may still grow unless they have ended.
        self.is_newest = np.zeros(0, np.bool_)
        # By a key of the metadata, or by a condition.
        self._facts: OrderedDict[Hashable, _Facts] = OrderedDict()
        self._keys: dict[str, None] = {}
        self._sampled = 0
        self.refresh()

    def __len__(self) -> int:
        return len(self.ids)

    def close(self) -> None:
        """Forget the memory of the store."""
        self._copier.close()

    @property
    def returns_known(self) -> int:
        """Number of episodes whose returns are known."""
        return int(np.count_nonzero(self._is_known))

    def refresh(self) -> bool:
        """Follow the storage; True if the table changed, so that places are others."""
        # What is known of unchanged episodes is kept. To see the chunks of another process, call
        # `refresh` of the storage first.
        with self.lock:
            if self._is_current:
                return False
            is_other = self.storage.generation != self._extent[0]
            self._index, self._extent = self.storage.index, _extent_of(self.storage)
            self._read_index(is_other=is_other)
            return True

    def _read_index(self, *, is_other: bool) -> None:
        """Make the columns; positions are those of before unless ``is_other``."""
        base, records = self._index.base, self._index.records
        is_lost = records["end"] & int(End.LOST) != 0
        tails = np.flatnonzero((records["is_tail"] == 1) & ~is_lost)
        firsts = np.flatnonzero((records["previous"] < base) & ~is_lost)
        tails = tails[_order_of_runs(records, tails)]
        # Of each run the two have the same id, head and stream.
        firsts = firsts[_order_of_runs(records, firsts)]
        was = self._tails, self._firsts, self.rows
        self._tails, self._firsts = tails + base, firsts + base
        self.ids, self.streams = records["episode"][tails], records["stream"][tails]
        self.first_rows = records["head"][tails]
        self.rows = records["first_row"][tails] + records["rows"][tails] - self.first_rows
        self.steps = np.maximum(0, self.rows - (self.first_rows == 0))
        self.ends = records["end"][tails] & ~int(End.LOST)
        self.is_newest = _are_newest(self.streams, tails)
        known, returns, facts = self._is_known, self.returns, self._facts
        self._is_known = np.zeros(len(tails), np.bool_)
        self.returns = np.full(len(tails), np.nan)
        self._facts = OrderedDict()
        if is_other:
            self._keys, self._sampled = {}, 0
            return
        now, before = _same(self._tails, was[0])
        is_same = (self._firsts[now] == was[1][before]) & (self.rows[now] == was[2][before])
        now, before = now[is_same], before[is_same]
        self._is_known[now], self.returns[now] = known[before], returns[before]
        # The metadata of an episode are those of its first chunk.
        now, before = _same(self._firsts, was[1])
        for key, old in facts.items():
            self._facts[key] = kept = _Facts.unread(len(tails), old.decide)
            kept.values[now], kept.is_read[now] = old.values[before], old.is_read[before]

    def read_returns(self, budget_rows: int = _SLICE_ROWS) -> bool:
        """Read some more returns, of at least one episode; True if more are to be read."""
        # Call it until it returns False, and again after each `refresh`.
        with self.lock:
            places = self._readable(np.flatnonzero(~self._is_known))
            if len(places):
                self._read(self._slice(places, budget_rows))
            return len(self._readable(np.flatnonzero(~self._is_known))) > 0

    def read_all_returns(self) -> None:
        """Read the returns of all episodes."""
        while self.read_returns() or (self.returns_known < len(self) and self.refresh()):
            pass

    def find(self, id: int, first_row: int | None = None) -> int:
        """The place of an episode: of the entry with ``first_row``, or of the first one."""
        with self.lock:
            stored = id if 0 <= id <= MOST else -1
            begin, stop = np.searchsorted(self.ids, [stored, stored + 1]).tolist()
            if begin == stop:
                raise KeyError(
                    f"episode {id} is not stored, expected one of {len(self)} episodes: it was "
                    f"evicted, or never there"
                )
            if first_row is None:
                return int(begin)
            firsts = self.first_rows[begin:stop].tolist()
            lasts = (self.first_rows[begin:stop] + self.rows[begin:stop] - 1).tolist()
            parts = list(zip(firsts, lasts, strict=True))
            for place, (first, last) in enumerate(parts, begin):
                if first <= first_row <= last:
                    return place
            held = ", ".join(f"{first} to {last}" for first, last in parts[:_MOST_PARTS])
            raise KeyError(f"episode {id}: expected a row among {held}, got {first_row}")

    def episode(self, place: int) -> StoredEpisode:
        """The episode at a place; hold `lock` while its rows are read."""
        with self.lock:
            self._check_stored(place)
            return StoredEpisode(self.storage, self._copier, int(self._tails[place]))

    def metadata(self, place: int) -> Mapping[str, object]:
        """JSON-able facts about the episode at a place, as they are stored; see `shown`."""
        with self.lock:
            self._check_stored(place)
            return self._copier.metadata(int(self._firsts[place]))

    def metadata_keys(self, limit: int = 32) -> list[str]:
        """Keys of the metadata with a number, a text or a bool, in the order of the alphabet."""
        # They are looked for in a bounded number of episodes, and in those whose metadata were read
        # anyway.
        with self.lock:
            if len(self) != self._sampled:
                self._sampled = len(self)
                spread = np.linspace(0, len(self) - 1, min(_SAMPLED_EPISODES, len(self)))
                for place in spread.astype(np.int64).tolist():
                    try:
                        self._note_keys(self._copier.metadata(int(self._firsts[place])))
                    except DamagedChunk as damaged:
                        if not self.storage.skips_corrupt:
                            raise damaged
            found = sorted(self._keys)[:limit]
            for key in found[: _MOST_CACHED // 2]:  # read with the first of them
                self._facts_of(key)
            return found

    def select(self, selection: EpisodeSelection) -> Selected:
        """Select episodes, as ``stepwell filter`` and `EpisodeSelection.choose` do."""
        # Reads the returns and the metadata that the selection needs.
        while True:
            with self.lock:  # released after each part that had to be read
                found = self._select(selection)
                if found is not None:
                    return found
                self.refresh()

    def order(self, places: np.ndarray, sort: str, *, descending: bool = False) -> np.ndarray:
        """Places [n] sorted by a column, ends by their word, or by a key of the metadata."""
        found: np.ndarray = places[order_of(self.column(sort, places), descending=descending)]
        return found

    def column(self, name: str, places: np.ndarray) -> np.ndarray:
        """Values [n] to sort some places by, for `order_of`: numbers, or facts of any type."""
        # Reads the returns or the metadata that are not known. Of a text the first 256 characters
        # count.
        with self.lock:
            columns = {
                "id": self.ids,
                "stream": self.streams,
                "first_row": self.first_rows,
                "rows": self.rows,
                "steps": self.steps,
                "end": _end_codes(self.ends),
            }
            if name == "return":
                while len(self._readable(places[~self._is_known[places]])):
                    self._need_returns(places)
                columns["return"] = self.returns
            if name in columns:
                return np.take(columns[name], places)
            facts = self._facts_of(name)
            while self._read_facts(facts, places):
                pass
            return np.take(facts.values, places)

    def as_stored(self, places: np.ndarray, *, is_written: bool) -> np.ndarray:
        """Places in the order of their last rows, without those that may still grow."""
        with self.lock:
            may_grow = self.is_newest[places] & (self.ends[places] & _FINAL == 0) & is_written
            found: np.ndarray = places[~may_grow]
            return np.take(found, np.argsort(self._tails[found], kind="stable"))

    def ranked(self, word: str, count: int) -> np.ndarray:
        """The places of the best, longest, ... episodes; of all where none came to its end."""
        every = np.arange(len(self))
        if word in ("first", "last"):
            return every[:count] if word == "first" else every[::-1][:count]
        is_top = word in ("best", "longest")
        sort = "return" if word in ("best", "worst") else "steps"
        for include_cut in (False, True):
            choice = EpisodeSelection(
                top=count if is_top else None,
                bottom=None if is_top else count,
                sort=sort,
                include_cut=include_cut,
            )
            places = self.select(choice).places
            if len(places):
                break
        return self.order(places, sort, descending=is_top)

    def action_rows(self, places: np.ndarray) -> np.ndarray:
        """Numbers [n] of the rows of some episodes that have an action."""
        found: np.ndarray = self.rows[places] - (self.ends[places] & _HAS_NO_ACTION != 0)
        return found

    def read_actions(self, places: np.ndarray, name: str, limit: int) -> np.ndarray:
        """Actions ``[rows, *shape]`` of some episodes, without last rows that have none."""
        # Some episodes that are spread evenly are read, if all of them have more than `limit` rows,
        # and none that is no longer stored as it was.
        with self.lock:
            while True:
                readable = self._readable(places)
                some = readable[_spread(self.action_rows(readable), limit)]
                rows = self.action_rows(some)
                try:
                    if len(some) == 1 and rows[0] > limit:
                        first = int(self.first_rows[some[0]])
                        episode = self.episode(int(some[0]))
                        return episode.read(first, first + limit, [name])[name]
                    found = self._rows_of(some, name)
                except DamagedChunk as damaged:
                    self._leave_out(damaged)
                    continue
                is_action = np.ones(len(found), np.bool_)
                is_action[(np.cumsum(self.rows[some]) - 1)[rows < self.rows[some]]] = False
                return found[is_action]

    @property
    def _is_current(self) -> bool:
        return self.storage.index is self._index and _extent_of(self.storage) == self._extent

    def _check_stored(self, place: int) -> None:
        if not len(self._readable(np.array([place]))):
            raise NotEnoughData(
                f"episode {int(self.ids[place])} was evicted or grew, expected one that is as it "
                f"was: refresh the table"
            )

    def _readable(self, places: np.ndarray) -> np.ndarray:
        """Those of some places whose rows are stored as they were at the last `refresh`."""
        if self._is_current:
            return places
        index = self.storage.index
        if self.storage.generation != self._extent[0]:
            return places[:0]
        places = places[self._firsts[places] >= index.base]
        last = index.at(self._tails[places] - index.base)
        rows = last["first_row"] + last["rows"] - last["head"]
        is_same = (last["head"] == self.first_rows[places]) & (rows == self.rows[places])
        found: np.ndarray = places[is_same & (last["end"] & int(End.LOST) == 0)]
        return found

    def _leave_out(self, damaged: DamagedChunk) -> None:
        """Leave out a damaged chunk if the storage skips such chunks; else raise."""
        if not self.storage.skips_corrupt:
            raise damaged
        self.storage.lose(damaged.position)

    def _slice(self, places: np.ndarray, rows: int) -> np.ndarray:
        """The first of some places, that have about so many rows."""
        ends = np.cumsum(self.rows[places[:_SLICE_EPISODES]])
        return places[: 1 + int(np.searchsorted(ends, rows))]

    def _read(self, places: np.ndarray) -> None:
        """Read the returns of some places, unless a chunk of them turns out to be damaged."""
        try:
            is_long = self.rows[places] > _REWARD_ROWS
            with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
                for place in places[is_long].tolist():
                    self.returns[place] = self.episode(place).total_reward
                    self._is_known[place] = True
                if len(short := places[~is_long]):
                    self.returns[short] = _sums(self._rows_of(short, "reward"), self.rows[short])
                    self._is_known[short] = True
        except DamagedChunk as damaged:
            self._leave_out(damaged)

    def _need_returns(self, places: np.ndarray) -> bool:
        """Read some of the returns of some places; True if all of them are known."""
        unknown = places[~self._is_known[places]]
        if len(readable := self._readable(unknown)):
            self._read(self._slice(readable, _SLICE_ROWS))
            unknown = unknown[~self._is_known[unknown]]
        return not len(unknown)

    def _rows_of(self, places: np.ndarray, name: str) -> np.ndarray:
        """The rows of one field of readable episodes, one after the other."""
        index = self.storage.index
        records, base = index.records, index.base
        at, run = self._tails[places] - base, np.arange(len(places))
        chunks, runs = [at], [run]
        while len(at):  # from the last chunks to the first ones
            previous = records["previous"][at]
            at, run = previous[previous >= base] - base, run[previous >= base]
            chunks.append(at)
            runs.append(run)
        found, run = np.concatenate(chunks), np.concatenate(runs)
        found = found[np.lexsort((found, run))]
        found = found[records["rows"][found] > 0]  # not where the only row was superseded
        return read_chunks(self.storage, self._decoder, found, name)

    def _select(self, selection: EpisodeSelection) -> Selected | None:
        """`select` once; None if some chunks that it needs are gone."""
        has_ended = self.ends & _FINAL != 0
        meets = _within(self.steps, selection.min_steps, selection.max_steps)
        if selection.ids is not None:
            meets &= _in_ranges(self.ids, selection.ids)
        if (wanted := selection.has_ended) is not None:
            meets &= has_ended == wanted
        places = np.flatnonzero(meets)
        if selection.where is not None:
            chosen = self._chosen(selection.where, places)
            if chosen is None:
                return None
            places = places[chosen]
        if selection.min_return is not None or selection.max_return is not None:
            if not self._need_returns(places):
                return None
            returns = self.returns[places]
            places = places[_within(returns, selection.min_return, selection.max_return)]
        not_whole = without_value = 0
        if selection.is_ranking:
            if not selection.include_cut:
                is_whole = has_ended[places] | (selection.has_ended is False)
                is_whole &= self.first_rows[places] == 0
                not_whole = len(places) - int(np.count_nonzero(is_whole))
                places = places[is_whole]
            ranked = self._ranked(selection, places)
            if ranked is None:
                return None
            without_value = len(places) - len(ranked)
            places = np.sort(ranked[: selection.count(len(ranked))])
        if selection.others:
            is_other = np.ones(len(self), np.bool_)
            is_other[places] = False
            places = np.flatnonzero(is_other)
        return Selected(places, Choice(bytearray(), not_whole, without_value).sentence)

    def _ranked(self, selection: EpisodeSelection, places: np.ndarray) -> np.ndarray | None:
        """Those of some places that have a value, the first one first; None as of `_select`."""
        name = selection.sort or "return"
        if name in SORT_NAMES:
            if name == "return" and not self._need_returns(places):
                return None
            column = {"return": self.returns, "steps": self.steps, "id": self.ids}[name]
            values = column[places]
            count = int(np.count_nonzero(~np.isnan(values)))
        else:
            facts = self._facts_of(name)
            self._read_facts(facts, places)
            if not facts.is_read[places].all():
                return None
            values = facts.values[places]
            count = sum(number_of(value) is not None for value in values.tolist())
        # Numbers come first, and only these have a rank.
        order = order_of(values, descending=selection.top is not None)
        ranked: np.ndarray = places[order[:count]]
        return ranked

    def _chosen(self, where: Where, places: np.ndarray) -> np.ndarray | None:
        """[n] bool: the condition holds for these; None as of `_select`."""
        key = _cache_key(where)
        if key is not None:
            facts = self._cached(key, lambda metadata: chooses(where, metadata))
            self._read_facts(facts, places)
        else:  # a function may say something else the next time
            facts = _Facts.unread(len(self), lambda metadata: chooses(where, metadata))
            while self._read_facts(facts, places):
                pass
        if not facts.is_read[places].all():
            return None
        verdicts: np.ndarray = facts.values[places].astype(np.bool_)
        return verdicts

    def _facts_of(self, key: str) -> _Facts:
        """The values of a key of the metadata; None for what is neither number nor text."""
        return self._cached(key, lambda metadata: _sortable(metadata.get(key)))

    def _cached(self, key: Hashable, decide: Callable[[Mapping[str, object]], object]) -> _Facts:
        if key not in self._facts:
            if len(self._facts) >= _MOST_CACHED:
                self._facts.popitem(last=False)
            self._facts[key] = _Facts.unread(len(self), decide)
        self._facts.move_to_end(key)
        return self._facts[key]

    def _read_facts(self, facts: _Facts, places: np.ndarray) -> bool:
        """Read the metadata of some places for these facts; True if more are to be read."""
        unread = self._readable(places[~facts.is_read[places]])
        others = [other for other in self._facts.values() if other is not facts]
        try:
            for place in unread[:_SLICE_METADATA].tolist():
                metadata = self._copier.metadata(int(self._firsts[place]))
                self._note_keys(metadata)
                for each in (facts, *others):
                    each.values[place] = each.decide(metadata)
                    each.is_read[place] = True
        except DamagedChunk as damaged:
            self._leave_out(damaged)
            return True
        return len(unread) > _SLICE_METADATA

    def _note_keys(self, metadata: Mapping[str, object]) -> None:
        """Remember the keys of plain values, of a bounded number."""
        for key, value in metadata.items():
            if key not in self._keys and len(self._keys) < _MOST_KEYS:
                if len(key) <= _MOST_KEY_CHARS and isinstance(value, str | int | float):
                    self._keys[key] = None


@dataclass(frozen=True, slots=True)
class _Facts:
    """One fact of each episode's metadata, read when it is first asked for."""

    values: np.ndarray  # [n] facts, of any type
    is_read: np.ndarray  # [n] bool
    decide: Callable[[Mapping[str, object]], object]  # the fact of some metadata

    @classmethod
    def unread(cls, count: int, decide: Callable[[Mapping[str, object]], object]) -> _Facts:
        """Facts of so many episodes, none of which were read."""
        return cls(np.full(count, None, np.object_), np.zeros(count, np.bool_), decide)


def _spread(rows: np.ndarray, limit: int) -> np.ndarray:
    """Indices of episodes, evenly spread, that together have ``limit`` rows at most, or of one."""
    some = np.flatnonzero(rows > 0)
    if rows[some].sum() <= limit:
        return some
    # Fractional parts of golden multiples are spread evenly, however many of them are taken.
    spread = np.arange(len(some)) * ((math.sqrt(5) - 1) / 2) % 1.0
    order = some[np.argsort(spread, kind="stable")]
    count = int(np.searchsorted(np.cumsum(rows[order]), limit, side="right"))
    return np.sort(order[: max(1, count)])


def shown(value: object, depth: int = 3) -> object:
    """A fact of a store as plain JSON of a bounded size, for a page."""
    # Of lists and mappings 32 entries are kept, of texts 200 characters; what is nested deeper is
    # replaced by its size. Numbers that a browser cannot hold exactly, NaN and infinity become
    # texts.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) <= _MOST_EXACT:
            return value
        return str(value) if value.bit_length() <= _SHOWN_CHARS else "a number of many digits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        pairs = list(cast("Mapping[object, object]", value).items())
        if depth <= 0:
            return f"{{{len(pairs)}}}"
        found = {_cut(str(key)): shown(each, depth - 1) for key, each in pairs[:_SHOWN_ITEMS]}
        more = len(pairs) - len(found)
        return {**found, "…": f"{more} more"} if more > 0 else found
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        if depth <= 0:
            return f"[{len(items)}]"
        more = len(items) - _SHOWN_ITEMS
        rest = [f"… {more} more"] if more > 0 else []
        return [*(shown(each, depth - 1) for each in items[:_SHOWN_ITEMS]), *rest]
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _extent_of(storage: Storage) -> tuple[int, int, int, int]:
    index = storage.index
    return storage.generation, index.losses, index.base, len(index)


def _order_of_runs(records: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """The order of chunks, one of each run of rows: by id, then by the run's first row."""
    names = ("stream", "head", "episode")
    return np.lexsort([records[name][chunks] for name in names])


def _are_newest(streams: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Flags [n], bool: the chunk is the newest of its stream; ``tails`` are places in the index."""
    order = np.lexsort((tails, streams))
    is_last = np.ones(len(tails), np.bool_)
    is_last[order[:-1]] = streams[order[1:]] != streams[order[:-1]]
    return is_last


def _same(now: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the numbers in both of two arrays of different numbers, in each of them."""
    _, index, others = np.intersect1d(now, before, assume_unique=True, return_indices=True)
    return index, others


def _sums(rewards: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The sums [n] of consecutive parts with so many rows [n] each, as `StoredEpisode` adds up."""
    stops, numbers = np.cumsum(rows), rewards.astype(np.float64, copy=False)
    if np.abs(numbers).sum() < _MOST_EXACT and (np.rint(numbers) == numbers).all():
        # Exact in any order: the usual case, and many times as fast.
        return np.add.reduceat(numbers, stops - rows)
    pairs = zip((stops - rows).tolist(), stops.tolist(), strict=True)
    return np.array([float(rewards[start:stop].sum()) for start, stop in pairs])


def _in_ranges(ids: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """[n] bool: the id is in one of the ranges."""
    found = np.zeros(len(ids), np.bool_)
    for each in ranges:
        if each.step == 1:
            found |= (ids >= each.start) & (ids < each.stop)
        else:
            found |= np.array([number in each for number in ids.tolist()], np.bool_)
    return found


def _within(values: np.ndarray, least: float | None, most: float | None) -> np.ndarray:
    """[n] bool: the value is in a range with both ends; compared exactly."""
    found = np.ones(len(values), np.bool_)
    for end, compare in ((least, operator.ge), (most, operator.le)):
        if end is None:
            continue
        if type(end) is float or (type(end) is int and abs(end) <= _MOST_EXACT):
            found &= compare(values, end)
        else:  # numpy would round it, and compare some numbers in fewer bits
            found &= np.array([bool(compare(one, end)) for one in values.tolist()], np.bool_)
    return found


def _cache_key(where: Where) -> Hashable | None:
    """A key for a condition that always says the same; None for others."""
    if not isinstance(where, Mapping):
        return None
    pairs = list(where.items())
    plain = (str, int, float, bool, type(None))
    if all(type(key) is str and type(value) in plain for key, value in pairs):
        return tuple((key, type(value), value) for key, value in pairs)
    return None


def _sortable(value: object) -> str | int | float | None:
    """A value of the metadata as it is sorted by; None for what is neither number nor text."""
    if isinstance(value, str):
        return value[:_SORTED_CHARS]
    return value if isinstance(value, int | float) else None


def order_of(values: np.ndarray, *, descending: bool = False) -> np.ndarray:
    """The order [n] of numbers, or of facts: numbers, then texts, then NaN and the others."""
    # In both directions NaN and what is missing come last, and equal ones stay in their order.
    if values.dtype != np.object_:
        return np.argsort(-values if descending else values, kind="stable")
    facts = values.tolist()
    kinds: list[list[int]] = [[], [], []]  # numbers, texts, others
    for place, value in enumerate(facts):
        kind = 1 if isinstance(value, str) else 2 if number_of(value) is None else 0
        kinds[kind].append(place)
    for places in kinds[:2]:
        places.sort(key=facts.__getitem__, reverse=descending)
    return np.array([*chain.from_iterable(kinds)], np.int64)


def end_word(end: int) -> str:
    """``"terminated"``, ``"truncated"`` or ``"cut"``, for the `End` flags of a last row."""
    return _END_WORDS[int(_end_codes(np.array([int(end)]))[0])]


def _end_codes(ends: np.ndarray) -> np.ndarray:
    """The number of the word of each end; the words are in the order of the alphabet."""
    is_terminated = ends & int(End.TERMINATED) != 0
    return np.where(is_terminated, 1, np.where(ends & int(End.TRUNCATED) != 0, 2, 0))
