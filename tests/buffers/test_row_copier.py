"""What is remembered of pieces is bounded, and forgotten when it means nothing any more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disk_faults import NoSyncFiles
from piece_model import SPEC, piece_of
from stepwell.buffers import DiskStorage, End, row_copier
from stepwell.buffers.row_copier import RowCopier


def test_few_segments_are_kept_in_mind_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.13 each mapped file holds a descriptor."""
    monkeypatch.setattr(row_copier, "_MAX_SEGMENTS", 3)
    with DiskStorage.create(tmp_path / "a", SPEC, segment_bytes=4_000, files=NoSyncFiles()) as made:
        for episode in range(40):
            made.add([piece_of(episode, 0, 20, End.TERMINATED)])
        assert len(set(made.table.records["segment"].tolist())) > 8
        copier = RowCopier(made)
        rewards = np.empty(20)
        for position in (*range(40), *range(39, -1, -3)):
            copier.copy(position, made.table.record(position), 0, 20, [(2, rewards)])
            expected = piece_of(position, 0, 20, End.TERMINATED).fields["reward"]
            assert rewards.tolist() == expected.tolist()
            assert len({segment for segment, _ in copier._known}) <= 4


def test_few_pieces_are_kept_in_mind_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_copier, "_MAX_KNOWN", 5)
    with DiskStorage.create(tmp_path / "a", SPEC, files=NoSyncFiles()) as made:
        for episode in range(30):
            made.add([piece_of(episode, 0, 4, End.TERMINATED)])
        copier = RowCopier(made)
        for position in range(30):
            copier.copy(position, made.table.record(position), 0, 4, [(2, np.empty(4))])
            assert len(copier._known) <= 5
