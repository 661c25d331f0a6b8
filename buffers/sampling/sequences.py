"""Sequences of rows: the rows of a request, and batches of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from stepwell.buffers.episode import End
from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.sampling.batch import (
    Batch,
    BatchFields,
    Memory,
    Shapes,
    TransitionBatch,
    batch_dtype,
    longest_stack,
    memory_for,
    pad_before,
    pick,
    stack_copies,
    stack_views,
)
from stepwell.buffers.sampling.copies import Copies
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.requests import (
    Borders,
    Episodes,
    Sequences,
    check_episodes,
    check_sequences,
)
from stepwell.buffers.sampling.row_reader import RowReader, Runs, Segments, chunk_of, spread
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import EpisodeTails, WholeEpisodes, Windows

__all__ = ["EpisodePlan", "EpisodeSampler", "SequencePlan", "SequenceSampler", "Window"]

_FLAGS = ("is_first", "is_last", "terminated", "truncated", "cut", "mask")


class SequencePlan(NamedTuple):
    """A batch with its small fields; the large ones are still to be copied.

    Args:
        memory: Memory of the rows.
        copies: The copies to make, with their outputs.
        missing: [B] frames before each sequence that precede its reset.
        rows: [B, T] each row's index in its episode, if stacks are copied.
        is_full: No row is padding.
        ids: [B] ids of the rows that the items begin with.
        lengths: [B] stored rows.
        state: Extras of the first rows.
    """

    memory: Memory
    copies: list[tuple[Copies, np.ndarray]]
    missing: np.ndarray | None
    rows: np.ndarray | None
    is_full: bool
    ids: np.ndarray
    lengths: np.ndarray
    state: Mapping[str, np.ndarray]


class SequenceSampler:
    """Makes batches for one request.

    Args:
        request: The request.
        spec: The fields of every row.

    Raises:
        ValueError: The request is invalid, in itself or for this data.
    """

    def __init__(self, request: Sequences, spec: Spec) -> None:
        check_sequences(request)
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
        is_shifted = request.align == "transition"
        self.window = Window(
            request.borders, request.length, int(is_shifted), request.burn_in, self._frames
        )
        self._kinds = self.window.kinds()
        # Without padding and crossed borders, stacks can overlap in memory.
        self._are_views = request.borders == "inside" and not request.burn_in
        # An episode's last row is a row, but begins no transition.
        self._is_shifted = is_shifted
        self._shapes = self._shapes_of(request.batch_size)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The kinds of its items; see `Window.kinds`."""
        return self._kinds if stride == 1 else self.window.kinds(stride)

    def memory(self, count: int, out: Batch | TransitionBatch | None) -> Memory:
        """Memory for a number of sequences, possibly that of an earlier batch.

        Raises:
            ValueError: ``out`` was made for another request.
        """
        shapes = self._shapes if count == self._request.batch_size else self._shapes_of(count)
        return memory_for(shapes, None if out is None else out.memory)

    def plan(
        self, reader: RowReader, index: ChunkIndex, drawn: Drawn, memory: Memory
    ) -> SequencePlan:
        """Find the rows and copy those of small fields; the storage's lock is held.

        Raises:
            DamagedChunk: Stored bytes are damaged.
        """
        batch = len(drawn.start)
        runs = self.window.runs(index, drawn, 0)
        segments = reader.segments(runs)
        flags = memory["flags"].reshape(len(_FLAGS), -1)
        _fill_flags(flags, index.at(segments.chunk), segments)
        is_full = _fill_mask(flags[-1], runs.target, runs.rows)
        copies = self._take(reader, segments, memory)
        missing = rows = None
        if self._frames:
            wider = self.window.runs(index, drawn, self._frames)
            copies += self._take_frames(reader, wider, memory)
            missing = self._frames - (wider.rows - runs.rows)
            if not self._are_views:
                rows = self._row_numbers(index, segments, flags[-1].reshape(batch, -1))
        ids = self._ids(index, drawn, segments)
        state = self._state(reader, segments)
        return SequencePlan(memory, copies, missing, rows, is_full, ids, runs.rows, state)

    def finish(self, plan: SequencePlan, weights: np.ndarray) -> Batch:
        """Make the batch of a plan after its copies were made."""
        memory = plan.memory
        columns = self.window.rows
        leaves = {f.name: self._rows_of(f, plan) for f in self._fields.chosen}
        flags: dict[str, np.ndarray] = dict(zip(_FLAGS, memory["flags"], strict=True))
        lengths, following = plan.lengths, None
        if self._is_shifted:
            mask = flags["mask"][:, :-1] & flags["mask"][:, 1:] & ~flags["is_last"][:, :-1]
            following = _cut({name: leaves[name] for name in self._received}, 1, columns)
            flags = {
                name: rows[:, :-1] if name == "is_first" else rows[:, 1:]
                for name, rows in flags.items()
            } | {"mask": mask}
            leaves = _cut(leaves, 0, columns - 1)
            leaves |= {name: following[name] for name in self._results}
            lengths = mask.sum(1)
        if self._request.time_major:
            leaves = _turned(leaves)
            flags = {name: np.ascontiguousarray(rows) for name, rows in _turned(flags).items()}
            following = None if following is None else _turned(following)
        return Batch(
            observation=pick(self._fields.observation, leaves),
            action=pick(self._fields.action, leaves),
            reward=cast("np.ndarray", leaves.get("reward")),
            is_first=flags["is_first"],
            is_last=flags["is_last"],
            terminated=flags["terminated"],
            truncated=flags["truncated"],
            cut=flags["cut"],
            mask=flags["mask"],
            lengths=lengths,
            info={key: leaves[name] for key, name in self._info},
            extras={key: leaves[name] for key, name in self._extras},
            ids=plan.ids,
            weights=weights,
            state=plan.state,
            next_observation=pick(
                None if following is None else self._fields.observation, following or {}
            ),
            burn_in=self._request.burn_in,
            memory=memory,
        )

    def _shapes_of(self, batch: int) -> Shapes:
        """Shapes and dtypes of the arrays for a number of sequences."""
        shapes: Shapes = {}
        rows = self.window.rows
        for field in self._fields.chosen:
            more = self._frames if self._is_stacked(field) else 0
            first = (rows, batch) if self._is_turned(field) else (batch, rows + more)
            dtype = batch_dtype(field)
            shapes[field.name] = ((*first, *field.shape), dtype)
            if more and not self._are_views:
                shapes["stacks of " + field.name] = ((batch, rows, *field.source_shape), dtype)
        shapes["flags"] = ((len(_FLAGS), batch, rows), np.dtype(np.bool_))
        return shapes

    def _is_stacked(self, field: Field) -> bool:
        return self._frames > 0 and field.stack > 1

    def _is_turned(self, field: Field) -> bool:
        """True if rows are gathered time first: all but frames, of which stacks are views."""
        return self._request.time_major and not self._is_stacked(field)

    def _take(
        self, reader: RowReader, segments: Segments, memory: Memory
    ) -> list[tuple[Copies, np.ndarray]]:
        """Copy the rows of small fields, and plan the copies of large ones."""
        copies: list[tuple[Copies, np.ndarray]] = []
        slots: np.ndarray | None = None
        columns = self.window.rows if self._request.time_major else 0
        for field in self._fields.chosen:
            if self._is_stacked(field):
                continue
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            if not reader.is_small(field.name):
                copies.append((reader.plan(field.name, segments, flat, columns), flat))
                continue
            if slots is None:
                slots = reader.slots(segments, len(flat))
                slots = slots.reshape(-1, columns).T.ravel() if columns else slots
            reader.take(field.name, slots, flat)
        return copies

    def _take_frames(
        self, reader: RowReader, wider: Runs, memory: Memory
    ) -> list[tuple[Copies, np.ndarray]]:
        """Plan the copies of the frames of stacks."""
        segments = reader.segments(wider)
        copies: list[tuple[Copies, np.ndarray]] = []
        for field in filter(self._is_stacked, self._fields.chosen):
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            copies.append((reader.plan(field.name, segments, flat), flat))
        return copies

    def _rows_of(self, field: Field, plan: SequencePlan) -> np.ndarray:
        """The rows of a field, [B, T, ...], with zeros as padding."""
        rows = plan.memory[field.name]
        if self._is_turned(field):
            rows = rows.swapaxes(0, 1)
        if not self._is_stacked(field):
            if not plan.is_full:
                rows[~plan.memory["flags"][-1]] = 0
            return rows
        skipped = self._frames - (field.stack - 1)
        if plan.rows is not None:
            out = plan.memory["stacks of " + field.name]
            stack_copies(rows[:, skipped:], plan.rows, field, out)
            return out
        assert plan.missing is not None
        pad_before(rows, plan.missing, field)
        return stack_views(rows, field.stack, skipped, self.window.rows)

    def _state(self, reader: RowReader, segments: Segments) -> dict[str, np.ndarray]:
        if not self._fields.state:
            return {}
        first = reader.refs(segments.first_chunk, segments.first_start)
        return {field.key: reader.pick(field.name, first) for field in self._fields.state}

    def _ids(self, chunk_index: ChunkIndex, drawn: Drawn, segments: Segments) -> np.ndarray:
        """The ids of the rows that the items begin with."""
        index, row = segments.first_chunk, segments.first_start
        records, borders = chunk_index.records, self.window.borders
        if self.window.burn_in or borders == "pad_before":
            is_across = borders == "cross"
            index, row, _ = chunk_of(chunk_index, drawn.chunk, drawn.start, is_across)
        ids: np.ndarray = records["row_id"][index] + row
        return ids

    def _row_numbers(self, index: ChunkIndex, segments: Segments, mask: np.ndarray) -> np.ndarray:
        """Each row's index in its episode [B, T], or -1 for padding."""
        first = index.records["first_row"][segments.chunk] + segments.start
        rows = spread(first, segments, np.full(mask.size, -1))
        return rows.reshape(mask.shape)


def _cut(leaves: Mapping[str, np.ndarray], first: int, stop: int) -> dict[str, np.ndarray]:
    return {name: rows[:, first:stop] for name, rows in leaves.items()}


def _turned(leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Swap batch and time axes."""
    return {name: rows.swapaxes(0, 1) for name, rows in leaves.items()}


class Window(NamedTuple):
    """The shape of a sequence, in stored rows.

    Args:
        borders: Rule at the borders of episodes.
        length: Rows that are learned from.
        shift: 1 if each row also needs the next one, else 0.
        burn_in: Rows before.
        frames: Frames of a stack before the first of these rows.
    """

    borders: Borders
    length: int
    shift: int
    burn_in: int
    frames: int

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
        """The kinds of such sequences.

        Args:
            stride: Distance of the first rows.
        """
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

    def runs(self, chunk_index: ChunkIndex, drawn: Drawn, frames: int) -> Runs:
        """The rows of drawn sequences, with their output rows in ``[B, frames + rows]``.

        Args:
            chunk_index: The index of the stored chunks.
            drawn: The sequences.
            frames: Additional rows before the first one, as far as they are stored.
        """
        is_across = self.borders == "cross"
        first = last = drawn.start
        if self.borders == "pad_before":
            last = first + self._item - 1
            first = np.maximum(last - (self.length + self.shift) + 1, 0)
        else:
            last = first + self.length + self.shift - 1
        index, place, records = chunk_of(chunk_index, drawn.chunk, last, is_across)
        last = records["stream_row" if is_across else "first_row"] + place
        begin = np.maximum(first - (self.burn_in + frames), 0)
        if is_across:
            begin = np.maximum(begin, records["stream_head"])
        count = last - begin + 1
        cells = np.arange(len(first)) * (frames + self.rows)
        if self.borders == "pad_before":
            target = cells + frames + self.rows - count
        else:
            target = cells + frames + self.burn_in - (first - begin)
        return Runs(index, place + 1, count, target)


def _fill_flags(flags: np.ndarray, records: np.ndarray, segments: Segments) -> None:
    """Set the flags of gathered rows.

    Args:
        flags: [6, rows] bool, overwritten; in the order of `_FLAGS`.
        records: [S] the records of the segments' chunks.
        segments: The segments of the rows.
    """
    flags[:5] = False
    first = segments.target[records["first_row"] + segments.start == 0]
    flags[0, first] = True
    stop = segments.start + segments.rows
    is_last = (stop == records["rows"]) & (records["is_tail"] == 1)
    last = np.flatnonzero(is_last)
    if len(last):
        row, end = (segments.target + segments.rows - 1)[last], records["end"][last]
        terminated = end & int(End.TERMINATED) != 0
        truncated = end & int(End.TRUNCATED) != 0
        flags[1, row] = True
        flags[2, row] = terminated
        flags[3, row] = truncated
        flags[4, row] = ~(terminated | truncated)


def _fill_mask(mask: np.ndarray, target: np.ndarray, count: np.ndarray) -> bool:
    """Mark the output rows of runs; return True if these are all rows.

    Args:
        mask: [rows] bool, overwritten.
        target: [R] first row of each run.
        count: [R] rows of it.
    """
    if int(count.sum()) == len(mask):
        mask[:] = True
        return True
    edges = np.zeros(len(mask) + 1, np.int8)
    edges[target] += 1
    np.subtract.at(edges, target + count, 1)
    np.greater(np.cumsum(edges[:-1]), 0, out=mask)
    return False


class EpisodePlan(NamedTuple):
    """A batch of episodes that is still to be copied.

    Args:
        sampler: Makes sequences as long as the longest of them.
        plan: Its plan.
    """

    sampler: SequenceSampler
    plan: SequencePlan

    @property
    def copies(self) -> list[tuple[Copies, np.ndarray]]:
        """The copies to make, with their outputs."""
        return self.plan.copies


class EpisodeSampler:
    """Makes batches for one request.

    Args:
        request: The request.
        spec: The fields of every row.

    Raises:
        ValueError: The request is invalid, in itself or for this data.
    """

    def __init__(self, request: Episodes, spec: Spec) -> None:
        check_episodes(request)
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

    def memory(self, count: int, out: Batch | TransitionBatch | None) -> Memory:
        """Return no memory: the size depends on the episodes that are drawn.

        Raises:
            ValueError: ``out`` is given.
        """
        if out is not None:
            raise ValueError(
                "out: expected None for whole episodes, whose lengths differ, got a batch; leave "
                "it out"
            )
        del count
        return {}

    def plan(
        self, reader: RowReader, index: ChunkIndex, drawn: Drawn, memory: Memory
    ) -> EpisodePlan:
        """Find the rows and copy those of small fields; the storage's lock is held.

        Raises:
            DamagedChunk: Stored bytes are damaged.
            MemoryError: The batch would not fit in the memory that is free.
        """
        records = index.at(drawn.chunk)
        rows = records["first_row"] + records["rows"] - drawn.start
        most = int(rows.max()) * len(rows) * self._spec.row_bytes
        check_free_memory(most, f"a batch of {len(rows)} episodes")
        sampler = self._of_length(int(rows.max()) - self._shift)
        memory = sampler.memory(len(drawn.start), None)
        return EpisodePlan(sampler, sampler.plan(reader, index, drawn, memory))

    def finish(self, plan: EpisodePlan, weights: np.ndarray) -> Batch:
        """Make the batch of a plan after its copies were made."""
        return plan.sampler.finish(plan.plan, weights)

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
