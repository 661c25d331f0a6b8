"""Sequences of rows: the rows of a request, and batches of them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import numpy as np

from ..base.memory_limit import check_free_memory
from ..rows.episode import End
from ..spec.spec import ArrayTree, Field, Spec
from ..storage.chunk_index import ChunkIndex
from ..storage.item_counts import EpisodeTails, WholeEpisodes, Windows
from .batch import (
    Batch,
    BatchFields,
    Memory,
    Rest,
    Seed,
    Shapes,
    longest_stack,
    padding_before,
    stack_copies,
    stack_views,
)
from .draws import Drawn, ItemKinds
from .requests import Borders, Episodes, Sequences
from .row_reader import FIRST_ROW, LAST, ROW_ID, SLOT, RowReader, Segments, spread

_FLOAT32 = np.dtype(np.float32)
_FLAGS = 6  # is_first, is_last, terminated, truncated, cut, mask


class SequenceSampler:
    """Makes batches for one request."""

    def __init__(self, request: Sequences, spec: Spec) -> None:
        if request.stack and all(field.stack == 1 for field in spec.fields):
            raise ValueError(
                "stack=True: expected an env that stacks frames, got one that does not; "
                "leave it out"
            )
        self._request = request
        self._fields = BatchFields.of(spec, request.fields, request.state)
        fields = self._fields.chosen
        self._received = [f.name for f in fields if not f.is_chosen]
        self._results = [f.name for f in fields if f.kind in ("reward", "info")]
        self._info = [(f.key, f.name) for f in fields if f.kind == "info"]
        self._extras = [(f.key, f.name) for f in fields if f.kind == "extra"]
        self._frames = longest_stack(spec) - 1 if request.stack else 0
        # Fields of which no stacks are returned.
        self._single = [f for f in fields if not self._is_stacked(f)]
        is_shifted = request.align == "transition"
        self._window = Window(
            request.borders, request.length, int(is_shifted), request.burn_in, self._frames
        )
        self._kinds = self._window.kinds()
        # Without padding and crossed borders, stacks can overlap in memory.
        self._are_views = request.borders == "inside" and not request.burn_in
        # An episode's last row is a row, but begins no transition.
        self._is_shifted = is_shifted
        self._count, self._shapes = request.batch_size, self._shapes_of(request.batch_size)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of its items; see `Window.kinds`."""
        return self._kinds if stride == 1 else self._window.kinds(stride)

    def shapes(self, count: int) -> Shapes:
        """Shapes and dtypes of the memory of a number of sequences."""
        return self._shapes if count == self._count else self._shapes_of(count)

    def _shapes_of(self, count: int) -> Shapes:
        shapes: Shapes = {}
        rows = self._window.rows
        for field in self._fields.chosen:
            more = self._frames if self._is_stacked(field) else 0
            # Time first, but for frames, of which stacks are views.
            is_turned = self._request.time_major and not self._is_stacked(field)
            first = (rows, count) if is_turned else (count, rows + more)
            # Rewards are stored exactly as the env gave them; learners compute in float32.
            dtype = _FLOAT32 if field.name == "reward" else field.numpy_dtype
            shapes[field.name] = ((*first, *field.shape), dtype)
            if more and not self._are_views:
                shapes["stacks of " + field.name] = ((count, rows, *field.source_shape), dtype)
        shapes["flags"] = ((_FLAGS, count, rows), np.dtype(np.bool_))
        return shapes

    def make(
        self,
        reader: RowReader,
        index: ChunkIndex,
        drawn: Drawn,
        weights: np.ndarray,
        memory: Memory,
        seed: Seed,
    ) -> tuple[Batch, Rest]:
        """A batch of drawn items, and the rest of the work on it; the storage's lock is held."""
        del seed
        window = self._window
        rest: Rest = [], []
        runs = window.runs(reader, index, drawn)
        rows, target = window.part(runs, 0)
        segments = reader.segments(runs.chunk, runs.place, runs.at, rows, target)
        flags = memory["flags"]
        is_full = _fill_flags(flags.reshape(_FLAGS, -1), index, segments, rows, target)
        leaves = self._leaves(memory)
        self._take(rest, reader, segments, memory)
        if not is_full:
            rest[1].extend(partial(_clear, leaves[f.name], flags[-1]) for f in self._single)
        if self._frames:
            self._take_stacks(rest, reader, runs, segments, memory)
        chunk, at, row = segments[:3]
        if segments.is_split:
            of = segments.target.searchsorted(target)
            chunk, at, row = chunk.take(of), at.take(of, 0), row.take(of)
        state = {
            field.key: reader.pick(field.name, chunk, row, at[:, SLOT] + row)
            for field in self._fields.state
        }
        # The id is that of the drawn row, before which there may be other rows or padding.
        if window.burn_in or window.borders == "pad_before":
            is_across = window.borders == "cross"
            _, row, at = reader.locate(drawn.chunk, drawn.start, is_across=is_across)
        ids = at[:, ROW_ID] + row
        batch = self._batch(leaves, rows, ids, weights, state, memory)
        return batch, rest

    def _leaves(self, memory: Memory) -> dict[str, np.ndarray]:
        """The fields ``[B, rows, ...]``, and stacks ``[B, rows, k, ...]``, in the memory."""
        leaves = {field.name: memory[field.name] for field in self._single}
        if self._request.time_major:
            leaves = {name: rows.swapaxes(0, 1) for name, rows in leaves.items()}
        if self._frames:
            for field in filter(self._is_stacked, self._fields.chosen):
                leaves[field.name] = (
                    stack_views(
                        memory[field.name],
                        field.stack,
                        self._frames - (field.stack - 1),
                        self._window.rows,
                    )
                    if self._are_views
                    else memory["stacks of " + field.name]
                )
        return leaves

    def _batch(
        self,
        leaves: dict[str, np.ndarray],
        lengths: np.ndarray,
        ids: np.ndarray,
        weights: np.ndarray,
        state: dict[str, np.ndarray],
        memory: Memory,
    ) -> Batch:
        """Make the batch of fields ``[B, rows, ...]``."""
        is_first, *ends, mask = memory["flags"]
        following: dict[str, np.ndarray] | None = None
        # A row holds the results of the step before it. A transition has those of its own step,
        # which are one row later; an episode's last row begins none.
        if self._is_shifted:
            mask = mask[:, :-1] & mask[:, 1:] & ~ends[0][:, :-1]
            is_first, ends = is_first[:, :-1], [rows[:, 1:] for rows in ends]
            following = {name: leaves[name][:, 1:] for name in self._received}
            leaves = {name: rows[:, :-1] for name, rows in leaves.items()}
            leaves |= {name: following[name] for name in self._results}
            lengths = mask.sum(1)
        if self._request.time_major:
            leaves = {name: rows.swapaxes(0, 1) for name, rows in leaves.items()}
            is_first, mask, *ends = (
                np.ascontiguousarray(rows.swapaxes(0, 1)) for rows in (is_first, mask, *ends)
            )
            if following is not None:
                following = {name: rows.swapaxes(0, 1) for name, rows in following.items()}
        then = None if following is None else self._fields.observation(following)
        is_last, terminated, truncated, cut = ends
        return Batch(
            observation=self._fields.observation(leaves),
            action=self._fields.action(leaves),
            reward=cast("np.ndarray", leaves.get("reward")),
            is_first=is_first,
            is_last=is_last,
            terminated=terminated,
            truncated=truncated,
            cut=cut,
            mask=mask,
            lengths=lengths,
            info={key: leaves[name] for key, name in self._info},
            extras={key: leaves[name] for key, name in self._extras},
            ids=ids,
            weights=weights,
            state=state,
            next_observation=cast("ArrayTree", then),
            burn_in=self._request.burn_in,
            memory=memory,
        )

    def _is_stacked(self, field: Field) -> bool:
        return self._frames > 0 and field.stack > 1

    def _take(self, rest: Rest, reader: RowReader, segments: Segments, memory: Memory) -> None:
        """Copy the rows of small fields, and plan the copies of large ones."""
        slots: np.ndarray | None = None
        columns = self._window.rows if self._request.time_major else 0
        for field in self._single:
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            if not reader.is_small(field.name):
                rest[0].append((reader.plan(field.name, segments, flat, columns), flat))
                continue
            if slots is None:
                slots = reader.slots(segments, len(flat))
                slots = slots.reshape(-1, columns).T.ravel() if columns else slots
            reader.take(field.name, slots, flat)

    def _take_stacks(
        self,
        rest: Rest,
        reader: RowReader,
        runs: _Runs,
        segments: Segments,
        memory: Memory,
    ) -> None:
        """Plan the copies of the frames of stacks."""
        frames = self._frames
        rows, target = self._window.part(runs, frames)
        wider = reader.segments(runs.chunk, runs.place, runs.at, rows, target)
        missing = frames - (rows - self._window.part(runs, 0)[0])
        numbers = np.zeros(0)
        if not self._are_views:
            mask = memory["flags"][-1]
            first = segments.at[:, FIRST_ROW] + segments.start
            numbers = np.where(mask, spread(first, segments, mask.size).reshape(mask.shape), -1)
        for field in filter(self._is_stacked, self._fields.chosen):
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            rest[0].append((reader.plan(field.name, wider, flat), flat))
            skipped = frames - (field.stack - 1)
            if self._are_views:
                rest[1].extend(padding_before(rows, missing, field))
            else:
                out = memory["stacks of " + field.name]
                rest[1].append(partial(stack_copies, rows[:, skipped:], numbers, field, out))


class _Runs(NamedTuple):
    """The rows of drawn sequences, without a burn-in and frames before them."""

    chunk: np.ndarray  # [B] index of the chunk that holds the last row
    place: np.ndarray  # [B] that row in the chunk
    at: np.ndarray  # [B, 8] the chunk's row in the reader's table
    first: np.ndarray  # [B] first row, counted in the episode or, across episodes, in the stream
    last: np.ndarray  # [B] last row
    head: np.ndarray | int  # [B] first row that can precede them


class Window(NamedTuple):
    """The shape of a sequence, in stored rows."""

    borders: Borders
    length: int  # rows that are learned from
    shift: int  # 1 if each row also needs the next one, else 0
    burn_in: int  # rows before
    frames: int  # of a stack before the first of these rows

    @property
    def rows(self) -> int:
        """Rows of a sequence, including the burn-in."""
        return self.burn_in + self.length + self.shift

    @property
    def _item(self) -> int:
        """Stored rows that a sequence needs at least."""
        is_padded = self.borders in ("pad_after", "pad_before")
        return (1 if is_padded else self.length) + self.shift

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of such sequences; `stride` is the distance of their first rows."""
        item, reach = self._item, 1
        context = self.burn_in + self.frames
        if self.borders == "pad_before":
            context += self.length - 1
        if self.borders == "pad_after":
            reach = self.length
        if self.borders == "cross":
            every = Windows(item, context, stride, is_across=True)
            newest = Windows(item, context, self.length, is_across=True, is_settled=True)
            return ItemKinds(item, every, None, None, newest)
        ends = EpisodeTails(reach, item - 1, context)
        newest = Windows(item, context, self.length, is_settled=True)
        return ItemKinds(
            item,
            Windows(item, context, stride),
            ends,
            WholeEpisodes(item, context),
            newest if self.borders == "inside" else None,
        )

    def runs(self, reader: RowReader, index: ChunkIndex, drawn: Drawn) -> _Runs:
        """The rows of drawn sequences."""
        is_across, length = self.borders == "cross", self.length + self.shift
        chunk, first, is_exact = drawn
        if self.borders == "pad_before":
            first = np.maximum(first + self._item - length, 0)
            last = drawn.start + (self._item - 1)
        else:
            last = first + (length - 1)
        is_exact = is_exact and self.borders != "pad_after"
        chunk, place, at = reader.locate(chunk, last, is_across=is_across, is_exact=is_exact)
        if self.borders == "pad_after":
            last = at[:, FIRST_ROW] + place
        head = index.records["stream_head"][chunk] if is_across else 0
        return _Runs(chunk, place, at, first, last, head)

    def part(self, runs: _Runs, frames: int) -> tuple[np.ndarray, np.ndarray]:
        """The number of stored rows of runs, and their output rows in ``[B, frames + rows]``."""
        first, begin, width = runs.first, runs.first, frames + self.rows
        context = self.burn_in + frames
        if context:
            begin = np.maximum(first - context, runs.head)
        rows = runs.last - begin + 1
        target = np.arange(len(first)) * width
        if self.borders == "pad_before":
            return rows, target + width - rows
        return rows, target + context - (first - begin) if context else target


def _fill_flags(
    flags: np.ndarray, index: ChunkIndex, segments: Segments, rows: np.ndarray, target: np.ndarray
) -> bool:
    """Set the flags of gathered rows; returns True if no row is padding."""
    # flags: [6, rows] bool, overwritten. rows: [B] of each sequence. target: [B] the first one.
    flags[:5] = False
    chunk, at, start = segments[:3]
    of = (start == -at[:, FIRST_ROW]).nonzero()[0]
    if len(of):
        flags[0, segments.target[of]] = True
    of = (start + segments.rows - 1 == at[:, LAST]).nonzero()[0]
    if len(of):
        row, end = (segments.target + segments.rows - 1)[of], index.records["end"][chunk[of]]
        terminated = end & int(End.TERMINATED) != 0
        truncated = end & int(End.TRUNCATED) != 0
        flags[1, row] = True
        flags[2, row] = terminated
        flags[3, row] = truncated
        flags[4, row] = ~(terminated | truncated)
    return _fill_mask(flags[5], target, rows)


def _clear(rows: np.ndarray, mask: np.ndarray) -> None:
    """Fill the padding with zeros."""
    rows[~mask] = 0


def _fill_mask(mask: np.ndarray, target: np.ndarray, count: np.ndarray) -> bool:
    """Mark the output rows of runs; return True if these are all rows."""
    # mask: [rows] bool, overwritten. target: [R] first row of each run. count: [R] its rows.
    if int(count.sum()) == len(mask):
        mask[:] = True
        return True
    edges = np.zeros(len(mask) + 1, np.int8)
    edges[target] += 1
    np.subtract.at(edges, target + count, 1)
    np.greater(np.cumsum(edges[:-1]), 0, out=mask)
    return False


class EpisodeSampler:
    """Makes batches for one request."""

    def __init__(self, request: Episodes, spec: Spec) -> None:
        self._request = request
        self._spec = spec
        self._shift = int(request.align == "transition")
        self._frames = longest_stack(spec) - 1 if request.stack else 0
        self._of_length(1)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of its items: episodes with at least one row, or one transition."""
        del stride
        rows = 1 + self._shift
        return ItemKinds(
            rows, Windows(rows, self._frames), None, WholeEpisodes(rows, self._frames), None
        )

    def shapes(self, count: int) -> Shapes:
        """Of no memory: the size depends on the episodes that are drawn."""
        del count
        return {}

    def make(
        self,
        reader: RowReader,
        index: ChunkIndex,
        drawn: Drawn,
        weights: np.ndarray,
        memory: Memory,
        seed: Seed,
    ) -> tuple[Batch, Rest]:
        """A batch of drawn items, and the rest of the work on it; the storage's lock is held."""
        records = index.at(drawn.chunk)
        rows = records["first_row"] + records["rows"] - drawn.start
        most = int(rows.max()) * len(rows) * self._spec.row_bytes
        check_free_memory(most, f"a batch of {len(rows)} episodes")
        sampler = self._of_length(int(rows.max()) - self._shift)
        shapes = sampler.shapes(len(rows)).items()
        memory = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes}
        return sampler.make(reader, index, drawn, weights, memory, seed)

    def _of_length(self, length: int) -> SequenceSampler:
        batch_size, align, stack, fields, time_major, _ = self._request
        sequences = Sequences(
            batch_size,
            length,
            borders="pad_after",
            align=align,
            stack=stack,
            fields=fields,
            time_major=time_major,
        )
        return SequenceSampler(sequences, self._spec)
