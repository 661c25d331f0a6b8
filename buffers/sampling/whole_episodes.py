"""Whole episodes as batches: sequences that begin at the beginning and are padded after the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.free_memory import check_free_memory
from stepwell.buffers.sampling.batch import Batch, TransitionBatch
from stepwell.buffers.sampling.batch_fields import longest_stack
from stepwell.buffers.sampling.copies import Copies
from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.memory import Memory
from stepwell.buffers.sampling.requests import Episodes, Sequences, check_episodes
from stepwell.buffers.sampling.row_reader import RowReader
from stepwell.buffers.sampling.sequences import SequencePlan, SequenceSampler
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import WholeEpisodes, Windows

__all__ = ["EpisodePlan", "EpisodeSampler"]


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
        """What is to be copied where."""
        return self.plan.copies


class EpisodeSampler:
    """Makes batches for one request.

    Args:
        request: What is asked for.
        spec: The fields of every row.

    Raises:
        ValueError: The request makes no sense for this data.
    """

    def __init__(self, request: Episodes, spec: Spec) -> None:
        check_episodes(request)
        self._request = request
        self._spec = spec
        self._shift = int(request.align == "transition")
        self._frames = longest_stack(spec) - 1 if request.stack else 0
        self._of_length(1)

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The families of its items: episodes of which there is a row, or a transition."""
        del stride
        rows = 1 + self._shift
        return ItemKinds(
            rows, Windows(rows, self._frames), None, WholeEpisodes(rows, self._frames), None
        )

    def memory(self, count: int, out: Batch | TransitionBatch | None) -> Memory:
        """Nothing yet: how much is needed depends on the episodes that are drawn.

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
        self, gather: RowReader, table: ChunkIndex, chosen: Drawn, memory: Memory
    ) -> EpisodePlan:
        """Find the rows and take those of small fields; the storage's lock is held.

        Raises:
            DamagedChunk: Stored bytes are not what was written.
            MemoryError: The batch would not fit in the memory that is free.
        """
        records = table.at(chosen.chunk)
        rows = records["first_row"] + records["rows"] - chosen.start
        most = int(rows.max()) * len(rows) * self._spec.row_bytes
        check_free_memory(most, f"a batch of {len(rows)} episodes")
        sampler = self._of_length(int(rows.max()) - self._shift)
        memory = sampler.memory(len(chosen.start), None)
        return EpisodePlan(sampler, sampler.plan(gather, table, chosen, memory))

    def finish(self, plan: EpisodePlan, weights: np.ndarray) -> Batch:
        """Make the batch of a plan of which all was copied."""
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
