"""Transitions of one or several steps: the rows of a request, and batches of them.

The return of n steps from row t is the sum of ``gamma**i * reward[t + 1 + i]``: Sutton & Barto,
Reinforcement Learning (2018), section 7.1.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from ..base.memory_limit import check_free_memory
from ..rows.episode import End
from ..spec.spec import Field, Spec
from ..storage.chunk_index import ChunkIndex
from ..storage.item_counts import EpisodeTails, WholeEpisodes, Windows
from .batch import (
    BatchFields,
    Memory,
    OpenTransitions,
    Rest,
    Seed,
    Shapes,
    TransitionBatch,
    longest_stack,
    padding_before,
)
from .draws import Drawn, ItemKinds
from .hindsight import Relabeller, Steps
from .requests import Transitions
from .row_reader import FIRST_ROW, LAST, PREVIOUS, ROW_ID, SLOT, RowReader, Segments

_TERMINATED, _TRUNCATED = int(End.TERMINATED), int(End.TRUNCATED)


_Rows: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
"""One stored row of each transition, as arguments of `RowReader.pick`: index of its chunk, index of
the row in that, and the row's slot."""
_Frames: TypeAlias = "tuple[Segments, np.ndarray]"
"""The rows of stacks, and the number of missing frames in each."""


class _Found(NamedTuple):
    """The rows of the transitions of a batch."""

    first: _Rows  # t
    last: _Rows  # t + k
    steps: np.ndarray  # [B] k
    ids: np.ndarray  # [B] of the first ones
    flags: np.ndarray  # [3, B] terminated, truncated, cut
    has_ended: bool  # one of these is True
    frames: dict[tuple[int, bool], _Frames]  # by `k` and `is_joined`, as far as they are at hand


class _Observed(NamedTuple):
    """A field of the observations."""

    field: Field
    k: int  # frames of its stacks
    is_joined: bool  # the frames that both observations share are copied once


class TransitionSampler:
    """Makes batches for one request."""

    def __init__(self, request: Transitions, spec: Spec) -> None:
        self._n_step = n = request.n_step
        fields = self._fields = BatchFields.of(spec, request.fields)
        observed = [f for f in fields.chosen if f.kind == "observation"]
        stacks = [f.stack if request.stack else 1 for f in observed]
        self._observed = [
            _Observed(field, k, k > 1 and n == 1) for field, k in zip(observed, stacks, strict=True)
        ]
        self._is_rewarded = any(f.kind == "reward" for f in fields.chosen)
        self._of_action = [f.name for f in fields.chosen if f.is_chosen]
        self._info = [(f.key, f.name) for f in fields.chosen if f.kind == "info"]
        self._extras = [(f.key, f.name) for f in fields.chosen if f.kind == "extra"]
        frames = self._frames = longest_stack(spec) - 1 if request.stack else 0
        check_free_memory(16 * (n + 1), f"n_step={n}", "take a smaller n_step")
        powers = request.gamma ** np.arange(n + 1.0)
        self._powers = powers.astype(np.float32)
        self._weights = powers[:-1]
        self._relabeller = None if request.relabel is None else Relabeller(request, spec)
        self._count, self._shapes = request.batch_size, self._shapes_of(request.batch_size)
        self._kinds = ItemKinds(
            2,
            Windows(2, frames),
            EpisodeTails(n, 1, frames),
            WholeEpisodes(2, frames),
            Windows(2, frames, is_settled=True),
        )

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of its items; `stride` is the distance of their first rows."""
        if stride == 1:
            return self._kinds
        return self._kinds._replace(every=Windows(2, self._frames, stride))

    def shapes(self, count: int) -> Shapes:
        """Shapes and dtypes of the memory of a number of transitions."""
        return self._shapes if count == self._count else self._shapes_of(count)

    def _shapes_of(self, count: int) -> Shapes:
        shapes: Shapes = {}
        for field, k, is_joined in self._observed:
            frames = () if k == 1 else (k,)
            shape = (count, k + 1) if is_joined else (2, count, *frames)
            shapes[field.name] = ((*shape, *field.shape), field.numpy_dtype)
        return shapes

    def make(
        self,
        reader: RowReader,
        index: ChunkIndex,
        drawn: Drawn,
        weights: np.ndarray,
        memory: Memory,
        seed: Seed,
    ) -> tuple[TransitionBatch, Rest]:
        """A batch of drawn items, and the rest of the work on it; the storage's lock is held."""
        found = self._found(reader, index, drawn)
        first, last, steps = found[:3]
        terminated, truncated, cut = found.flags
        discount = self._powers.take(steps)
        if found.has_ended:
            discount[terminated] = 0
        reward = self._returns(reader, last, steps) if self._is_rewarded else None
        chosen: dict[str, np.ndarray] = {}
        for name in self._of_action:
            chosen[name] = reader.pick(name, *first)
        extras: dict[str, np.ndarray] = {}
        for key, name in self._extras:
            extras[key] = chosen[name]
        info: dict[str, np.ndarray] = {}
        # Infos come with the results of a step, actions and extras with the row it starts from.
        for key, name in self._info:
            info[key] = reader.pick(name, *last)
        before, after, rest = self._observe(reader, memory, drawn.start, found)
        if self._relabeller is not None:
            chunk, place, _ = last
            moves = Steps(drawn.start, chunk, place, reader.lines(chunk), steps)
            rng = np.random.default_rng(seed)
            self._relabeller.relabel(reader, index, moves, rng, (before, after), reward, rest)
        batch = OpenTransitions()
        batch.observation = self._fields.observation(before)
        batch.action = self._fields.action(chosen)
        batch.reward = reward
        batch.next_observation = self._fields.observation(after)
        batch.discount = discount
        batch.terminated = terminated
        batch.truncated = truncated
        batch.cut = cut
        batch.steps = steps
        batch.info = info
        batch.extras = extras
        batch.ids = found.ids
        batch.weights = weights
        batch.memory = memory
        batch.__class__ = TransitionBatch
        return batch, rest

    def _found(self, reader: RowReader, index: ChunkIndex, drawn: Drawn) -> _Found:
        """The rows of the transitions, their ends, and frames of their stacks."""
        chunk, start, is_exact = drawn
        n, frames, is_joined = self._n_step, 0, False
        for each in self._observed:
            if each.k > 1 or not reader.is_small(each.field.name):
                frames, is_joined = each.k, each.is_joined
                break
        compiled = reader.steps(chunk, start, n, frames, is_joined=is_joined)
        if compiled is not None:
            numbers, flags, has_ended, stacks = compiled
            chunk, place, slots, chunk_0, place_0, slots_0, steps, ids = numbers
            first, last = (chunk_0, place_0, slots_0), (chunk, place, slots)
            found = {} if stacks is None else {(frames, is_joined): stacks}
            return _Found(first, last, steps, ids, flags, has_ended, found)
        chunk, place, at = reader.locate(chunk, start + n, is_exact=is_exact and n == 1)
        reader.find(chunk, at)
        slots = at[:, SLOT] + place
        if n == 1:
            steps = np.empty(len(start), np.int64)  # `np.ones` takes five times as long
            steps.fill(1)
        else:
            steps = at[:, FIRST_ROW] + place - start
        flags = np.zeros((3, len(steps)), np.bool_)
        # Few transitions reach the last row of their episode, and only these can have ended it.
        ended = (place == at[:, LAST]).nonzero()[0]
        if len(ended):
            end = index.records["end"][chunk[ended]]
            flags[0, ended] = end & _TERMINATED != 0
            flags[1, ended] = end & _TRUNCATED != 0
            flags[2, ended] = end & (_TERMINATED | _TRUNCATED) == 0
        last = chunk, place, slots
        place, slots = place - steps, slots - steps
        of = (place < 0).nonzero()[0]
        if len(of):  # in an earlier chunk
            earlier, row, there = reader.locate(at[of, PREVIOUS], start[of])
            reader.find(earlier, there)
            chunk, at = chunk.copy(), at.copy()
            chunk[of], place[of], at[of] = earlier, row, there
            slots[of] = there[:, SLOT] + row
        ids = at[:, ROW_ID] + place
        return _Found((chunk, place, slots), last, steps, ids, flags, len(ended) > 0, {})

    def _returns(self, reader: RowReader, last: _Rows, steps: np.ndarray) -> np.ndarray:
        """Discounted sums of the rewards of rows t + 1 to t + k, [B] float32."""
        n = self._n_step
        if n == 1:
            return reader.pick("reward", *last).astype(np.float32, copy=False)
        target = np.arange(len(steps)) * n
        segments = reader.segments(*last[:2], reader.lines(last[0]), steps, target)
        rewards = reader.rows("reward", segments, n * len(steps)).reshape(-1, n)
        is_used = np.arange(n) < steps[:, None]
        returns: np.ndarray = (np.where(is_used, rewards, 0) @ self._weights).astype(np.float32)
        return returns

    def _observe(
        self, reader: RowReader, memory: Memory, start: np.ndarray, found: _Found
    ) -> tuple[Memory, Memory, Rest]:
        """Copy small observations, and plan the copies of large ones, a run of rows for each."""
        # Returns the observations by name, and the next ones.
        before: Memory = {}
        after: Memory = {}
        rest: Rest = [], []
        for field, k, is_joined in self._observed:
            name = field.name
            rows = memory[name]
            now, then = (rows[:, :k], rows[:, 1:]) if is_joined else (rows[0], rows[1])
            before[name], after[name] = now, then
            if k == 1 and reader.is_small(name):
                reader.take(name, found.first[2], now)
                reader.take(name, found.last[2], then)
                continue
            if (k, is_joined) not in found.frames:
                found.frames[k, is_joined] = _frames(reader, k, is_joined, start, found)
            segments, missing = found.frames[k, is_joined]
            width = k + 1 if is_joined else 2 * k
            flat = rows.reshape(len(start) * width, *field.shape)
            rest[0].append((reader.plan(name, segments, flat), flat))
            if k > 1:
                stacks = rows if is_joined else rows.reshape(2 * len(start), k, *field.shape)
                rest[1].extend(padding_before(stacks, missing, field))
        return before, after, rest


def _frames(
    reader: RowReader, k: int, is_joined: bool, start: np.ndarray, found: _Found
) -> _Frames:
    """The rows of stacks of k frames, and the number of missing frames in each."""
    if is_joined:
        width, rows = k + 1, start + 2
        chunk, place, _ = found.last
    else:
        width, rows = k, np.concatenate([start, start + found.steps]) + 1
        chunk, place = map(np.concatenate, zip(found.first[:2], found.last[:2], strict=True))
    count = np.minimum(rows, width)
    missing = width - count
    target = np.arange(len(count)) * width + missing
    return reader.segments(chunk, place, reader.lines(chunk), count, target), missing
