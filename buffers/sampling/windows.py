"""From the items that were drawn to the stored rows that a batch is made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.sampling.draws import Drawn, ItemKinds
from stepwell.buffers.sampling.requests import Borders
from stepwell.buffers.sampling.row_reader import Runs
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import EpisodeTails, WholeEpisodes, Windows

__all__ = ["Window", "chunk_of"]


class Window(NamedTuple):
    """The shape of a sequence, in stored rows.

    Args:
        borders: What it does at the borders of episodes.
        length: Rows that are learned from.
        shift: 1 where each row also needs the one after it.
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
        """Rows of a sequence, those of the burn-in included."""
        return self.burn_in + self.length + self.shift

    @property
    def _item(self) -> int:
        """Rows that must be there for a sequence to be drawn."""
        is_padded = self.borders in ("pad_after", "pad_before")
        return (1 if is_padded else self.length) + self.shift

    def kinds(self, stride: int = 1) -> ItemKinds:
        """The families of such sequences.

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

    def runs(self, table: ChunkIndex, chosen: Drawn, frames: int) -> Runs:
        """The rows of sequences that were drawn, each for its place in ``[B, frames + rows]``.

        Args:
            table: The index of what is stored.
            chosen: The sequences.
            frames: Rows before the first one that are wanted too, as far as they are there.
        """
        is_across = self.borders == "cross"
        first = last = chosen.start
        if self.borders == "pad_before":
            last = first + self._item - 1
            first = np.maximum(last - (self.length + self.shift) + 1, 0)
        else:
            last = first + self.length + self.shift - 1
        index, place, records = chunk_of(table, chosen.chunk, last, is_across)
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


def chunk_of(
    table: ChunkIndex, index: np.ndarray, row: np.ndarray, is_across: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the chunks that hold rows; where a row is not there, the last one of its episode.

    Args:
        table: The index of what is stored.
        index: [B] index of some chunk of the same episode, or stream.
        row: [B] the row, counted in that.
        is_across: It is counted in the stream.

    Returns:
        Index of the chunk [B], place of the row in the chunk [B], and the chunks' records [B].
    """
    base = table.base
    name = "stream_row" if is_across else "first_row"
    while True:
        at = table.at(index)
        place, rows = row - at[name], at["rows"]
        # As an unsigned number a row before the chunk is one far behind it: one comparison.
        if np.count_nonzero(place.view(np.uint64) < rows.view(np.uint64)) == len(place):
            return index, place, at
        is_after = place >= rows
        is_last = (at["stream_next"] < 0) if is_across else (at["is_tail"] == 1)
        row = np.where(is_after & is_last, row - place + rows - 1, row)
        step = np.where(is_after, at["stream_next"], at["stream_previous"]) - base
        index = np.where(is_after & ~is_last | (place < 0), step, index)
