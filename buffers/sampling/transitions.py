"""Transitions of one or several steps: the rows of a request, and batches of them.

The return of n steps from row t is the sum of ``gamma**i * reward[t + 1 + i]``: Sutton & Barto,
Reinforcement Learning (2018), section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from stepwell.buffers.episode import End
from stepwell.buffers.sampling.batch import (
    Batch,
    BatchFields,
    Memory,
    Shapes,
    TransitionBatch,
    longest_stack,
    memory_for,
    pad_before,
    pick,
)
from stepwell.buffers.sampling.copies import Copies
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.requests import Transitions, check_transitions
from stepwell.buffers.sampling.row_reader import RowReader, RowRefs, Runs, Segments, chunk_of
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import EpisodeTails, WholeEpisodes, Windows

__all__ = ["TransitionPlan", "TransitionSampler"]

_TERMINATED, _TRUNCATED = int(End.TERMINATED), int(End.TRUNCATED)


class TransitionPlan(NamedTuple):
    """A batch with its small fields; the large ones are still to be copied.

    Args:
        memory: Memory of the observations.
        copies: The copies to make, with their outputs.
        missing: By stack size, the number of frames of each stack that precede the reset.
        columns: All fields except observations, by name.
    """

    memory: Memory
    copies: list[tuple[Copies, np.ndarray]]
    missing: Mapping[int, np.ndarray]
    columns: Mapping[str, np.ndarray]


class _Path(NamedTuple):
    """The rows t and t + k of each transition.

    Args:
        first: Positions of rows t.
        last: Positions of rows t + k.
        at_last: [B] the records of their chunks.
        start: [B] rows t, counted in their episodes.
        steps: [B] k.
    """

    first: RowRefs
    last: RowRefs
    at_last: np.ndarray
    start: np.ndarray
    steps: np.ndarray


class TransitionSampler:
    """Makes batches for one request.

    Args:
        request: The request.
        spec: The fields of every row.

    Raises:
        ValueError: The request is invalid, in itself or for this data.
    """

    def __init__(self, request: Transitions, spec: Spec) -> None:
        check_transitions(request)
        self._request = request
        fields = self._fields = BatchFields.of(spec, request.fields)
        self._observed = [f for f in fields.chosen if f.kind == "observation"]
        self._is_rewarded = any(f.kind == "reward" for f in fields.chosen)
        self._of_action = [f.name for f in fields.chosen if f.is_chosen]
        self._info = [(f.key, f.name) for f in fields.chosen if f.kind == "info"]
        self._extras = [(f.key, f.name) for f in fields.chosen if f.kind == "extra"]
        self._frames = longest_stack(spec) - 1 if request.stack else 0
        powers = request.gamma ** np.arange(request.n_step + 1.0)
        self._powers = powers.astype(np.float32)
        self._weights = powers[:-1]
        self._kinds = self._all_kinds()
        self._shapes = self._shapes_of(request.batch_size)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of its items.

        Args:
            stride: Distance of the first rows.
        """
        if stride == 1:
            return self._kinds
        return self._kinds._replace(every=Windows(2, self._frames, stride))

    def _all_kinds(self) -> ItemKinds:
        n, frames = self._request.n_step, self._frames
        return ItemKinds(
            2,
            Windows(2, frames),
            EpisodeTails(n, 1, frames),
            WholeEpisodes(2, frames),
            Windows(2, frames, is_settled=True),
        )

    def memory(self, count: int, out: Batch | TransitionBatch | None) -> Memory:
        """Memory for a number of transitions, possibly that of an earlier batch.

        Raises:
            ValueError: ``out`` was made for another request.
        """
        shapes = self._shapes if count == self._request.batch_size else self._shapes_of(count)
        return memory_for(shapes, None if out is None else out.memory)

    def plan(
        self, reader: RowReader, index: ChunkIndex, drawn: Drawn, memory: Memory
    ) -> TransitionPlan:
        """Find the rows and copy those of small fields; the storage's lock is held.

        Raises:
            DamagedChunk: Stored bytes are damaged.
        """
        path = self._path(reader, index, drawn)
        chunk, row, _ = path.first
        columns = {"ids": index.records["row_id"][chunk] + row, "steps": path.steps}
        self._mark_ends(columns, path)
        if self._is_rewarded:
            columns["reward"] = self._returns(reader, path)
        for name in self._of_action:
            columns[name] = reader.pick(name, path.first)
        for _, name in self._info:
            columns[name] = reader.pick(name, path.last)
        copies, missing = self._take(reader, path, memory)
        return TransitionPlan(memory, copies, missing, columns)

    def finish(self, plan: TransitionPlan, weights: np.ndarray) -> TransitionBatch:
        """Make the batch of a plan after its copies were made."""
        columns = plan.columns
        before: dict[str, np.ndarray] = {}
        after: dict[str, np.ndarray] = {}
        for field in self._observed:
            rows, k = plan.memory[field.name], self._stack_of(field)
            is_joined = self._is_joined(k)
            if k in plan.missing:
                stacks = rows if is_joined else rows.reshape(2 * rows.shape[1], k, *field.shape)
                pad_before(stacks, plan.missing[k], field)
            before[field.name] = rows[:, :k] if is_joined else rows[0]
            after[field.name] = rows[:, 1:] if is_joined else rows[1]
        return TransitionBatch(
            observation=pick(self._fields.observation, before),
            action=pick(self._fields.action, columns),
            reward=cast("np.ndarray", columns.get("reward")),
            next_observation=pick(self._fields.observation, after),
            discount=columns["discount"],
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            cut=columns["cut"],
            steps=columns["steps"],
            info={key: columns[name] for key, name in self._info},
            extras={key: columns[name] for key, name in self._extras},
            ids=columns["ids"],
            weights=weights,
            memory=plan.memory,
        )

    def _path(self, reader: RowReader, index: ChunkIndex, drawn: Drawn) -> _Path:
        """Find the first and last row of each transition."""
        start, n = drawn.start, self._request.n_step
        chunk, place, at_last = chunk_of(index, drawn.chunk, start + n, is_across=False)
        steps = _ones(len(start)) if n == 1 else at_last["first_row"] + place - start
        last, row = reader.refs(chunk, place), place - steps
        if np.count_nonzero(row < 0):  # in an earlier chunk
            chunk, row, _ = chunk_of(index, drawn.chunk, start, is_across=False)
            first = reader.refs(chunk, row)
        else:
            first = RowRefs(chunk, row, last.slots - steps)
        return _Path(first, last, at_last, start, steps)

    def _mark_ends(self, columns: dict[str, np.ndarray], path: _Path) -> None:
        """Add the flags of rows t + k that end their episodes."""
        at, batch = path.at_last, len(path.start)
        terminated, truncated, cut = np.zeros((3, batch), np.bool_)
        discount = self._powers.take(path.steps)
        last = ((path.last.row + at["is_tail"]) == at["rows"]).nonzero()[0]
        if len(last):
            last = last[at["is_tail"][last] == 1]
            end = at["end"][last]
            terminated[last] = end & _TERMINATED != 0
            truncated[last] = end & _TRUNCATED != 0
            cut[last] = end & (_TERMINATED | _TRUNCATED) == 0
            discount[terminated] = 0
        columns |= {
            "terminated": terminated,
            "truncated": truncated,
            "cut": cut,
            "discount": discount,
        }

    def _returns(self, reader: RowReader, path: _Path) -> np.ndarray:
        """Discounted sums of the rewards of rows t + 1 to t + k, [B] float32."""
        n, steps = self._request.n_step, path.steps
        if n == 1:
            return reader.pick("reward", path.last).astype(np.float32)
        target = np.arange(len(steps)) * n
        segments = reader.segments(Runs(path.last.chunk, path.last.row + 1, steps, target))
        rewards = reader.rows("reward", segments, n * len(steps)).reshape(-1, n)
        is_used = np.arange(n) < steps[:, None]
        returns: np.ndarray = (np.where(is_used, rewards, 0) @ self._weights).astype(np.float32)
        return returns

    def _take(
        self, reader: RowReader, path: _Path, memory: Memory
    ) -> tuple[list[tuple[Copies, np.ndarray]], dict[int, np.ndarray]]:
        """Copy small observations, and plan the copies of large ones, a run of rows for each."""
        copies: list[tuple[Copies, np.ndarray]] = []
        missing: dict[int, np.ndarray] = {}
        found: dict[int, Segments] = {}
        for field in self._observed:
            rows, k = memory[field.name], self._stack_of(field)
            if k == 1 and reader.is_small(field.name):
                reader.take(field.name, path.first.slots, rows[0])
                reader.take(field.name, path.last.slots, rows[1])
                continue
            if k not in found:
                runs, lacking = self._runs(path, k)
                found[k] = reader.segments(runs)
                if k > 1:
                    missing[k] = lacking
            flat = rows.reshape(math.prod(rows.shape[: rows.ndim - len(field.shape)]), *field.shape)
            copies.append((reader.plan(field.name, found[k], flat), flat))
        return copies, missing

    def _runs(self, path: _Path, k: int) -> tuple[Runs, np.ndarray]:
        """The rows of stacks of k frames, and the number of missing frames in each."""
        index, stop = path.last.chunk, path.last.row + 1
        if self._is_joined(k):
            width, rows = k + 1, path.start + 2
        else:
            width, rows = k, np.concatenate([path.start, path.start + path.steps]) + 1
            index = np.concatenate([path.first.chunk, index])
            stop = np.concatenate([path.first.row + 1, stop])
        count = np.minimum(rows, width)
        missing = width - count
        return Runs(index, stop, count, np.arange(len(count)) * width + missing), missing

    def _shapes_of(self, batch: int) -> Shapes:
        shapes: Shapes = {}
        for field in self._observed:
            k = self._stack_of(field)
            frames = () if k == 1 else (k,)
            shape = (batch, k + 1) if self._is_joined(k) else (2, batch, *frames)
            shapes[field.name] = ((*shape, *field.shape), field.numpy_dtype)
        return shapes

    def _stack_of(self, field: Field) -> int:
        return field.stack if self._request.stack else 1

    def _is_joined(self, k: int) -> bool:
        """Copy frames that both observations share once."""
        return k > 1 and self._request.n_step == 1


def _ones(count: int) -> np.ndarray:
    """Steps of one: `np.ones` takes five times as long."""
    ones = np.empty(count, np.int64)
    ones.fill(1)
    return ones
