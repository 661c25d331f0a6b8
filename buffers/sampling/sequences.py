"""Sequences of rows: what a request for them means, and how a batch of them is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stepwell.buffers.sampling.batch import Batch, TransitionBatch
from stepwell.buffers.sampling.batch_fields import (
    BatchFields,
    batch_dtype,
    longest_stack,
    pick,
    under,
)
from stepwell.buffers.sampling.copies import Copies
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.flags import FLAGS, fill_flags, fill_mask
from stepwell.buffers.sampling.memory import Memory, Shapes, memory_for
from stepwell.buffers.sampling.requests import Sequences, check_sequences
from stepwell.buffers.sampling.row_reader import RowReader, Runs, Segments, spread
from stepwell.buffers.sampling.stacks import pad_before, stack_copies, stack_views
from stepwell.buffers.sampling.windows import Window, chunk_of
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.storage.chunk_index import ChunkIndex

__all__ = ["SequencePlan", "SequenceSampler"]


class SequencePlan(NamedTuple):
    """A batch of which the small fields are there and the large ones are still to be copied.

    Args:
        memory: Where the rows go.
        copies: What is to be copied where.
        missing: [B] frames before each sequence that lie before its reset.
        rows: [B, T] each row's place in its episode, where stacks are copied.
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
        request: What is asked for.
        spec: The fields of every row.

    Raises:
        ValueError: The request makes no sense for this data.
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
        self._frames = longest_stack(spec) - 1 if request.stack else 0
        is_shifted = request.align == "transition"
        self.window = Window(
            request.borders, request.length, int(is_shifted), request.burn_in, self._frames
        )
        self._kinds = self.window.kinds()
        # Where nothing is padded and nothing crossed, stacks can overlap in memory.
        self._are_views = request.borders == "inside" and not request.burn_in
        # An episode's last row is a row, but begins no transition.
        self._is_shifted = is_shifted
        self._shapes = self._shapes_of(request.batch_size)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The families of its items; see `Window.kinds`."""
        return self._kinds if stride == 1 else self.window.kinds(stride)

    def memory(self, count: int, out: Batch | TransitionBatch | None) -> Memory:
        """Memory for so many sequences, perhaps that of an earlier batch.

        Raises:
            ValueError: ``out`` was made for another request.
        """
        shapes = self._shapes if count == self._request.batch_size else self._shapes_of(count)
        return memory_for(shapes, None if out is None else out.memory)

    def plan(
        self, gather: RowReader, table: ChunkIndex, chosen: Drawn, memory: Memory
    ) -> SequencePlan:
        """Find the rows and take those of small fields; the storage's lock is held.

        Raises:
            DamagedChunk: Stored bytes are not what was written.
        """
        batch = len(chosen.start)
        runs = self.window.runs(table, chosen, 0)
        segments = gather.segments(runs)
        flags = memory["flags"].reshape(len(FLAGS), -1)
        fill_flags(flags, table.at(segments.chunk), segments)
        is_full = fill_mask(flags[-1], runs.target, runs.rows)
        copies = self._take(gather, segments, memory)
        missing = rows = None
        if self._frames:
            wider = self.window.runs(table, chosen, self._frames)
            copies += self._take_frames(gather, wider, memory)
            missing = self._frames - (wider.rows - runs.rows)
            if not self._are_views:
                rows = self._row_numbers(table, segments, flags[-1].reshape(batch, -1))
        ids = self._ids(table, chosen, segments)
        state = self._state(gather, segments)
        return SequencePlan(memory, copies, missing, rows, is_full, ids, runs.rows, state)

    def finish(self, plan: SequencePlan, weights: np.ndarray) -> Batch:
        """Make the batch of a plan of which all was copied."""
        memory = plan.memory
        columns = self.window.rows
        leaves = {f.name: self._rows_of(f, plan) for f in self._fields.chosen}
        flags: dict[str, np.ndarray] = dict(zip(FLAGS, memory["flags"], strict=True))
        lengths, following = plan.lengths, None
        if self._is_shifted:
            mask = flags["mask"][:, :-1] & flags["mask"][:, 1:] & ~flags["is_last"][:, :-1]
            following = _cut({n: a for n, a in leaves.items() if _is_arriving(n)}, 1, columns)
            flags = {
                name: rows[:, :-1] if name == "is_first" else rows[:, 1:]
                for name, rows in flags.items()
            } | {"mask": mask}
            leaves = _cut(leaves, 0, columns - 1)
            arrived = ("reward", "info/")
            leaves |= {n: a for n, a in following.items() if n.startswith(arrived)}
            lengths = mask.sum(1)
        if self._request.time_major:
            leaves = _turned(leaves)
            flags = {name: np.ascontiguousarray(rows) for name, rows in _turned(flags).items()}
            following = None if following is None else _turned(following)
        return Batch(
            observation=pick(self._fields.observation, leaves),
            action=pick(self._fields.action, leaves),
            reward=leaves.get("reward"),
            is_first=flags["is_first"],
            is_last=flags["is_last"],
            terminated=flags["terminated"],
            truncated=flags["truncated"],
            cut=flags["cut"],
            mask=flags["mask"],
            lengths=lengths,
            info=under("info/", leaves),
            extras=under("extra/", leaves),
            ids=plan.ids,
            weights=weights,
            state=plan.state,
            next_observation=None
            if following is None
            else pick(self._fields.observation, following),
            burn_in=self._request.burn_in,
            memory=memory,
        )

    def _shapes_of(self, batch: int) -> Shapes:
        """What is needed for so many sequences."""
        shapes: Shapes = {}
        rows = self.window.rows
        for field in self._fields.chosen:
            more = self._frames if self._is_stacked(field) else 0
            first = (rows, batch) if self._is_turned(field) else (batch, rows + more)
            dtype = batch_dtype(field)
            shapes[field.name] = ((*first, *field.shape), dtype)
            if more and not self._are_views:
                shapes["stacks of " + field.name] = ((batch, rows, *field.source_shape), dtype)
        shapes["flags"] = ((len(FLAGS), batch, rows), np.dtype(np.bool_))
        return shapes

    def _is_stacked(self, field: Field) -> bool:
        return self._frames > 0 and field.stack > 1

    def _is_turned(self, field: Field) -> bool:
        """Whether rows are gathered time first: all but frames, which stacks are views of."""
        return self._request.time_major and not self._is_stacked(field)

    def _take(
        self, gather: RowReader, segments: Segments, memory: Memory
    ) -> list[tuple[Copies, np.ndarray]]:
        """Take the rows of small fields, and plan to copy those of large ones."""
        copies: list[tuple[Copies, np.ndarray]] = []
        slots: np.ndarray | None = None
        columns = self.window.rows if self._request.time_major else 0
        for field in self._fields.chosen:
            if self._is_stacked(field):
                continue
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            if not gather.is_small(field.name):
                copies.append((gather.plan(field.name, segments, flat, columns), flat))
                continue
            if slots is None:
                slots = gather.slots(segments, len(flat))
                slots = slots.reshape(-1, columns).T.ravel() if columns else slots
            gather.take(field.name, slots, flat)
        return copies

    def _take_frames(
        self, gather: RowReader, wider: Runs, memory: Memory
    ) -> list[tuple[Copies, np.ndarray]]:
        """Plan to copy the frames that stacks are made of."""
        segments = gather.segments(wider)
        copies: list[tuple[Copies, np.ndarray]] = []
        for field in filter(self._is_stacked, self._fields.chosen):
            rows = memory[field.name]
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *field.shape)
            copies.append((gather.plan(field.name, segments, flat), flat))
        return copies

    def _rows_of(self, field: Field, plan: SequencePlan) -> np.ndarray:
        """The rows of a field, [B, T, ...], with nothing but zeros where there is none."""
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

    def _state(self, gather: RowReader, segments: Segments) -> dict[str, np.ndarray]:
        if not self._fields.state:
            return {}
        first = gather.spot(segments.first_chunk, segments.first_start)
        return {
            field.name.removeprefix("extra/"): gather.pick(field.name, first)
            for field in self._fields.state
        }

    def _ids(self, table: ChunkIndex, chosen: Drawn, segments: Segments) -> np.ndarray:
        """The ids of the rows that the items begin with."""
        index, row = segments.first_chunk, segments.first_start
        records, borders = table.records, self.window.borders
        if self.window.burn_in or borders == "pad_before":
            is_across = borders == "cross"
            index, row, _ = chunk_of(table, chosen.chunk, chosen.start, is_across)
        ids: np.ndarray = records["row_id"][index] + row
        return ids

    def _row_numbers(self, table: ChunkIndex, segments: Segments, mask: np.ndarray) -> np.ndarray:
        """Each row's place in its episode [B, T], or -1 where there is no row."""
        first = table.records["first_row"][segments.chunk] + segments.start
        rows = spread(first, segments, np.full(mask.size, -1))
        return rows.reshape(mask.shape)


def _is_arriving(name: str) -> bool:
    """Whether a field comes with the observation rather than with the action."""
    return name.split("/")[0] not in ("action", "extra")


def _cut(leaves: Mapping[str, np.ndarray], first: int, stop: int) -> dict[str, np.ndarray]:
    return {name: rows[:, first:stop] for name, rows in leaves.items()}


def _turned(leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Time first."""
    return {name: rows.swapaxes(0, 1) for name, rows in leaves.items()}
