"""Priorities follow the chunks also where ids have gaps, as a repaired store's have."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.buffers import End
from stepwell.buffers.sampling.draws import ItemKinds
from stepwell.buffers.sampling.priority_index import PriorityIndex
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.item_counts import Windows
from stepwell.buffers.testing import chunk_of

GAP = 1 << 32  # what `repair` leaves between the ids
KINDS = ItemKinds(2, Windows(2), None, None, None)


def with_a_gap() -> ChunkIndex:
    """Rows 0 to 4, then those of another episode, far behind."""
    table = ChunkIndex()
    for episode in range(2):
        chunk = chunk_of(episode, 0, 5, End.TERMINATED)
        table.check([chunk])
        table.append(chunk, segment=episode, offset=0, nbytes=8)
        table.next_row_id += GAP
    return table


def drawn_ids(index: PriorityIndex, table: ChunkIndex) -> set[int]:
    chosen, _ = index.draw(table, 0, KINDS, 400, np.random.default_rng(0))
    at = table.at(chosen.chunk)
    return set((at["row_id"] + chosen.start - at["first_row"]).tolist())


def test_items_on_both_sides_of_a_gap_are_drawn_and_updated() -> None:
    table, index = with_a_gap(), PriorityIndex(1.0)
    behind = 5 + GAP
    assert drawn_ids(index, table) == {0, 1, 2, 3, *range(behind, behind + 4)}
    ids = np.array([0, 1, 2, 3, behind, behind + 1, behind + 2])
    assert index.update(table, 0, ids, np.zeros(7)) == 0
    assert drawn_ids(index, table) == {behind + 3}


@pytest.mark.parametrize("stranger", [-1, 4, 5, 9, GAP, 4 + GAP, 9 + GAP, 10 + GAP, 1 << 40])
def test_an_id_within_a_gap_is_ignored_and_hits_nothing(stranger: int) -> None:
    table, index = with_a_gap(), PriorityIndex(1.0)
    everything = drawn_ids(index, table)
    assert index.update(table, 0, np.array([stranger]), np.array([1e9])) == 1
    assert drawn_ids(index, table) == everything


def test_priorities_go_over_a_restart_by_their_ids() -> None:
    table, index = with_a_gap(), PriorityIndex(1.0)
    drawn_ids(index, table)
    index.update(table, 0, np.array([2, 5 + GAP]), np.array([1e6, 1e6]))
    restored = PriorityIndex(1.0)
    restored.restore(table, 0, index.state(table, 0))
    table.drop_segment()
    assert drawn_ids(restored, table) == {5 + GAP}
    assert restored.update(table, 0, np.array([2]), np.array([1.0])) == 1
